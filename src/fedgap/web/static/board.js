// What the Plan view shows of an answer: numbers, charts, schemes, frontier, and advice where nothing fits.
import { $, badge, el, facts, fill, number, percent, si, table } from "./dom.js";
import { axis, colours, dark, draw, tone } from "./charts.js";
import { SCHEMES, state } from "./scenario.js";
import * as fleet from "./fleet.js";

let plan = null, segment = 0, schemes = new Map(), grid = null, points = new Map(), pick = null, certified = false;

export function prepare(chooseScheme) {
  pick = chooseScheme;
  for (const id of ["chart-clients", "chart-time", "chart-energy", "chart-terms"]) seen.observe($(id));
}

export function begin() {
  badge($("plan-stage"), "planning", "pending");
  badge($("schemes-stage"), "pending", "pending");
  badge($("frontier-stage"), "pending", "pending");
  schemes = new Map();
}

export function stale() {
  for (const id of ["plan-stage", "schemes-stage", "frontier-stage"]) badge($(id), "not for these inputs", "bad");
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
    if (schemes.size === Object.keys(SCHEMES).length) badge($("schemes-stage"), "all solved", "good");
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
    for (const id of ["plan-stage", "schemes-stage", "frontier-stage"]) if ($(id).classList.contains("pending")) badge($(id), event.message, "bad");
  } else if (event.stage === "done" && fresh) {
    badge($("frontier-stage"), "all solved", "good");
    drawFrontier();
  }
}

let fresh = 0;
const timers = new Map();
function later(work) {
  if (!timers.has(work)) timers.set(work, setTimeout(() => { timers.delete(work); work(); }, 150));
}

export function redraw() {
  if (plan) show(plan, true);
  drawFrontier();
}

function searching() {
  badge($("plan-stage"), "nothing yet; working out what would do", "pending");
}

function show(answer, force = false) {
  plan = answer;
  const some = answer.segments.length > 0;
  const longest = answer.segments.reduce((best, one, i) => (one.rounds > answer.segments[best].rounds ? i : best), 0);
  segment = longest;
  if (!certified) badge($("plan-stage"), "draft; certificate pending", "pending");
  else if (answer.status === "optimal") badge($("plan-stage"), "certified optimal", "good");
  else if (answer.status === "feasible") badge($("plan-stage"), "feasible", "good");
  else badge($("plan-stage"), "does not fit", "bad");
  advice(answer);
  for (const id of ["chart-clients", "chart-time", "chart-energy", "chart-terms"]) $(id).closest(".card").hidden = !some;
  const { energy_j: energy, delay_s: delay } = answer.budget;
  facts($("numbers"), some ? [
    ["bound θ", number(answer.theta, 5)],
    ["gap to the optimum", answer.gap === null ? (certified ? "–" : "pending") : percent(Math.max(0, answer.gap), 2)],
    ["energy", `${number(answer.energy_j)} J`, `of ${number(energy)}`, answer.energy_j / energy],
    ["delay", `${number(answer.delay_s)} s`, `of ${number(delay)}`, answer.delay_s / delay],
    ["clients a round", [...new Set(answer.segments.map((one) => one.clients.filter((c) => c.selected).length))].join(", "), `of ${fleet.names().length || answer.clients.rounds.length}`],
    ["rounds", String(answer.rounds), answer.rounds < answer.budget.rounds ? `of ${answer.budget.rounds}` : ""],
  ] : [["energy budget", `${number(energy)} J`], ["delay budget", `${number(delay)} s`], ["rounds", String(answer.budget.rounds)]]);
  const figure = JSON.stringify([answer.segments, answer.budget, answer.terms]);
  if (figure === drawn && !force) { drawGap(); return; }  // the certificate confirmed the draft: nothing moves
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

// Charts on the screen are drawn at once, the others a moment later: a slider is answered where one looks.
function chart(id, work) {
  const element = $(id);
  overdue.set(element, () => { overdue.delete(element); work(); });
  if (element.dataset.seen) overdue.get(element)();
  else idle ??= setTimeout(() => { idle = null; for (const [, draw] of [...overdue]) draw(); }, 120);
}
let idle = null;

// Four digits, rounded up, so that following the advice is enough.
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
  fill(place, el("strong", {}, needs.length ? `These budgets do not fit: ${needs.join(" or ")}.` : ""), " ", answer.reason);
}

function drawSegments() {
  const kinds = plan.segments;
  fill($("segments"), ...(kinds.length < 2 ? [] : kinds.map((one, i) => el("label", {}, el("input", { type: "radio", name: "segment", checked: i === segment,
    onchange: () => { segment = i; drawPlan(); drawTable(); } }), ` ${one.rounds} ${one.rounds === 1 ? "round" : "rounds"} with ${one.clients.filter((c) => c.selected).length}`))));
}

const CATEGORY = { type: "category", tickfont: { size: 11 } };
const label = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);
const ids = () => plan.clients.rounds.map((_, n) => label(fleet.names()[n] ?? `client ${n}`).replace(/^client /, ""));

const MARGIN = { l: 52, r: 8, t: 6, b: 38 };

function drawPlan() {
  chart("chart-clients", drawClients);
  chart("chart-time", drawTime);
  chart("chart-energy", drawEnergy);
  chart("chart-terms", drawTerms);
}

function drawClients() {
  const one = plan.segments[segment], [blue, orange, green] = colours(), x = ids(), on = one.clients.map((c) => c.selected);
  const only = (values) => values.map((value, n) => (on[n] ? value : null));
  const chosen = x.filter((_, n) => on[n]);
  const bar = (y, name, colour, text, more = {}) => ({ type: "bar", x, y, name, marker: { color: colour }, hovertext: text, hoverinfo: "x+name+text", ...more });
  const unpruned = Math.max(...one.clients.map((c) => c.pruning_ratio)) < 1e-9;
  draw($("chart-clients"), [
    { type: "scatter", mode: "markers", x, y: x.map(() => "selected"), yaxis: "y4", hoverinfo: "skip", marker: { size: 12, color: on.map((yes) => (yes ? blue : "rgba(0,0,0,0)")), line: { width: 1.5, color: on.map((yes) => (yes ? blue : tone("soft"))) } } },
    bar(only(one.clients.map((c) => c.pruning_ratio)), "pruning λ", blue, one.clients.map((c) => percent(c.pruning_ratio)), { yaxis: "y3" }),
    bar(only(one.clients.map((c) => c.power_w * 1e3)), "power", orange, one.clients.map((c) => si(c.power_w, "W")), { yaxis: "y2" }),
    bar(only(one.clients.map((c) => c.frequency_hz / 1e6)), "frequency", green, one.clients.map((c) => si(c.frequency_hz, "Hz"))),
  ], {
    xaxis: axis("client", { ...CATEGORY, anchor: "y" }), yaxis: axis("f, MHz", { domain: [0, 0.27], nticks: 4 }), yaxis2: axis("p, mW", { domain: [0.32, 0.58], nticks: 4, rangemode: "tozero" }),
    yaxis3: axis("λ", { domain: [0.63, 0.89], nticks: 4, rangemode: "tozero", ...(unpruned ? { range: [0, 0.1] } : {}) }),
    yaxis4: axis("", { domain: [0.93, 1], showgrid: false, zeroline: false, tickfont: { size: 11 } }), margin: { ...MARGIN, l: 66 }, bargap: 0.35,
  }, `${chosen.length} of ${x.length} clients are selected: ${chosen.join(", ")}. Their pruning ratio, power and frequency are in the table below.`);
}

function drawTime() {
  const one = plan.segments[segment], [blue, orange, green] = colours(), x = ids(), on = one.clients.map((c) => c.selected);
  const cost = one.cost, last = new Set(cost.stragglers), chosen = x.filter((_, n) => on[n]);
  const seconds = (values, name, colour) => ({ type: "bar", x: chosen, y: values.filter((_, n) => on[n]).map((v) => v * 1e3), name, marker: { color: colour }, hovertemplate: `%{y:.4g} ms<extra>%{x} ${name}</extra>` });
  const ends = x.map((name, n) => [name, (cost.compute_s[n] + cost.upload_s[n] + cost.download_s[n]) * 1e3, n]).filter(([, , n]) => last.has(n));
  draw($("chart-time"), [seconds(cost.download_s, "download", green), seconds(cost.compute_s, "compute", blue), seconds(cost.upload_s, "upload", orange),
    { type: "scatter", mode: "markers", name: "straggler", x: ends.map(([name]) => name), y: ends.map(([, y]) => y), marker: { symbol: "triangle-down", size: 11, color: tone("bad"), line: { width: 1, color: tone("card") } }, hovertemplate: "ends last: %{y:.4g} ms<extra>%{x}</extra>", cliponaxis: false }],
  { barmode: "stack", xaxis: axis("client", CATEGORY), yaxis: axis("ms"), margin: MARGIN },
  `A round takes ${number(cost.delay_s * 1e3)} ms. Ending last: ${ends.map(([name]) => name).join(", ")}.`);
}

function drawEnergy() {
  const [blue, orange, green] = colours(), x = [...ids(), "server"], all = plan.clients;
  const joules = (y, name, colour) => ({ type: "bar", x, y, name, marker: { color: colour }, hovertemplate: `%{y:.4g} J<extra>%{x} ${name}</extra>` });
  draw($("chart-energy"), [joules([...all.compute_j, 0], "compute", blue), joules([...all.upload_j, 0], "upload", orange), joules([...all.upload_j.map(() => 0), all.broadcast_j], "broadcast", green)],
    { barmode: "stack", xaxis: axis("client", CATEGORY), yaxis: axis("J"), margin: MARGIN },
    `Energy ${number(plan.energy_j)} J of ${number(plan.budget.energy_j)} J; the server's broadcasts take ${number(all.broadcast_j)} J.`);
}

function drawTerms() {
  const words = { alpha: "start α", clients: "few clients", generalization: "generalization", pruning: "pruning" };
  const names = Object.keys(words).filter((key) => plan.terms[key] !== null), total = plan.theta ?? names.reduce((sum, key) => sum + plan.terms[key], 0);
  draw($("chart-terms"), [{ type: "bar", orientation: "h", y: names.map((key) => words[key]), x: names.map((key) => plan.terms[key]), marker: { color: colours().slice(0, 4) },
    text: names.map((key) => `${number(plan.terms[key], 4)} (${percent(plan.terms[key] / total, 1)})`), textposition: "auto", hoverinfo: "y+text", cliponaxis: false }],
  { xaxis: axis(""), yaxis: axis("", { autorange: "reversed" }), margin: { l: 100, r: 20, t: 4, b: 26 } },
  `θ is ${number(plan.theta, 5)}: ${names.map((key) => `${words[key]} ${number(plan.terms[key])}`).join(", ")}.`);
  drawGap();
}

function drawGap() {
  $("gap-text").textContent = plan.lower_bound === null ? (certified ? "No bound is certified here." : "The certificate is pending.")
    : `No plan is better than θ = ${number(plan.lower_bound, 6)}; this one is within ${percent(Math.max(0, plan.gap), 3)} of it.`;
}

function drawTable() {
  if (!plan.segments.length) { fill($("plan-table")); return; }
  const one = plan.segments[segment], cost = one.cost, last = new Set(cost.stragglers);
  const rows = one.clients.map((client, n) => el("tr", client.selected ? {} : { class: "dim" }, ...[
    fleet.names()[n] ?? `client ${n}`, client.selected ? "yes" : "no", ...(client.selected ? [percent(client.pruning_ratio, 2), si(client.power_w, "W"), si(client.frequency_hz, "Hz"),
      si(cost.compute_s[n], "s"), si(cost.upload_s[n], "s"), si(cost.download_s[n], "s"), last.has(n) ? "ends last" : ""] : ["", "", "", "", "", "", ""]),
    String(plan.clients.rounds[n]), si(plan.clients.compute_j[n] + plan.clients.upload_j[n], "J")].map((text) => el("td", {}, text))));
  table($("plan-table"), ["client", "selected", "pruning λ", "power", "frequency", "compute", "upload", "download", "straggler", "rounds in all", "energy in all"], rows, "The plan, client by client");
}

function drawSchemes() {
  const thetas = [...schemes.values()].map((one) => one.theta).filter((value) => value !== null), best = Math.min(...thetas);
  const rows = Object.entries(SCHEMES).map(([key, name]) => {
    const one = schemes.get(key);
    const button = el("button", { type: "button", class: "link", onclick: () => pick(key), "aria-pressed": String(key === state.scheme) }, name);
    const cells = !one ? ["pending", "", "", "", ""] : [one.theta === null ? "∞" : number(one.theta, 5), one.theta === null ? "–" : one.theta <= best * (1 + 1e-9) ? "best" : `+${percent(one.theta / best - 1)}`,
      one.rounds ? `${number(one.energy_j)} J` : "–", one.rounds ? `${number(one.delay_s)} s` : "–", one.rounds ? [...new Set(one.selected)].join(", ") : "–"];
    const row = [el("tr", key === state.scheme ? { class: "chosen" } : {}, el("td", {}, button), ...cells.map((text) => el("td", {}, text)))];
    if (one && one.theta === null) row.push(el("tr", { class: "dim" }, el("td", { colspan: "6", class: "words" }, one.reason)));
    return row;
  }).flat();
  table($("schemes"), ["scheme", "θ", "to the best", "energy", "delay", "clients"], rows, "The six schemes");
}

function drawFrontier() {
  if (!grid || !plan) return;
  const z = grid.energy_j.map((e) => grid.delay_s.map((d) => points.get(`${e} ${d}`)?.theta ?? null));
  const none = [...points.values()].filter((point) => point.theta === null), values = z.flat().filter((value) => value !== null);
  const here = { x: [plan.budget.delay_s], y: [plan.budget.energy_j] };
  const traces = [{ type: "heatmap", x: grid.delay_s, y: grid.energy_j, z, colorscale: dark() ? [[0, "#7cc8a4"], [0.5, "#3b7f9e"], [1, "#2b3a55"]] : [[0, "#0b6b57"], [0.5, "#6fb3c8"], [1, "#e3edf5"]],
    colorbar: { title: { text: "θ" }, thickness: 12, outlinewidth: 0 }, hovertemplate: "%{x:.4g} s, %{y:.4g} J: θ %{z:.5g}<extra></extra>", hoverongaps: false, zsmooth: false }];
  if (plan.theta !== null && values.some((v) => v > plan.theta) && values.some((v) => v < plan.theta)) {
    traces.push({ type: "contour", x: grid.delay_s, y: grid.energy_j, z, showscale: false, hoverinfo: "skip", connectgaps: false,
      contours: { coloring: "none", start: plan.theta, end: plan.theta, size: 1 }, line: { color: tone("bad"), width: 2.5, dash: "dot" } });
  }
  traces.push({ type: "scatter", mode: "markers", x: none.map((p) => p.delay_s), y: none.map((p) => p.energy_j), marker: { symbol: "x-thin", size: 8, line: { width: 1.5, color: tone("soft") } }, hovertemplate: "%{x:.4g} s, %{y:.4g} J: no plan fits<extra></extra>" },
    { type: "scatter", mode: "markers", ...here, marker: { symbol: "star", size: 17, color: colours()[1], line: { width: 1.5, color: tone("ink") } }, hovertemplate: "these budgets: %{x:.4g} s, %{y:.4g} J<extra></extra>" });
  draw($("chart-frontier"), traces, { xaxis: axis("delay budget, s", { type: "log" }), yaxis: axis("energy budget, J", { type: "log", title: { text: "energy budget, J", standoff: 12, font: { size: 12 } } }), margin: { l: 68, r: 8, t: 8, b: 44 } },
    `θ over ${points.size} pairs of budgets, ${none.length} of which no plan fits. The current pair is ${number(here.x[0])} s and ${number(here.y[0])} J.`);
}
