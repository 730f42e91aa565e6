// The fleet as a table to edit, and files in and out.
import { $, el, fill, number, save, say, table } from "./dom.js";
import { Refused, post } from "./server.js";
import { adopt, change, source, state } from "./scenario.js";

const COLUMNS = [["name", "name", ""], ["phi", "φ", ""], ["uplink_gain", "uplink gain", ""], ["downlink_gain", "downlink gain", ""], ["bandwidth_hz", "bandwidth", "Hz"],
  ["max_power_w", "max power", "W"], ["max_frequency_hz", "max frequency", "Hz"], ["flops_per_cycle", "FLOP/cycle", ""], ["pue", "PUE", ""], ["capacitance", "capacitance", "F"]];
const LABELS = ["label_counts", "label counts", ""];
const PAGE = 50;
const LARGEST = 8_000_000;
let known = null, accepted = new Map(), page = 0, hooks = null, asked = 0;  // accepted: the changes that are part of known

export const names = () => known?.names ?? [];
export const scenario = () => known;

export function prepare(given) {
  hooks = given;
  $("upload").addEventListener("change", upload);
  $("download-yaml").addEventListener("click", () => download("yaml"));
  $("download-csv").addEventListener("click", () => download("csv"));
  $("add-client").addEventListener("click", () => reshape((clients) => {
    const { name, ...copy } = clients.at(-1);
    return [...clients, name ? { ...copy, name: `${name} (${clients.length})`.slice(0, 200) } : copy];
  }));
}

// Store the server's reply about the scenario with these changes.
export function take(answer, changes = new Map()) {
  asked += 1;
  known = answer;
  accepted = changes;
  render();
  hooks.resolved();
}

export async function refresh(problem) {
  const own = ++asked, changes = new Map(state.overrides);
  try {
    const answer = await post("/api/scenario", source());
    if (own === asked) take(answer, changes);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (own === asked) problem(error);
  }
}

const columns = () => (known.scenario.clients.some((client) => client.label_counts) ? [...COLUMNS, LABELS] : COLUMNS);
// If labels are pooled over the selected clients, the plan does not use the φ of single clients.
const pooled = () => known.scenario.bound.aggregation === "mixture";
let shape = "";

function render() {
  const clients = known.scenario.clients, last = Math.max(0, Math.ceil(clients.length / PAGE) - 1);
  page = Math.min(page, last);
  const now = JSON.stringify([page, clients.length, columns().length]);
  if (now !== shape) {
    const rows = clients.slice(page * PAGE, (page + 1) * PAGE).map((_, i) => row(page * PAGE + i));
    table($("fleet"), [...columns().map(([, text, unit]) => (unit ? `${text}, ${unit}` : text)), el("span", { class: "quiet" }, "remove")], rows, "The clients; every cell can be edited");
    shape = now;
  }
  write();
  $("phi-note").textContent = pooled() ? "φ is only shown: this scenario pools the label counts of the selected clients (bound.aggregation: mixture), so change a client's label counts or σ instead."
    : "If you enter a φ, it replaces the one computed from the label counts.";
  fill($("pages"), ...(last ? [el("button", { type: "button", disabled: page === 0, onclick: () => { page -= 1; render(); } }, "Previous"),
    el("span", { class: "note" }, `${page * PAGE + 1}–${Math.min(clients.length, (page + 1) * PAGE)} of ${clients.length}`),
    el("button", { type: "button", disabled: page === last, onclick: () => { page += 1; render(); } }, "Next")] : []));
}

// Write values into the existing boxes, so that the focus stays and half-typed text is not lost.
function write() {
  for (const box of $("fleet").querySelectorAll("input")) {
    const n = Number(box.dataset.client), key = box.dataset.column, shown = text(n, key);
    if (box !== document.activeElement || box.value === box.dataset.shown) box.value = shown;
    box.dataset.shown = shown;
    box.setAttribute("aria-label", `${columns().find(([own]) => own === key)[1]} of ${known.names[n]}`);
    if (key === "phi") box.readOnly = pooled();
  }
  for (const button of $("fleet").querySelectorAll("button")) {
    button.setAttribute("aria-label", `Remove ${known.names[Number(button.dataset.client)]}`);
    button.disabled = known.scenario.clients.length < 2;
  }
}

function text(n, key) {
  const client = known.scenario.clients[n], value = key === "phi" ? client.phi ?? known.phi[n] : key === "name" ? known.names[n] : client[key];
  if (Array.isArray(value)) return value.join(";");
  if (typeof value !== "number") return value ?? "";
  if (Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)) return shortest(value);
  return key === "phi" ? number(value, 5) : String(value);
}

// The value in the form of the command line.
function override(key, written) {
  if (key === "name") return JSON.stringify(written);
  return key === "label_counts" ? `[${written.split(/[\s;,]+/).filter(Boolean).join(",")}]` : written.trim();
}

function row(n) {
  const cells = columns().map(([key]) => {
    const box = el("input", { "data-client": String(n), "data-column": key, "data-cell": `clients[${n}].${key}`, "aria-describedby": key === "phi" ? "fleet-error phi-note" : "fleet-error" });
    box.addEventListener("change", () => {
      const path = `clients[${n}].${key}`, same = box.value === box.dataset.shown;
      change(path, same ? accepted.get(path) ?? null : box.value.trim() === "" ? null : override(key, box.value));
      hooks.changed();
    });
    return el("td", {}, box);
  });
  const remove = el("button", { type: "button", "data-client": String(n), onclick: () => reshape((clients) => clients.filter((_, i) => i !== n)) }, "✕");
  return el("tr", {}, ...cells, el("td", {}, remove));
}

const LONGEST = 8;  // characters that fit into a cell
function shortest(value) {
  const short = (digits) => value.toExponential(digits).replace("e+", "e"), plain = String(value);
  if (Number(short(3)) !== value) return short(3);
  return Math.abs(value) >= 1 && plain.length <= LONGEST ? plain : short();
}

async function reshape(edit) {
  await adopt({ ...known.listed, clients: edit(known.listed.clients) });
  hooks.replaced();
}

async function upload(event) {
  const [file] = event.target.files;
  event.target.value = "";
  $("upload-error").textContent = "";
  $("upload").removeAttribute("aria-invalid");
  if (!file) return;
  try {
    if (file.size > LARGEST) throw new Refused(413, { message: `${file.name}: is too large; at most ${LARGEST / 1e6} MB are accepted` });
    const kind = file.name.toLowerCase().endsWith(".csv") ? "csv" : "yaml";
    const answer = await post("/api/scenario/upload", { ...source(), kind, text: await file.text() });
    await adopt(answer.document);
    hooks.replaced();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("upload").setAttribute("aria-invalid", "true");
    say($("upload-error"), `${file.name}: ${error.message}`);
  }
}

async function download(kind) {
  try {
    const file = await post(`/api/scenario/${kind}`, source());
    save(file.name, file.text);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say($("fleet-error"), error.message);
  }
}

// Mark the cell that is wrong; returns false if the error is not about a cell.
export function problem(error) {
  for (const box of $("fleet").querySelectorAll("[aria-invalid]")) box.removeAttribute("aria-invalid");
  $("fleet-error").textContent = "";
  if (error === null || !error.key.startsWith("clients")) return false;
  say($("fleet-error"), error.message.replace(/ \(override .*\)$/, ""));
  const cell = error.key.replace(/(\.\w+)\[\d+\]$/, "$1");
  $("fleet").querySelector(`[data-cell="${CSS.escape(cell)}"]`)?.setAttribute("aria-invalid", "true");
  return true;
}
