// The form that starts a run with the Plan view's scenario; data and model are chosen by name, or are those of the opened experiment.
import { $, el, fill, flag, say } from "./dom.js";
import { Refused, post } from "./server.js";
import { NAMES, OPENED, question, quoted, scheme, source, state, title, toDownload } from "./scenario.js";
import { scenario } from "./fleet.js";

const USUAL = { data: "embedded", model: "lenet5", aggregator: "mean", concentration: 5, seed: 0, evaluate_every: 10 };
const PRESET = { name: "embedded", scenario: "paper-mnist", clients: 10 };  // what `fedgap train` is given without an experiment
let started = null;

const value = (id) => $(`run-${id}`).value.trim();
const own = () => Boolean(OPENED.training) && $("run-opened").checked;

export function prepare(follow) {
  started = follow;
  fill($("run-scheme"), ...NAMES.schemes.map((name) => el("option", { value: name }, name)));
  for (const [id, names] of [["data", NAMES.data], ["model", NAMES.models], ["aggregator", NAMES.aggregators]]) {
    fill($(`run-${id}`), ...names.map((name) => el("option", { value: name }, name)));
  }
  fill($("run-policy"), el("option", { value: "" }, "the plan"), ...NAMES.policies.map((name) => el("option", { value: name }, name)));
  const { training } = OPENED;
  $("run-own").hidden = !training;
  $("run-how").hidden = Boolean(training);
  if (training) {
    $("run-own-text").textContent = `data (${training.data_name}), model (${training.model_name}) and all other settings from ${OPENED.name}`;
    for (const key of ["data", "model", "aggregator", "concentration", "policy", "seed", "evaluate_every"]) if (training[key] !== null) $(`run-${key}`).value = String(training[key]);
  }
  $("run-opened").addEventListener("change", showOwn);
  $("run-form").addEventListener("submit", (event) => { event.preventDefault(); start(); });
  $("run-copy").addEventListener("click", copy);
  showOwn();
}

// Hide the fields whose values come from the experiment.
function showOwn() {
  for (const id of ["data", "model", "aggregator", "concentration"]) $(`run-${id}`).closest("label").hidden = own();
}

export function enter(entered) {
  $("run-scenario").textContent = title();
  $("run-scheme").value = scheme();
  $("run-rounds").placeholder = "as planned";
  if (!entered) return;
  $("run-rounds").value = state.overrides.get("rounds") ?? "";
  if (!OPENED.training) $("run-concentration").value = state.overrides.get("labels.concentration") ?? scenario()?.document.labels?.concentration ?? USUAL.concentration;
}

export function present() {
  $("run-form").scrollIntoView({ block: "nearest" });
  $("run-start").focus({ preventScroll: true });
}

// The changes to the scenario, with the number of rounds from the form.
function changes() {
  const rounds = value("rounds"), kept = source().overrides.filter((text) => !rounds || !text.startsWith("rounds="));
  return rounds ? [...kept, `rounds=${rounds}`] : kept;
}

async function start() {
  flag($("run-form"), null);
  $("run-error").textContent = "";
  const { overrides, ...from } = source();
  const body = { ...from, overrides: changes(), opened: own(), data: value("data"), model: value("model"), aggregator: value("aggregator"), policy: value("policy") || null, ...question(), scheme: value("scheme"),
                 seed: Number(value("seed") || USUAL.seed), concentration: Number(value("concentration") || USUAL.concentration), evaluate_every: Number(value("evaluate_every") || USUAL.evaluate_every), name: value("name") || null };
  try {
    const { name } = await post("/api/runs", body);
    started(name);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (!flag($("run-form"), error)) say($("run-error"), error.message);
  }
}

// The command that trains the same run. An experiment's own rounds, budgets and learner take precedence over its scenario's.
export function trainCommand() {
  const reach = (text) => (own() && state.opened && /^(rounds|budget\.|learning\.|mode=)/.test(text) ? text : `scenario.${text}`);
  const words = ["fedgap", "train", own() ? OPENED.name : PRESET.name], usual = own() ? { ...USUAL, ...OPENED.training } : USUAL;
  if (toDownload() && !(own() && state.opened)) words.push("scenario=scenario.yaml", ...(own() ? ["rounds=", "budget=", "learning="] : []), ...(value("rounds") ? [`rounds=${value("rounds")}`] : []));
  else words.push(...(state.opened ? (own() ? [] : [`scenario=${OPENED.name}`]) : state.preset === PRESET.scenario && !own() ? [] : [`scenario=${state.preset}`]), ...changes().map(reach));
  if (!own() && (scenario()?.names.length ?? PRESET.clients) !== PRESET.clients) words.push("partition.target_size=");
  const told = { ...(own() ? {} : { "data.name": "data", "model.name": "model", "learning.aggregator": "aggregator", "partition.concentration": "concentration" }), policy: "policy", seed: "seed", evaluate_every: "evaluate_every" };
  for (const [key, id] of Object.entries(told)) if (value(id) && value(id) !== String(usual[id])) words.push(`${key}=${value(id)}`);
  for (const [key, name] of Object.entries({ ...question(), scheme: value("scheme") })) if (name) words.push(`${key}=${name}`);
  return words.map(quoted).join(" ");
}

async function copy() {
  $("run-copied-text").textContent = trainCommand();
  $("run-copied-text").hidden = false;
  const beside = toDownload() && !(own() && state.opened) ? " Also download the YAML file from the Plan view into the same folder." : "";
  try {
    await navigator.clipboard.writeText(trainCommand());
    $("run-copied").textContent = `Copied.${beside}`;
  } catch {
    $("run-copied").textContent = `Select and copy:${beside}`;
  }
}
