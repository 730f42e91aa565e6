// The present scenario: its source, the changes to it, and the page address that restores it.
import { get, pack, unpack } from "./server.js";

export const PRESETS = ["paper-mnist", "paper-cifar10", "city"];
export const PAPER_SCHEMES = ["proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency"];
export const NAMES = {};    // kind → names, filled by loadNames: schemes, objectives, selection, aggregators, policies, data, models

export const OPENED = {};   // what the command line named: kind, name, document, training, run

export async function loadNames() {
  const [names, opened] = await Promise.all([get("/api/names"), get("/api/opened")]);
  Object.assign(NAMES, names);
  Object.assign(OPENED, opened);
}

// A scheme of null is the scenario's usual one, as `fedgap plan` chooses it.
export const state = { preset: "paper-mnist", document: null, packed: null, opened: false, overrides: new Map(), scheme: null, objective: null, selection: null, segment: null };
let usual = "proposed";
export const scheme = () => state.scheme ?? usual;
export const setUsual = (name) => { usual = name; };

export const source = () => ({ ...(state.document ? { document: state.document } : { preset: state.preset }),
                               overrides: [...state.overrides].map(([key, value]) => `${key}=${value}`) });

// Scheme, objective and selection for planning; null means the default.
export const question = () => ({ scheme: state.scheme, objective: state.objective, selection: state.selection });

export const title = () => (state.opened ? OPENED.name : state.document ? "the edited scenario" : state.preset);

export function address() {
  const query = new URLSearchParams();
  if (state.opened) query.set("file", OPENED.name);
  else if (state.document) query.set("doc", state.packed);
  else query.set("preset", state.preset);
  for (const [key, value] of state.overrides) query.append("set", `${key}=${value}`);
  for (const key of ["scheme", "objective", "selection"]) if (state[key]) query.set(key, state[key]);
  if (state.segment !== null) query.set("show", state.segment);
  return `#/plan?${query}`;
}

// Returns a message if the address is wrong, otherwise nothing.
export async function restore(query) {
  const packed = query.get("doc"), file = query.get("file");
  const known = { schemes: NAMES.schemes, objectives: NAMES.objectives, selection: NAMES.selection };
  const named = (key, kind) => (known[kind].includes(query.get(key)) ? query.get(key) : null);
  if (![...query.keys()].length) {
    useOpened();
    return "";
  }
  if (packed !== null && packed !== state.packed) {
    state.document = await unpack(packed);
    state.packed = packed;
    state.opened = false;
  } else if (file !== null && file === OPENED.name && OPENED.document) {
    Object.assign(state, { document: OPENED.document, packed: null, opened: true });
  } else if (packed === null) {
    Object.assign(state, { document: null, packed: null, opened: false, preset: PRESETS.includes(query.get("preset")) ? query.get("preset") : PRESETS[0] });
  }
  state.overrides = new Map(query.getAll("set").map((text) => [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)]));
  state.scheme = named("scheme", "schemes");
  state.objective = named("objective", "objectives");
  state.selection = named("selection", "selection");
  state.segment = /^\d{1,4}$/.test(query.get("show") ?? "") ? Number(query.get("show")) : null;
  return file !== null && !state.opened ? `This address shows the file ${file}; open it with: fedgap studio ${quoted(file)}` : "";
}

// Start with what the command line named (with an experiment's scheme), or with the first preset.
export function useOpened() {
  const { document: own, kind, name, training } = OPENED;
  if (!own) {
    usePreset(kind === "preset" ? name : PRESETS[0]);
    return;
  }
  Object.assign(state, { document: own, packed: null, opened: true, overrides: new Map(), segment: null,
                         scheme: training?.scheme ?? null, objective: training?.objective ?? null, selection: training?.selection ?? null });
}

export async function adopt(document) {
  state.document = document;
  state.packed = await pack(document);
  state.opened = false;
  state.overrides = new Map();
  state.segment = null;
}

export function usePreset(name) {
  Object.assign(state, { preset: name, document: null, packed: null, opened: false, overrides: new Map(), segment: null });
}

export function ask(changes) {
  Object.assign(state, changes, { segment: null });
}

export function change(key, value) {
  state.segment = null;
  state.overrides.delete(key);
  if (value !== null) state.overrides.set(key, value);
}

export const quoted = (text) => (/^[\w.=+\-/:]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

// A copied command uses the preset or the opened file with all changes. Any other scenario must be downloaded first.
export const toDownload = () => Boolean(state.document) && !(state.opened && OPENED.kind === "scenario");
const from = () => (toDownload() ? ["scenario.yaml"] : [state.opened ? OPENED.name : state.preset, ...source().overrides]);
const asked = () => Object.entries(question()).filter(([key, value]) => value && !(key === "scheme" && value === usual));

export const asCommand = () => ["fedgap", "plan", ...from().map(quoted), ...asked().flatMap(([key, value]) => [`--${key}`, value])].join(" ");

export function asPython() {
  const [file, ...changes] = from(), list = changes.length ? `, [${changes.map((text) => JSON.stringify(text)).join(", ")}]` : "";
  return `import fedgap\n\nscenario = fedgap.Scenario.load(${JSON.stringify(file)}${list})\nplan = fedgap.plan(scenario${asked().map(([key, value]) => `, ${key}=${JSON.stringify(value)}`).join("")})\n`
       + "print(plan.status, plan.theta, plan.energy_j, plan.delay_s)\n";
}
