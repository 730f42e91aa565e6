// The scenario on the table: where it comes from, what was changed, and the address that brings it back.
import { get, pack, unpack } from "./server.js";

export const PRESETS = ["paper-mnist", "paper-cifar10", "city"];
export const PAPER_SCHEMES = ["proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency"];
export const SCHEMES = {};  // name to title, filled by loadNames; installed packages may add schemes
export const NAMES = {};    // kind to names: schemes, objectives, selection, aggregators, policies, data, models

export async function loadNames() {
  Object.assign(NAMES, await get("/api/names"));
  for (const name of NAMES.schemes) SCHEMES[name] = name === "measured" ? "measured guide" : name.replaceAll("_", " ");
}

export const state = { preset: "paper-mnist", document: null, packed: null, overrides: new Map(), scheme: "proposed", objective: null, selection: null, segment: null };

export const source = () => ({ ...(state.document ? { document: state.document } : { preset: state.preset }),
                               overrides: [...state.overrides].map(([key, value]) => `${key}=${value}`) });

// What planning is asked for; null means as the scheme says.
export const question = () => ({ scheme: state.scheme, objective: state.objective, selection: state.selection });

export const title = () => (state.document ? "the edited scenario" : state.preset);

export function address() {
  const query = new URLSearchParams();
  if (state.document) query.set("doc", state.packed);
  else query.set("preset", state.preset);
  for (const [key, value] of state.overrides) query.append("set", `${key}=${value}`);
  if (state.scheme !== "proposed") query.set("scheme", state.scheme);
  for (const key of ["objective", "selection"]) if (state[key]) query.set(key, state[key]);
  if (state.segment !== null) query.set("show", state.segment);
  return `#/plan?${query}`;
}

export async function restore(query) {
  const packed = query.get("doc");
  if (packed !== null && packed !== state.packed) {
    state.document = await unpack(packed);
    state.packed = packed;
  } else if (packed === null) {
    state.document = state.packed = null;
    state.preset = PRESETS.includes(query.get("preset")) ? query.get("preset") : PRESETS[0];
  }
  state.overrides = new Map(query.getAll("set").map((text) => [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)]));
  state.scheme = query.get("scheme") in SCHEMES ? query.get("scheme") : "proposed";
  state.objective = NAMES.objectives.includes(query.get("objective")) ? query.get("objective") : null;
  state.selection = NAMES.selection.includes(query.get("selection")) ? query.get("selection") : null;
  state.segment = /^\d{1,4}$/.test(query.get("show") ?? "") ? Number(query.get("show")) : null;
}

export async function adopt(document) {
  state.document = document;
  state.packed = await pack(document);
  state.overrides = new Map();
  state.segment = null;
}

export function usePreset(name) {
  Object.assign(state, { preset: name, document: null, packed: null, overrides: new Map(), segment: null });
}

export function ask(changes) {
  Object.assign(state, changes, { segment: null });
}

export function change(key, value) {
  state.segment = null;
  state.overrides.delete(key);
  if (value !== null) state.overrides.set(key, value);
}

const quoted = (text) => (/^[\w.=+\-/:]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export function asCommand() {
  const asked = Object.entries(question()).filter(([key, value]) => value && value !== "proposed").flatMap(([key, value]) => [`--${key}`, value]);
  const changes = source().overrides.map(quoted);
  return ["fedgap", "plan", ...(state.document ? ["scenario.yaml"] : [state.preset, ...changes]), ...asked].join(" ");
}

export function asPython() {
  const file = JSON.stringify(state.document ? "scenario.yaml" : state.preset);
  const changes = state.document ? [] : source().overrides;
  const list = changes.length ? `, [${changes.map((text) => JSON.stringify(text)).join(", ")}]` : "";
  const asked = Object.entries(question()).filter(([key, value]) => value && value !== "proposed").map(([key, value]) => `, ${key}=${JSON.stringify(value)}`).join("");
  return `import fedgap\n\nscenario = fedgap.Scenario.load(${file}${list})\nplan = fedgap.plan(scenario${asked})\n`
       + "print(plan.status, plan.theta, plan.energy_j, plan.delay_s)\n";
}
