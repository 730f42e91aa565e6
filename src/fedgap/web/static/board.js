// The results of the Plan view: numbers, charts, schemes, frontier, and advice if no plan fits.
import { $, badge, el, facts, fill, number, percent, say, si, table } from "./dom.js";
import { axis, clientAxis, colourScale, colours, dark, draw, tone } from "./charts.js";
import { PAPER_SCHEMES, address, scheme, state } from "./scenario.js";
import * as fleet from "./fleet.js";

let asked = "", plan = null, segment = 0, schemes = new Map(), grid = null, points = new Map(), pick = null, certified = false;

const CHARTS = ["chart-clients", "chart-time", "chart-energy", "chart-terms"];
const dim = (yes) => { for (const id of ["numbers", ...CHARTS]) $(id).classList.toggle("past", yes); };

export function prepare(chooseScheme) {
  pick = chooseScheme;
  for (const id of CHARTS) seen.observe($(id));
}

// The frontier's points stay valid while only the budgets change; after any other change they are removed.
export function begin(question) {
  if (question !== asked) points = new Map();
  asked = question;
  badge($("plan-stage"), "planning", "pending");
  badge($("schemes-stage"), "pending", "pending");
  badge($("frontier-stage"), "pending", "pending");
  schemes = new Map();
  fresh = 0;
}

export function stale() {
  for (const id of ["plan-stage", "schemes-stage", "frontier-stage"]) badge($(id), "outdated: the inputs have an error", "bad");
  dim(true);
}

export function take(event) {
  if (event.stage === "draft") {
    certified = false;
    if (event.plan) show(event.plan);
    else searching();
    drawSchemes();
  } else if (event.stage === "plan") {
    certified = true;
    show(event.plan);
  } else if (event.stage === "scheme") {
    schemes.set(event.plan.scheme, event.plan);
    drawSchemes();
    if (schemes.size === PAPER_SCHEMES.length) badge($("schemes-stage"), "all solved", "good");
  } else if (event.stage === "grid") {
    const same = grid && JSON.stringify([grid.energy_j, grid.delay_s]) === JSON.stringify([event.energy_j, event.delay_s]);
    grid = event;
    if (!same) points = new Map();
    fresh = 0;
    later(drawFrontier);
  } else if (event.stage === "frontier") {
    points.set(`${event.energy_j} ${event.delay_s}`, event);
    fresh += 1;
    badge($("frontier-stage"), `pending, ${fresh} of ${grid.energy_j.length * grid.delay_s.length}`, "pending");
    later(drawFrontier);
  } else if (event.stage === "failed") {
    const parts = fresh ? `${fresh} of ${grid.energy_j.length * grid.delay_s.length} solved; ` : "";
    for (const id of ["plan-stage", "schemes-stage", "frontier-stage"]) if ($(id).classList.contains("pending")) badge($(id), `${id === "frontier-stage" ? parts : ""}${event.message}`, "bad");
  } else if (event.stage === "done" && fresh) {
    if ($("frontier-stage").classList.contains("pending")) badge($("frontier-stage"), "all solved", "good");
    drawFrontier();
  }
}

let fresh = 0;
const timers = new Map();
function later(work) {
  if (!timers.has(work)) timers.set(work, setTimeout(() => { timers.delete(work); work(); }, 150));
}

// The names of the clients may arrive after the plan.
let named = "";
export function renamed() {
  const names = JSON.stringify(fleet.names()), other = names !== named;
  named = names;
  if (!other || !plan?.segments.length) return;
  drawPlan();
  later(drawTable);
}

export function redraw() {
  if (plan) show(plan, true);
  drawFrontier();
}

// No plan with a single selection fits, but a mix of several does. Until it is found, the previous plan stays, dimmed.
function searching() {
  badge($("plan-stage"), "pending: searching for several selections that fit together", "pending");
  dim(true);
}

function show(answer, force = false) {
  plan = answer;
  const some = answer.segments.length > 0;
  const longest = answer.segments.reduce((best, one, i) => (one.rounds > answer.segments[best].rounds ? i : best), 0);
  segment = state.segment !== null && state.segment < answer.segments.length ? state.segment : longest;
  if (!certified && !some) badge($("plan-stage"), "does not fit; being confirmed", "pending");
  else if (!certified) badge($("plan-stage"), "draft; optimality being checked", "pending");
  else if (answer.status === "optimal") badge($("plan-stage"), "certified optimal", "good");
  else if (answer.status === "feasible") badge($("plan-stage"), "feasible", "good");
  else badge($("plan-stage"), "does not fit", "bad");
  advice(answer);
  if (some || certified) for (const id of CHARTS) $(id).closest(".card").hidden = !some;
  dim(false);
  if (!some && !certified) for (const id of CHARTS) $(id).classList.add("past");
  const { energy_j: energy, delay_s: delay } = answer.budget;
  lead(answer);
  prices(answer);
  facts($("numbers"), some ? [
    ["bound θ", number(answer.theta, 5)],
    ["gap to the optimum", answer.gap === null ? (certified ? "–" : "pending") : percent(Math.max(0, answer.gap), 2), answer.objective === "forecast" && answer.gap !== null ? "of the error" : ""],
    ["energy", `${number(answer.energy_j)} J`, `of ${number(energy)}`, answer.energy_j / energy],
    ["delay", `${number(answer.delay_s)} s`, `of ${number(delay)}`, answer.delay_s / delay],
    ["clients per round", [...new Set(answer.segments.map((one) => one.clients.filter((c) => c.selected).length))].join(", "), `of ${fleet.names().length || answer.clients.rounds.length}`],
    ["rounds", String(answer.rounds), answer.rounds < answer.budget.rounds ? `of ${answer.budget.rounds}` : ""],
  ] : [["energy budget", `${number(energy)} J`], ["delay budget", `${number(delay)} s`], ["rounds", String(answer.budget.rounds)]]);
  const figure = JSON.stringify([answer.segments, answer.budget, answer.terms, certified || some]);
  if (figure === drawn && !force) { drawGap(); return; }  // the draft was already the certified plan, so nothing changes
  drawn = figure;
  drawSegments();
  if (some) drawPlan();
  later(drawTable);
  later(drawFrontier);
}

let drawn = null;
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.dataset.seen = entry.isIntersecting ? "1" : "";
    if (entry.isIntersecting) overdue.get(entry.target)?.();
  }
}, { rootMargin: "50px" });
const overdue = new Map();

// Charts that are visible are drawn at once, the others a moment later, so that a slider reacts quickly.
function chart(id, work) {
  const element = $(id);
  overdue.set(element, () => { overdue.delete(element); work(); });
  if (element.dataset.seen) overdue.get(element)();
  else idle ??= setTimeout(() => { idle = null; for (const [, draw] of [...overdue]) draw(); }, 120);
}
let idle = null;

// The most important number first: the forecast accuracy, or why there is none.
function lead(answer) {
  const { forecast } = answer;
  $("lead").hidden = !forecast && !answer.no_forecast;
  $("lead-value").textContent = forecast ? percent(forecast.accuracy, 1) : "";
  say($("lead-range"), !forecast ? answer.no_forecast ?? ""
    : forecast.low === null ? "its uncertainty is not known" : `${percent(forecast.low, 1)} to ${percent(forecast.high, 1)} with ${percent(forecast.confidence, 0)} confidence`);
  say($("lead-remark"), forecast ? forecast.remark || `Forecast: ${forecast.origin}.` : "");
}

// Two digits, without a power of ten unless there are too many zeros.
function plain(value) {
  const digits = 1 - Math.floor(Math.log10(value));
  return digits < 8 && value < 1e6 ? value.toFixed(Math.max(0, digits)) : number(value, 2);
}

// What one more joule or second would gain, from the solver's prices.
function prices(answer) {
  const known = answer.prices, byForecast = answer.objective === "forecast", goal = answer.objective === "theta" ? "θ" : `the objective (${answer.objective})`;
  const worth = (price) => (!(price < 0) ? "no gain" : byForecast ? `+${plain(-100 * price)} percentage points of forecast accuracy` : `${goal} lower by ${plain(-price)}`);
  $("prices").hidden = !answer.segments.length;
  $("prices").textContent = !known ? (certified ? "It is not known what one more joule or second would bring." : "What one more joule or second would bring: pending.")
    : `One more joule would bring: ${worth(known.energy)}. One more second would bring: ${worth(known.delay)}.${byForecast ? " (With the same number of rounds.)" : ""}`;
}

// Four digits, rounded up, so that the advised budget is large enough.
function up(value) {
  const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
  return number(Math.ceil(value / unit) * unit, 4);
}

function advice(answer) {
  const place = $("advice");
  place.hidden = answer.status !== "infeasible" && !answer.reason;
  if (place.hidden) return;
  const least = answer.least_budget, needs = [];
  if (least?.delay_s) needs.push(`needs ${up(least.delay_s)} s (delay budget ${number(answer.budget.delay_s)} s)`);
  if (least?.energy_j) needs.push(`needs ${up(least.energy_j)} J (energy budget ${number(answer.budget.energy_j)} J)`);
  const reason = el("span");
  say(reason, answer.reason ?? "");
  fill(place, el("strong", {}, needs.length ? `These budgets are too small: the plan ${needs.join(" or ")}.` : ""), " ", reason);
}

function drawSegments() {
  const kinds = plan.segments;
  fill($("segments"), ...(kinds.length < 2 ? [] : kinds.map((one, i) => el("label", {}, el("input", { type: "radio", name: "segment", checked: i === segment,
    onchange: () => { segment = state.segment = i; history.replaceState(null, "", address()); drawPlan(); drawTable(); } }), ` ${one.rounds} ${one.rounds === 1 ? "round" : "rounds"} with ${one.clients.filter((c) => c.selected).length} clients`))));
}

// Bars are placed by the client's number, because shortened names may be equal.
const full = (n) => fleet.names()[n] ?? `client ${n}`;
const short = (n) => { const name = full(n).replace(/^client /, ""); return name.length > 12 ? `${name.slice(0, 11)}…` : name; };
const places = (numbers, chart, last) => clientAxis(numbers.map(String), numbers.map(short), $(chart), last);
const everybody = () => plan.clients.rounds.map((_, n) => n);

const MARGIN = { l: 52, r: 8, t: 6, b: 38 };

function drawPlan() {
  chart("chart-clients", drawClients);
  chart("chart-time", drawTime);
  chart("chart-energy", drawEnergy);
  chart("chart-terms", drawTerms);
}

function drawClients() {
  const one = plan.segments[segment], [blue, orange, green] = colours(), all = everybody(), x = all.map(String), on = one.clients.map((c) => c.selected);
  const only = (values) => values.map((value, n) => (on[n] ? value : null)), { room, ...across } = places(all, "chart-clients");
  const chosen = all.filter((n) => on[n]);
  const bar = (y, name, colour, text, more = {}) => ({ type: "bar", x, y, marker: { color: colour }, hovertext: text.map((value, n) => `${full(n)}: ${name} ${value}`), hoverinfo: "text", ...more });
  const unpruned = Math.max(...one.clients.map((c) => c.pruning_ratio)) < 1e-9;
  draw($("chart-clients"), [
    { type: "scatter", mode: "markers", x, y: x.map(() => "selected"), yaxis: "y4", hoverinfo: "skip", marker: { size: Math.max(3, Math.min(11, (0.75 * ($("chart-clients").clientWidth - 80)) / all.length)), color: on.map((yes) => (yes ? blue : "rgba(0,0,0,0)")), line: { width: all.length > 20 ? 1 : 1.5, color: on.map((yes) => (yes ? blue : tone("soft"))) } } },
    bar(only(one.clients.map((c) => c.pruning_ratio)), "pruning λ", blue, one.clients.map((c) => percent(c.pruning_ratio)), { yaxis: "y3" }),
    bar(only(one.clients.map((c) => c.power_w * 1e3)), "power", orange, one.clients.map((c) => si(c.power_w, "W")), { yaxis: "y2" }),
    bar(only(one.clients.map((c) => c.frequency_hz / 1e6)), "frequency", green, one.clients.map((c) => si(c.frequency_hz, "Hz"))),
  ], {
    xaxis: { ...across, anchor: "y" }, yaxis: axis("clock, MHz", { domain: [0, 0.27], nticks: 4, rangemode: "tozero" }), yaxis2: axis("power, mW", { domain: [0.32, 0.58], nticks: 4, rangemode: "tozero" }),
    yaxis3: axis("pruned λ", { domain: [0.63, 0.89], nticks: 4, rangemode: "tozero", ...(unpruned ? { range: [0, 0.1] } : {}) }),
    yaxis4: axis("", { domain: [0.93, 1], showgrid: false, zeroline: false, tickfont: { size: 11 } }), margin: { ...MARGIN, l: 66, b: room }, bargap: 0.35,
  }, `${chosen.length} of ${x.length} clients are selected: ${chosen.map(full).join(", ")}. Their pruning ratio, power and frequency are in the table below.`);
}

function drawTime() {
  const one = plan.segments[segment], [blue, orange, green] = colours(), chosen = everybody().filter((n) => one.clients[n].selected), x = chosen.map(String);
  const cost = one.cost, last = cost.stragglers, { room, ...across } = places(chosen, "chart-time");
  const seconds = (values, name, colour) => ({ type: "bar", x, y: chosen.map((n) => values[n] * 1e3), customdata: chosen.map(full), marker: { color: colour }, hovertemplate: `%{customdata}: ${name} %{y:.4g} ms<extra></extra>` });
  draw($("chart-time"), [seconds(cost.download_s, "download", green), seconds(cost.compute_s, "compute", blue), seconds(cost.upload_s, "upload", orange),
    { type: "scatter", mode: "markers", x: last.map(String), y: last.map((n) => (cost.compute_s[n] + cost.upload_s[n] + cost.download_s[n]) * 1e3), customdata: last.map(full), marker: { symbol: "triangle-down", size: 11, color: tone("bad"), line: { width: 1, color: tone("card") } }, hovertemplate: "others wait for %{customdata}: %{y:.4g} ms<extra></extra>", cliponaxis: false }],
  { barmode: "stack", xaxis: across, yaxis: axis("ms"), margin: { ...MARGIN, b: room } },
  `A round takes ${number(cost.delay_s * 1e3)} ms. ${last.length ? `The others wait for ${last.map(full).join(", ")}.` : "All clients finish at about the same time."}`);
  $("straggler-key").hidden = !last.length;
  $("time-note").textContent = last.length ? "" : "No straggler: all clients finish at about the same time.";
}

function drawEnergy() {
  const [blue, orange, green] = colours(), numbers = everybody(), x = [...numbers.map(String), "server"], all = plan.clients, { room, ...across } = places(numbers, "chart-energy", ["server"]);
  const joules = (y, name, colour) => ({ type: "bar", x, y, customdata: [...numbers.map(full), "server"], marker: { color: colour }, hovertemplate: `%{customdata}: ${name} %{y:.4g} J<extra></extra>` });
  draw($("chart-energy"), [joules([...all.compute_j, 0], "compute", blue), joules([...all.upload_j, 0], "upload", orange), joules([...all.upload_j.map(() => 0), all.broadcast_j], "broadcast", green)],
    { barmode: "stack", xaxis: across, yaxis: axis("J"), margin: { ...MARGIN, r: 22, b: room } },
    `Energy ${number(plan.energy_j)} J of ${number(plan.budget.energy_j)} J; the server's broadcasts take ${number(all.broadcast_j)} J.`);
}

function drawTerms() {
  const words = { alpha: "initial loss α", clients: "number of clients", generalization: "generalization", pruning: "pruning" };
  const names = Object.keys(words).filter((key) => plan.terms[key] !== null), values = names.map((key) => plan.terms[key]), total = plan.theta ?? values.reduce((sum, value) => sum + value, 0), most = Math.max(...values);
  draw($("chart-terms"), [{ type: "bar", orientation: "h", y: names.map((key) => words[key]), x: values, marker: { color: colours().slice(0, 4) },
    text: values.map((value) => `${number(value, 4)} (${percent(value / total, 1)})`), textposition: values.map((value) => (value > 0.55 * most ? "inside" : "outside")), insidetextfont: { color: tone("card") }, hoverinfo: "y+text", cliponaxis: false }],
  { xaxis: axis("", { nticks: 6 }), yaxis: axis("", { autorange: "reversed", automargin: true }), margin: { l: 20, r: 20, t: 4, b: 26 } },
  `θ is ${number(plan.theta, 5)}: ${names.map((key) => `${words[key]} ${number(plan.terms[key])}`).join(", ")}.`);
  drawGap();
}

function drawGap() {
  const none = plan.objective !== "theta" && plan.gap !== null ? "The certificate of this plan is about its objective, not about θ." : "There is no certificate for this plan.";
  $("gap-text").textContent = plan.lower_bound === null ? (certified ? none : "The certificate is being computed.")
    : `Certificate: no plan has a θ below ${number(plan.lower_bound, 6)}, and this plan is at most ${percent(Math.max(0, plan.gap), 3)} above that.`;
  const steps = Math.max(1, ...(plan.segments ?? []).map((segment) => segment.local_steps ?? 1));
  if (steps > 1) $("gap-text").textContent += ` θ bounds the training with one gradient step per client and round; it does not cover the ${steps} local steps of these rounds.`;
}

function drawTable() {
  if (!plan.segments.length) { fill($("plan-table")); return; }
  const one = plan.segments[segment], cost = one.cost, last = new Set(cost.stragglers);
  const rows = one.clients.map((client, n) => el("tr", client.selected ? {} : { class: "dim" }, ...[
    fleet.names()[n] ?? `client ${n}`, client.selected ? "yes" : "no", ...(client.selected ? [percent(client.pruning_ratio, 2), si(client.power_w, "W"), si(client.frequency_hz, "Hz"),
      si(cost.compute_s[n], "s"), si(cost.upload_s[n], "s"), si(cost.download_s[n], "s"), last.has(n) ? "yes" : ""] : ["", "", "", "", "", "", ""]),
    String(plan.clients.rounds[n]), si(plan.clients.compute_j[n] + plan.clients.upload_j[n], "J")].map((text) => el("td", {}, text))));
  table($("plan-table"), ["client", "selected", "pruning λ", "power", "frequency", "compute", "upload", "download", "straggler", "total rounds", "total energy"], rows, "The plan, client by client");
}

function drawSchemes() {
  const found = [...schemes.values()], best = Math.min(...found.map((one) => one.theta).filter((value) => value !== null)), forecast = found.some((one) => one.accuracy !== null);
  const compared = (theta) => (theta <= best * (1 + 1e-9) ? "best" : theta < 10 * best ? `+${percent(theta / best - 1)}` : `× ${number(theta / best, 3)}`);
  const rows = PAPER_SCHEMES.map((key) => {
    const one = schemes.get(key);
    const button = el("button", { type: "button", class: "link", onclick: () => pick(key), "aria-pressed": String(key === scheme()) }, key);
    const cells = !one ? ["pending", "", "", "", ""] : [one.theta === null ? "∞" : number(one.theta, 5), one.theta === null ? "–" : compared(one.theta),
      one.rounds ? `${number(one.energy_j)} J` : "–", one.rounds ? `${number(one.delay_s)} s` : "–", one.rounds ? [...new Set(one.selected)].join(", ") : "–"];
    if (forecast) cells.push(one ? percent(one.accuracy) : "");
    const row = [el("tr", key === scheme() ? { class: "chosen" } : {}, el("td", {}, button), ...cells.map((text) => el("td", {}, text)))];
    if (one && one.theta === null) row.push(el("tr", { class: "dim" }, el("td", { colspan: String(cells.length + 1), class: "words" }, el("div", {}, one.reason))));
    return row;
  }).flat();
  table($("schemes"), ["scheme", "θ", "θ compared with the best", "energy", "delay", "clients", ...(forecast ? ["forecast accuracy"] : [])], rows, "The paper’s six schemes");
  $("schemes-note").textContent = plan?.objective === "forecast" ? "These schemes minimise θ. The plan above was chosen by its forecast accuracy instead, so its θ may be larger than theirs." : "";
}

// The range of the grid and of the current budgets, so that the axes stay fixed while cells are added.
function span(budgets, here) {
  const step = Math.sqrt(budgets[1] / budgets[0]), all = [budgets[0] / step, budgets.at(-1) * step, here / 1.1, here * 1.1].map(Math.log10);
  return [Math.min(...all), Math.max(...all)];
}

function drawFrontier() {
  if (!grid || !plan) return;
  // With the objective forecast the chart shows the accuracy, otherwise the bound θ.
  const byForecast = plan.objective === "forecast", value = (point) => (byForecast ? (point?.accuracy ?? null) && 100 * point.accuracy : point?.theta ?? null);
  const z = grid.energy_j.map((e) => grid.delay_s.map((d) => value(points.get(`${e} ${d}`))));
  const none = [...points.values()].filter((point) => value(point) === null), values = z.flat().filter((one) => one !== null);
  const { delay_s: delay, energy_j: energy } = plan.budget, wide = $("chart-frontier").clientWidth > 420;
  const scale = colourScale(values, (mark) => number(mark, 3)), coloured = z.map((row) => row.map((one) => (one === null ? null : scale.of(one))));
  const shades = dark() ? [[0, "#7cc8a4"], [0.5, "#3b7f9e"], [1, "#2b3a55"]] : [[0, "#0b6b57"], [0.5, "#6fb3c8"], [1, "#e3edf5"]];
  const told = z.map((row) => row.map((one) => (one === null ? "" : byForecast ? `${number(one, 4)} %` : `θ ${number(one, 5)}`)));
  const traces = [{ type: "heatmap", x: grid.delay_s, y: grid.energy_j, z: coloured, text: told, colorscale: shades, reversescale: byForecast,
    colorbar: { title: { text: byForecast ? "%" : "θ" }, thickness: wide ? 12 : 8, outlinewidth: 0, ...scale.bar }, showscale: values.length > 0, hovertemplate: "%{x:.4g} s, %{y:.4g} J: %{text}<extra></extra>", hoverongaps: false, zsmooth: false }];
  const here = byForecast ? (plan.forecast ? 100 * plan.forecast.accuracy : null) : plan.theta;
  if (here !== null && values.some((v) => v > here) && values.some((v) => v < here)) {
    const contours = { coloring: "none", start: scale.of(here), end: scale.of(here), size: 1 };
    for (const line of [{ color: tone("card"), width: 5 }, { color: tone("ink"), width: 2, dash: "dash" }])  // visible on any colour
      traces.push({ type: "contour", x: grid.delay_s, y: grid.energy_j, z: coloured, showscale: false, hoverinfo: "skip", connectgaps: false, contours, line });
  }
  traces.push({ type: "scatter", mode: "markers", x: none.map((p) => p.delay_s), y: none.map((p) => p.energy_j), marker: { symbol: "x-thin", size: 8, line: { width: 1.5, color: tone("soft") } }, hovertemplate: "%{x:.4g} s, %{y:.4g} J: no plan fits<extra></extra>" },
    { type: "scatter", mode: "markers", x: [delay], y: [energy], marker: { symbol: "star", size: 17, color: colours()[1], line: { width: 1.5, color: tone("ink") } }, hovertemplate: "these budgets: %{x:.4g} s, %{y:.4g} J<extra></extra>" });
  const side = (title, budgets, at) => axis(title, { type: "log", range: span(budgets, at), tickvals: budgets.filter((_, i) => i % 3 === 0), ticktext: budgets.filter((_, i) => i % 3 === 0).map((one) => number(one, 3)), title: { text: title, standoff: 8, font: { size: 12 } } });
  draw($("chart-frontier"), traces, { xaxis: side("delay budget, s", grid.delay_s, delay), yaxis: side("energy budget, J", grid.energy_j, energy), margin: { l: 68, r: 8, t: 8, b: 44 },
    annotations: points.size ? [] : [{ text: "pending", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.8, font: { color: tone("soft"), size: 13 } }] },
    `${byForecast ? "Forecast accuracy" : "θ"} over ${points.size} pairs of budgets; for ${none.length} of them no plan fits. The current pair is ${number(delay)} s and ${number(energy)} J.`);
  $("frontier-note").textContent = `${byForecast ? "Forecast accuracy" : "θ"} of the best plan for each pair of budgets. The star marks the present budgets; the dashed line connects all pairs that reach the same value as the plan above. A cross means that no plan fits; cells without colour were not solved.`;
}
