// The budgets for a target accuracy: the form, the three answers, and the frontier.
import { $, badge, el, number, percent, say, table } from "./dom.js";
import { Refused, stream } from "./server.js";
import { axis, colours, draw, tone } from "./charts.js";
import { source } from "./scenario.js";

const NAMES = { both: "both in proportion", least_energy: "least joules", least_delay: "least seconds" };
let answer = null, current = null, use = null;

export function prepare(useBudgets) {
  use = useBudgets;
  $("budget-form").addEventListener("submit", (event) => { event.preventDefault(); find(); });
}

// When the scenario changes, the answer shown is that of the previous scenario.
export function stale() {
  current?.abort();
  if (answer || current) badge($("budget-stage"), answer ? "for the previous scenario" : "", answer ? "bad" : "");
  current = null;
}

export const redraw = () => { if (answer) show(); };

async function find() {
  current?.abort();
  const own = current = new AbortController();
  $("budget-error").textContent = "";
  badge($("budget-stage"), "searching", "pending");
  try {
    const body = { ...source(), accuracy: Number($("budget-accuracy").value) / 100, confidence: Number($("budget-confidence").value) / 100 };
    await stream("/api/budget", body, own.signal, (event) => {
      if (event.stage === "budget") {
        answer = { ...event, frontier: [] };
        badge($("budget-stage"), "frontier pending", "pending");
        show();
      } else if (event.stage === "budget_point") {
        answer.frontier.push(event);
        show();
      } else if (event.stage === "failed") {
        refuse(event.message);
      }
    });
    if (current === own && answer && !$("budget-error").textContent) badge($("budget-stage"), "found", "good");
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused)) throw error;
    refuse(error.message);
  }
  if (current === own) current = null;
}

function refuse(message) {
  const some = current && $("budget-stage").textContent === "frontier pending";  // keep the answers, without the rest of the frontier
  if (!some) answer = null;
  $("budget-result").hidden = !some;
  badge($("budget-stage"), some ? "frontier incomplete" : "no answer", "bad");
  say($("budget-error"), message);
}

function show() {
  $("budget-result").hidden = false;
  say($("budget-sentence"), answer.sentence);
  const sure = `accuracy with ${percent(answer.confidence, 0)} confidence`;
  const rows = Object.entries(NAMES).map(([key, name]) => {
    const one = answer.answers[key];
    if (!one) return el("tr", { class: "dim" }, el("td", {}, name), el("td", { colspan: "7" }, "no amount is enough"));
    const button = el("button", { type: "button", class: "link", onclick: () => use({ "budget.energy_j": one.energy_j, "budget.delay_s": one.delay_s }) }, "use these budgets");
    const [low, high] = one.interval, of = (value, unit) => `${number(low * value, 3)} to ${number(high * value, 3)} ${unit}`;
    const spans = [...(key === "least_delay" ? [] : [of(one.energy_j, "J")]), ...(key === "least_energy" ? [] : [of(one.delay_s, "s")])];
    return el("tr", {}, ...[name, `${number(one.energy_j)} J`, `${number(one.delay_s)} s`, percent(one.plan.forecast.accuracy, 2), percent(one.surely, 2), spans.join(", "), String(one.plan.rounds)].map((text) => el("td", {}, text)), el("td", {}, button));
  });
  table($("budget-table"), ["answer", "energy", "delay", "forecast", sure, `enough with ${percent(1 - answer.confidence, 0)} to ${percent(answer.confidence, 0)} confidence`, "rounds", ""], rows, "Smallest budgets for the target");
  const [blue, orange, green] = colours(), pairs = answer.frontier, all = Object.entries(answer.answers).filter(([, one]) => one);
  const spot = (one) => `${number(one.delay_s)} s, ${number(one.energy_j)} J: ${one.plan.rounds} rounds, forecast ${percent(one.plan.forecast.accuracy, 2)}`;
  draw($("chart-budget"), [
    { type: "scatter", mode: "lines+markers", name: "just enough", x: pairs.map((one) => one.delay_s), y: pairs.map((one) => one.energy_j), line: { color: blue, width: 2, shape: "hv" }, hovertext: pairs.map(spot), hoverinfo: "text" },
    { type: "scatter", mode: "markers", name: "the answers", x: all.map(([, one]) => one.delay_s), y: all.map(([, one]) => one.energy_j), marker: { size: 11, symbol: "diamond", color: green }, hovertext: all.map(([key, one]) => `${NAMES[key]}: ${spot(one)}`), hoverinfo: "text" },
    { type: "scatter", mode: "markers", name: "the scenario's budgets", x: [answer.budget.delay_s], y: [answer.budget.energy_j], marker: { size: 15, symbol: "star", color: orange, line: { width: 1, color: tone("ink") } }, hovertemplate: "the scenario's budgets: %{x:.4g} s, %{y:.4g} J<extra></extra>" },
  ], { xaxis: axis("delay budget, s", { type: "log" }), yaxis: axis("energy budget, J", { type: "log" }), showlegend: true, margin: { l: 60, r: 12, t: 30, b: 40 } }, answer.sentence);
  say($("budget-note"), [...answer.warnings, `Forecast: ${answer.origin}.`].join(" "));
}
