// The fleet as a table to edit, and files in and out.
import { $, el, fill, number, save, table } from "./dom.js";
import { Refused, post } from "./server.js";
import { adopt, change, source, state } from "./scenario.js";

const COLUMNS = [["name", "name", ""], ["phi", "φ", ""], ["uplink_gain", "uplink gain", ""], ["downlink_gain", "downlink gain", ""], ["bandwidth_hz", "bandwidth", "Hz"],
  ["max_power_w", "max power", "W"], ["max_frequency_hz", "max frequency", "Hz"], ["flops_per_cycle", "FLOP/cycle", ""], ["pue", "PUE", ""], ["capacitance", "capacitance", "F"]];
const PAGE = 50;
const LARGEST = 8_000_000;
let known = null, page = 0, hooks = null, asked = 0;

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

export async function refresh(problem) {
  const own = ++asked;
  try {
    const answer = await post("/api/scenario", source());
    if (own !== asked) return;
    known = answer;
    render();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (own === asked) problem(error);
  }
}

function render() {
  const clients = known.scenario.clients, last = Math.max(0, Math.ceil(clients.length / PAGE) - 1);
  page = Math.min(page, last);
  const rows = clients.slice(page * PAGE, (page + 1) * PAGE).map((client, i) => row(client, page * PAGE + i));
  table($("fleet"), [...COLUMNS.map(([, text, unit]) => (unit ? `${text}, ${unit}` : text)), ""], rows, "The clients; every cell can be edited");
  fill($("pages"), ...(last ? [el("button", { type: "button", disabled: page === 0, onclick: () => { page -= 1; render(); } }, "Previous"),
    el("span", { class: "note" }, `${page * PAGE + 1}–${Math.min(clients.length, (page + 1) * PAGE)} of ${clients.length}`),
    el("button", { type: "button", disabled: page === last, onclick: () => { page += 1; render(); } }, "Next")] : []));
}

function row(client, n) {
  const cells = COLUMNS.map(([key, text]) => {
    const value = key === "phi" ? client.phi ?? known.phi[n] : key === "name" ? known.names[n] : client[key];
    const shown = typeof value === "number" ? (Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? shortest(value) : key === "phi" ? number(value, 5) : String(value)) : value ?? "";
    const box = el("input", { "aria-label": `${text} of ${known.names[n]}`, "data-cell": `clients[${n}].${key}`, "aria-describedby": "fleet-error" });
    box.value = shown;
    box.addEventListener("change", () => {
      change(`clients[${n}].${key}`, box.value.trim() === "" || box.value === shown ? null : key === "name" ? JSON.stringify(box.value) : box.value.trim());
      hooks.changed();
    });
    return el("td", {}, box);
  });
  const remove = el("button", { type: "button", "aria-label": `Remove ${known.names[n]}`, disabled: known.scenario.clients.length < 2,
    onclick: () => reshape((clients) => clients.filter((_, i) => i !== n)) }, "✕");
  return el("tr", {}, ...cells, el("td", {}, remove));
}

const shortest = (value) => { const text = value.toExponential(3).replace("e+", "e"); return Number(text) === value ? String(value) : text; };

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
    if (file.size > LARGEST) throw new Refused(413, { message: `${file.name}: is too large; at most ${LARGEST / 1e6} MB are taken` });
    const kind = file.name.toLowerCase().endsWith(".csv") ? "csv" : "yaml";
    const answer = await post("/api/scenario/upload", { ...source(), kind, text: await file.text() });
    await adopt(answer.document);
    hooks.replaced();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("upload").setAttribute("aria-invalid", "true");
    $("upload-error").textContent = `${file.name}: ${error.message}`;
  }
}

async function download(kind) {
  try {
    const file = await post(`/api/scenario/${kind}`, source());
    save(file.name, file.text);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("fleet-error").textContent = error.message;
  }
}

// Marks the cell that is wrong; false where the trouble lies elsewhere.
export function problem(error) {
  for (const box of $("fleet").querySelectorAll("[aria-invalid]")) box.removeAttribute("aria-invalid");
  $("fleet-error").textContent = "";
  if (error === null || !error.key.startsWith("clients")) return false;
  $("fleet-error").textContent = error.message.replace(/ \(override .*\)$/, "");
  $("fleet").querySelector(`[data-cell="${CSS.escape(error.key)}"]`)?.setAttribute("aria-invalid", "true");
  return true;
}
