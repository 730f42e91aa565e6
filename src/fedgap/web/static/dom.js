// Create elements, format numbers, save files. Texts are inserted as text only, never as markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null));
}

// Show a text; what stands between backticks is shown as code.
export function say(element, text) {
  fill(element, ...text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part)));
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
  const text = value.toPrecision(digits);
  const plain = text.includes("e") ? String(Math.round(value)) : text;
  return plain.includes(".") ? plain.replace(/\.?0+$/, "") : plain;
}

const PREFIXES = { "-5": "f", "-4": "p", "-3": "n", "-2": "µ", "-1": "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T" };

export function si(value, unit) {
  if (!value || !Number.isFinite(value)) return `${number(value)} ${unit}`;
  const step = Math.min(4, Math.max(-5, Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-12)));
  return `${number(value / 1000 ** step, 3)} ${PREFIXES[step]}${unit}`;
}

export const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);

export function badge(element, text, kind) {
  if (element.textContent !== text.replaceAll("`", "")) say(element, text);
  element.className = `badge ${kind}`;
}

// Show an error at its field, also for screen readers; returns false if the form has no such field.
export function flag(form, error) {
  for (const text of form.querySelectorAll("[data-error]")) text.textContent = "";
  for (const box of form.querySelectorAll("[aria-invalid]")) box.removeAttribute("aria-invalid");
  const place = error && form.querySelector(`[data-error="${CSS.escape(error.key)}"]`);
  if (!place) return false;
  say(place, error.message.replace(/ \(override .*\)$/, ""));
  form.querySelector(`[data-key="${CSS.escape(error.key)}"]`)?.setAttribute("aria-invalid", "true");
  return true;
}

export function table(element, heads, rows, caption) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  fill(element, caption ? el("caption", { class: "quiet" }, caption) : null, el("thead", {}, head), el("tbody", {}, ...rows));
}

export function save(name, content, type = "text/plain") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function facts(list, entries) {
  fill(list, ...entries.map(([name, value, small, share]) => el("div", { "data-fact": name }, el("dt", {}, name),
    el("dd", {}, value, small ? el("small", {}, ` ${small}`) : null), share === undefined ? null : meter(name, share))));
}

function meter(name, share) {
  const bar = el("i");
  bar.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return el("div", { class: "meter", "aria-hidden": "true" }, bar);
}
