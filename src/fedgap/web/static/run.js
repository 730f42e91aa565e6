// The Run view: start, stop, resume, and watch a run as its rounds come in.
import { $, badge, facts, number, percent, say } from "./dom.js";
import { Refused, get, post } from "./server.js";
import { axis, clientAxis, colours, draw, tone } from "./charts.js";
import { notice } from "./plan.js";
import { drawTimeline } from "./timeline.js";
import * as newRun from "./new_run.js";
import { shortLabel, showRuns } from "./run_list.js";

const KINDS = { finished: "good", failed: "bad", running: "pending", preparing: "pending", stopping: "pending", stopped: "" };
const FAR_OFF = "It may be far off, because this plan is outside the range that the forecast was fitted to; `fedgap calibrate` fits it anew. ";
let listed = [], watched = null, info = null, rounds = [], events = null, ticker = null, due = null;

export const address = () => (watched ? `#/run?run=${encodeURIComponent(watched)}` : "#/run");

export async function prepare() {
  newRun.prepare(follow);
  $("stop").addEventListener("click", () => act("stop"));
  $("resume").addEventListener("click", () => act("resume"));
  $("to-compare").addEventListener("click", () => { location.hash = `#/compare?runs=${encodeURIComponent(sweepOf(watched).join(" "))}`; });
}

export async function enter(query, entered) {
  newRun.enter(entered);
  const asked = query.get("run") ?? (entered ? watched : null);
  await list();
  clearInterval(ticker);
  ticker = setInterval(list, 3000);
  if (asked) await watch(asked);
  if (query.has("new")) {
    history.replaceState(null, "", address());
    newRun.present();
  }
}

export function leave() {
  clearInterval(ticker);
  events?.close();
  events = null;
}

export const redraw = () => { if (info) drawAll(); };

async function list() {
  let runs;
  try {
    runs = await get("/api/runs");
  } catch (error) {
    if (error instanceof Refused) notice(error.message);
    return;
  }
  notice("");
  listed = runs;
  showRuns(runs, watched, follow);
}

// A run of a sweep is compared with the whole sweep.
function sweepOf(name) {
  const group = listed.find((one) => one.name === name)?.group;
  return group ? [name, ...listed.filter((one) => one.group === group && one.name !== name).map((one) => one.name)] : [name];
}

// Scroll to the run that was chosen and move the focus there; on a phone it would be out of view.
let wanted = null;
function follow(name) {
  wanted = name;
  const there = address() === `#/run?run=${encodeURIComponent(name)}`;
  location.hash = `#/run?run=${encodeURIComponent(name)}`;
  if (there) present();
}

function present() {
  wanted = null;
  $("watch").scrollIntoView({ block: "start" });
  $("watch-title").focus({ preventScroll: true });
}

async function act(what) {
  $("run-error").textContent = "";
  try {
    await post(`/api/runs/${encodeURIComponent(watched)}/${what}`);
    await list();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say($("watch-message"), error.message);
  }
}

async function watch(name) {
  events?.close();
  try {
    info = await get(`/api/runs/${encodeURIComponent(name)}`);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    watched = info = null;
    $("watch").hidden = true;
    notice(error.message);
    return;
  }
  watched = name;
  rounds = [];
  $("watch").hidden = false;
  $("watch-title").textContent = shortLabel(info);
  $("watch-group").textContent = info.group ? `in ${info.group}` : "";
  showState(info.state, info.message);
  drawAll();
  list();  // highlights it in the list
  if (wanted === name) present();
  events = new EventSource(`/api/runs/${encodeURIComponent(name)}/events`);
  events.addEventListener("rounds", async (event) => {
    rounds.push(...JSON.parse(event.data));
    if (!info.clients.length || !info.energy_budget_j) await inform(name);
    due ??= setTimeout(() => { due = null; drawAll(); }, 200);
  });
  events.addEventListener("reset", () => { rounds = []; });
  events.addEventListener("state", async (event) => {
    const now = JSON.parse(event.data);
    await inform(name);
    if (watched !== name) return;
    showState(now.state, now.message);
    drawAll();
    list();
  });
}

async function inform(name) {
  const news = await get(`/api/runs/${encodeURIComponent(name)}`).catch(() => null);
  if (news && watched === name) info = news;
}

function showState(name, message) {
  badge($("watch-state"), name, KINDS[name]);
  say($("watch-message"), message ?? "");
  $("stop").disabled = !["running", "preparing"].includes(name);
  $("resume").disabled = !["stopped", "failed"].includes(name);
}

function learnerText({ local_steps: steps, batches, upload_bits: bits }) {
  return `${steps} local step${steps > 1 ? "s" : ""}, batches ${batches.replaceAll("_", " ")}, ${bits}-bit uploads`;
}

function drawAll() {
  const last = rounds.at(-1), tested = rounds.filter((one) => one.test_accuracy !== undefined && one.test_accuracy !== null), newest = tested.at(-1);
  const [blue, orange] = colours(), x = rounds.map((one) => one.round + 1), xt = tested.map((one) => one.round + 1);
  facts($("watch-numbers"), [
    ["round", String(rounds.length), info.rounds_planned ? `of ${info.rounds_planned}` : "", info.rounds_planned ? rounds.length / info.rounds_planned : undefined],
    ["energy", last ? `${number(last.energy_total_j)} J` : "–", info.energy_budget_j ? `of ${number(info.energy_budget_j)}` : "", info.energy_budget_j && last ? last.energy_total_j / info.energy_budget_j : undefined],
    ["delay", last ? `${number(last.delay_total_s)} s` : "–", info.delay_budget_s ? `of ${number(info.delay_budget_s)}` : "", info.delay_budget_s && last ? last.delay_total_s / info.delay_budget_s : undefined],
    ["mini-batch loss", number(last?.train_loss)], ["test loss", number(newest?.test_loss)], ["accuracy (one seed)", percent(newest?.test_accuracy)],
    ["scheme", info.scheme ?? "–", info.data ? `on ${info.data}` : ""],
    ...(info.policy ? [["policy", info.policy, `planned again in ${rounds.filter((one) => one.planned_again).length} rounds`]] : []),
    ["server optimiser", info.learner?.optimiser ?? "–", info.learner ? learnerText(info.learner) : ""],
  ]);
  const line = (xs, ys, name, colour, more = {}) => ({ type: "scatter", mode: "lines", x: xs, y: ys, name, line: { color: colour, width: 2 }, cliponaxis: false, ...more });
  const across = axis("round", info.rounds_planned ? { range: [0, info.rounds_planned] } : {}), margin = { l: 54, r: 8, t: 24, b: 38 };
  draw($("chart-loss"), [line(x, rounds.map((one) => one.train_loss), "mini-batch", blue, { line: { color: blue, width: 1.2 } }), line(xt, tested.map((one) => one.test_loss), "test", orange, { mode: "lines+markers" })],
    { xaxis: across, yaxis: axis("loss", { rangemode: "tozero" }), showlegend: true, margin }, `Mini-batch loss ${number(last?.train_loss)} and test loss ${number(newest?.test_loss)} after ${rounds.length} rounds.`);
  draw($("chart-accuracy"), [line(xt, tested.map((one) => 100 * one.test_accuracy), "accuracy", orange, { mode: "lines+markers" })],
    { xaxis: across, yaxis: axis("%", { range: [0, 100] }), margin }, `Accuracy ${percent(newest?.test_accuracy)} after ${rounds.length} rounds.`);
  drawForecast(tested, xt, line, across, margin);
  drawTimeline(info, rounds);
  budget("chart-joules", "energy_total_j", info.energy_budget_j, "J");
  budget("chart-seconds", "delay_total_s", info.delay_budget_s, "s");
  const times = info.clients.map(() => 0);
  for (const one of rounds) for (const n of one.clients) times[n] = (times[n] ?? 0) + 1;
  const names = times.map((_, n) => (info.clients[n] ?? `${n}`).replace(/^client /, "")), keys = names.map((_, n) => String(n));
  const { room, ...places } = clientAxis(keys, names.map((name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name)), $("chart-participation"));
  draw($("chart-participation"), [{ type: "bar", x: keys, y: rounds.length ? times : [], customdata: names, marker: { color: blue }, hovertemplate: "%{customdata}: %{y} rounds<extra></extra>" }],
    { xaxis: places, yaxis: axis("rounds", { rangemode: "tozero" }), margin: { ...margin, b: room } }, `Rounds each client took part in: ${names.map((name, n) => `${name} ${times[n]}`).join(", ")}.`);

  function budget(id, key, most, unit) {
    const used = rounds.map((one) => one[key]);
    const traces = [line(x, used, "used", blue, { fill: "tozeroy" })];
    if (most && used.length) traces.push(line([0, info.rounds_planned ?? Math.max(1, rounds.length)], [most, most], "budget", tone("bad"), { line: { color: tone("bad"), width: 2, dash: "dash" } }));
    draw($(id), traces, { xaxis: across, yaxis: axis(unit, { rangemode: "tozero" }), showlegend: true, margin }, `${number(used.at(-1) ?? 0)} ${unit} used of ${number(most)} ${unit}.`);
  }
}

// The forecast that was planned with, what the run has shown, and the forecast corrected by its validation samples.
function drawForecast(tested, xt, line, across, margin) {
  const [blue, orange, green] = colours(), planned = info.forecast, held = tested.filter((one) => one.validation_accuracy != null), right = held.filter((one) => one.forecast);
  const steered = rounds.filter((one) => one.forecast_accuracy != null);
  const at = (rows) => rows.map((one) => one.round + 1), last = right.at(-1)?.forecast, end = info.rounds_planned ?? Math.max(1, rounds.length);
  $("chart-forecast").parentElement.hidden = !planned && !right.length && !steered.length;
  if ($("chart-forecast").parentElement.hidden) return;
  const band = (xs, low, high, colour) => [line(xs, low, "", colour, { line: { width: 0 }, hoverinfo: "skip", showlegend: false }),
    line(xs, high, "", colour, { line: { width: 0 }, fill: "tonexty", fillcolor: `${colour}33`, hoverinfo: "skip", showlegend: false })];
  const level = (value) => [100 * value, 100 * value], percents = (rows, key) => rows.map((one) => 100 * one.forecast[key]);
  const traces = [];
  if (planned) {
    if (planned.low !== null) traces.push(...band([0, end], level(planned.low), level(planned.high), blue));
    traces.push(line([0, end], level(planned.accuracy), "planned", blue, { line: { color: blue, width: 2, dash: "dash" } }));
  }
  if (right.length) {
    traces.push(...band(at(right), percents(right, "low"), percents(right, "high"), green));
    traces.push(line(at(right), percents(right, "accuracy"), "corrected", green, { mode: "lines+markers", marker: { size: 5 } }));
  }
  if (steered.length) traces.push(line(at(steered), steered.map((one) => 100 * one.forecast_accuracy), "policy expects", tone("ink"), { line: { color: tone("ink"), width: 1.5, dash: "dot" } }));
  traces.push(line(xt, tested.map((one) => 100 * one.test_accuracy), "test set", orange, { mode: "lines+markers", marker: { size: 5 } }));
  if (held.length) traces.push(line(at(held), held.map((one) => 100 * one.validation_accuracy), "validation", tone("soft"), { mode: "markers", marker: { size: 5, symbol: "x" } }));
  const lows = [planned?.low ?? planned?.accuracy, ...right.map((one) => one.forecast.low), ...steered.map((one) => one.forecast_accuracy)].filter((value) => value != null), bottom = Math.max(0, 100 * Math.min(...lows) - 12);
  draw($("chart-forecast"), traces, { xaxis: across, yaxis: axis("%", { range: [bottom, 100.5] }), showlegend: true, margin: { ...margin, t: 44 } },
    `${planned ? `Planned: ${percent(planned.accuracy, 2)}. ` : ""}${steered.length ? `The policy now expects ${percent(steered.at(-1).forecast_accuracy, 2)}. ` : ""}${last ? `Corrected by what the run has shown: ${percent(last.accuracy, 2)}, between ${percent(last.low, 2)} and ${percent(last.high, 2)}. ` : ""}Measured: ${percent(tested.at(-1)?.test_accuracy, 2)}.`);
  const sure = planned?.confidence ?? last?.confidence;
  say($("forecast-note"), (sure ? `The shaded range contains the accuracy with ${percent(sure, 0)} confidence. ` : "") + (planned ? `Forecast: ${planned.origin}. ${planned.outside?.length ? FAR_OFF : ""}` : "") + (right.length ? "" : "The forecast is not corrected during this run, because that needs validation samples (`data.validation`) and a forecast in the scenario."));
}
