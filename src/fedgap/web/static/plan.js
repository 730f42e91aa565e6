// The Plan view: fields and sliders, and the stream of answers that follows every change.
import { $, el, fill, flag, say } from "./dom.js";
import { Refused, post, stream } from "./server.js";
import { NAMES, OPENED, PRESETS, address, asCommand, asPython, ask, change, question, restore, scheme, setUsual, source, state, toDownload, useOpened, usePreset } from "./scenario.js";
import * as board from "./board.js";
import * as budget from "./budget.js";
import * as fleet from "./fleet.js";

export { address };

const FIELDS = [
  { key: "budget.energy_j", name: "Energy budget", unit: "J", span: 8 },
  { key: "budget.delay_s", name: "Delay budget", unit: "s", span: 8 },
  { key: "rounds", name: "Rounds", unit: "", span: 8, whole: true },
  { key: "learning.rate", name: "Learning rate η", unit: "", span: 100 },
  { key: "labels.concentration", name: "σ of the labels", unit: "", span: 100, recipe: true },
];
// How clients and server learn. A resolved scenario has what its mode gives, and leaves out what is plain.
const LEARNER = [
  { key: "learning.local_steps", name: "Local steps τ", plain: "1" },
  { key: "learning.upload_bits", name: "Upload bits", plain: "32", choices: { 32: "32", 8: "8", 4: "4" } },
  { key: "learning.server.optimiser", name: "Server optimiser", plain: "sgd", choices: { sgd: "SGD", momentum: "momentum", nesterov: "Nesterov", adam: "Adam", yogi: "Yogi" } },
  { key: "learning.batches", name: "Batches", plain: "as_is", choices: { as_is: "as is", balanced: "balanced", target: "target" } },
];
const MODES = ["practical", "repaired", "as_printed"];
const STEPS = 400;
const FILE = "file:";  // the choice that stands for the file which was opened
let base = null;      // the scenario as its file has it
let current = null;   // the request under way
let waiting = false;  // a change came before its draft did
let moved = null;     // when the slider moved

const at = (document, key) => key.split(".").reduce((here, part) => here?.[part], document);
const written = (field) => at(base.document, field.key) ?? at(base.scenario, field.key);

export async function prepare() {
  fill($("preset"), ...(OPENED.document ? [el("option", { value: FILE }, OPENED.name)] : []), ...PRESETS.map((name) => el("option", { value: name }, name)), el("option", { value: "", hidden: true }, "edited"));
  fill($("scheme"), ...NAMES.schemes.map((name) => el("option", { value: name }, name)));
  fill($("fields"), ...FIELDS.map(makeField));
  fill($("learner"), ...LEARNER.map(makeLearnerField));
  $("preset").addEventListener("change", (event) => { if (event.target.value === FILE) useOpened(); else usePreset(event.target.value); load(); });
  for (const [key, names] of [["objective", NAMES.objectives], ["selection", NAMES.selection]]) {
    fill($(key), el("option", { value: "" }, "the scheme's"), ...names.map((name) => el("option", { value: name }, name)));
  }
  for (const key of ["scheme", "objective", "selection"]) $(key).addEventListener("change", (event) => { ask({ [key]: event.target.value || null }); solve(); });
  $("mode").addEventListener("change", (event) => { change("mode", event.target.value || null); solve(true); });
  $("reset").addEventListener("click", () => { state.overrides.clear(); ask({ scheme: null, objective: null, selection: null }); if (state.opened) useOpened(); load(); });
  $("plan-form").addEventListener("submit", (event) => event.preventDefault());
  $("copy-command").addEventListener("click", () => copy(asCommand()));
  $("copy-python").addEventListener("click", () => copy(asPython()));
  $("train-plan").addEventListener("click", () => { location.hash = "#/run?new="; });
  board.prepare((chosen) => { ask({ scheme: chosen }); $("scheme").value = chosen; solve(); });
  budget.prepare((changes) => {
    for (const [key, value] of Object.entries(changes)) change(key, value);
    ask({ scheme: "forecast", objective: null, selection: null });
    $("scheme").value = "forecast";
    FIELDS.forEach(show);
    solve();
  });
  fleet.prepare({ changed: () => solve(true), replaced: () => load(), resolved: showResolved });
}

function makeField(field) {
  const id = `f-${field.key.replace(".", "-")}`;
  const box = el("input", { id, inputmode: "decimal", "data-key": field.key, "aria-describedby": `${id}-error` });
  const slider = el("input", { type: "range", min: "0", max: String(STEPS), step: "1", "aria-label": `${field.name}, slider`, "data-slider": field.key });
  slider.addEventListener("input", () => {
    moved ??= performance.now();
    const value = fromSlider(field, Number(slider.value));
    box.value = String(value);
    slider.setAttribute("aria-valuetext", `${value} ${field.unit}`);
    change(field.key, value);
    solve(field.recipe);
  });
  box.addEventListener("change", () => {
    change(field.key, box.value.trim() === "" ? null : box.value.trim());
    show(field);
    solve(field.recipe);
  });
  Object.assign(field, { box, slider });
  return el("div", { class: "field" }, el("label", { class: "row", for: id }, el("span", {}, field.name, field.unit ? el("span", { class: "unit" }, `, ${field.unit}`) : null), box),
    slider, el("p", { class: "error", id: `${id}-error`, "data-error": field.key }));
}

function makeLearnerField(field) {
  const id = `f-${field.key.replaceAll(".", "-")}`, named = { id, "data-key": field.key, "aria-describedby": `${id}-error` };
  field.box = field.choices ? el("select", named, ...Object.entries(field.choices).map(([value, text]) => el("option", { value }, text)))
    : el("input", { ...named, inputmode: "numeric" });
  field.box.addEventListener("change", () => { change(field.key, field.box.value.trim() || null); solve(true); });
  return el("div", {}, el("label", { class: "row", for: id }, el("span", {}, field.name), field.box), el("p", { class: "error", id: `${id}-error`, "data-error": field.key }));
}

// Keep what is being typed; all other fields show the values with which the scenario is planned.
function showResolved() {
  setUsual(fleet.scenario().usual_scheme);
  $("scheme").value = scheme();
  board.renamed();
  for (const { key, box, plain } of LEARNER) {
    if (box !== document.activeElement || box.value.trim() === "") box.value = String(at(fleet.scenario().scenario, key) ?? plain);
  }
}

// The middle of the slider is the file's value; both halves cover the same ratio.
function fromSlider(field, position) {
  const value = written(field) * field.span ** ((2 * position) / STEPS - 1);
  return field.whole ? Math.max(1, Math.round(value)) : Number(value.toPrecision(3));
}

function show(field) {
  const own = written(field), value = state.overrides.get(field.key) ?? own;
  const usable = own !== undefined;
  field.box.disabled = field.slider.disabled = !usable;
  field.box.value = usable ? String(value) : "";
  field.box.placeholder = usable ? "" : "from the fleet";
  const position = (STEPS / 2) * (1 + Math.log(Number(value) / own) / Math.log(field.span));
  if (Number.isFinite(position)) field.slider.value = String(Math.round(position));
  field.slider.setAttribute("aria-valuetext", `${value} ${field.unit}`);
}

export async function enter(query, entered) {
  if (!entered && `#/plan?${query}` === address() && base) return;
  if ([...query.keys()].length || !base) {
    let trouble = "";
    try {
      trouble = await restore(query);
    } catch {
      trouble = "This address contains no scenario; perhaps it is incomplete.";
    }
    await load(trouble);
  } else {
    history.replaceState(null, "", address());
  }
}

export function leave() { current?.abort(); waiting = false; }
export const redraw = () => { board.redraw(); budget.redraw(); };

async function load(trouble = "") {
  try {
    base = await post("/api/scenario", { ...source(), overrides: [] });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    notice(error.message);
    return;
  }
  notice(trouble);
  setUsual(base.usual_scheme);
  $("preset").value = state.opened ? FILE : state.document ? "" : state.preset;
  const mode = base.document.mode;
  fill($("mode"), ...(mode ? [] : [el("option", { value: "" }, "as the file says")]), ...MODES.map((name) => el("option", { value: name }, name)));
  $("mode").value = state.overrides.get("mode") ?? mode ?? "";
  $("scheme").value = scheme();
  for (const key of ["objective", "selection"]) $(key).value = state[key] ?? "";
  FIELDS.forEach(show);
  if (!state.overrides.size) fleet.take(base);
  solve(state.overrides.size > 0);
}

// The newest change wins, but a draft that is being computed is shown first, so that the charts follow a moving slider.
function solve(alsoFleet = false) {
  budget.stale();
  history.replaceState(null, "", address());
  if (alsoFleet) fleet.refresh(problem);
  if (current && !current.drafted) { waiting = true; return; }
  begin();
}

async function begin() {
  current?.abort();
  waiting = false;
  const own = new AbortController();
  current = Object.assign(own, { abort: own.abort.bind(own), drafted: false });
  const began = moved;
  moved = null;
  board.begin(JSON.stringify([{ ...source(), overrides: source().overrides.filter((text) => !text.startsWith("budget.")) }, question()]));
  const drafted = () => {
    if (own.drafted) return;
    own.drafted = true;
    if (waiting) begin();
  };
  try {
    const answers = stream("/api/plan", { ...source(), ...question() }, own.signal, (event) => {
      if (current !== own && event.stage !== "draft") return;
      problem(null);
      board.take(event);
      if (event.stage === "draft" || event.stage === "plan") {
        if (began !== null && !own.drafted) measure(began);
        drafted();
      }
    });
    await answers;
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused)) throw error;
    problem(error);
  }
  drafted();
}

// From the slider's event to the frame that shows the new plan; `benchmarks/studio_latency.py` reads it.
function measure(began) {
  requestAnimationFrame(() => setTimeout(() => performance.measure("slider-to-plan", { start: began, end: performance.now() }), 0));
}

// Show an error where its cause is: at the field, in the fleet's cell, or above the charts.
function problem(error) {
  const placed = flag($("plan-form"), error);
  fleet.problem(null);
  $("plan-error").hidden = true;
  if (error === null) return;
  board.stale();
  if (!placed && !fleet.problem(error)) {
    say($("plan-error"), error.message);
    $("plan-error").hidden = false;
  }
}

export function notice(text) {
  say($("notice"), text);
  $("notice").hidden = !text;
}

async function copy(text) {
  $("copied-text").textContent = text;
  $("copied-text").hidden = false;
  try {
    await navigator.clipboard.writeText(text);
    $("copied").textContent = toDownload() ? "Copied. Also download the YAML file into the same folder." : "Copied.";
  } catch {
    $("copied").textContent = "Select and copy:";
  }
}
