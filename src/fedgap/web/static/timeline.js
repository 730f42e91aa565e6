// The timeline of a run whose rounds a policy decides: who took part, channels, clocks, what is left, and when it was planned again.
import { $, el, fill, number, percent } from "./dom.js";
import { axis, colours, draw, tone } from "./charts.js";

const AWAY = 0, THERE = 1, PART = 2, MISSING = 3;
const STATES = ["not available", "available, not selected", "took part", "selected, but no update arrived"];
const SMALL = 12, DENSE_PX = 11, ROOMY_PX = 18, MOST_PX = 440, LABEL_PX = 11;
const WEAK_DB = -30;  // weaker channels have the same colour as this one

export function drawTimeline(info, rounds) {
  const shown = rounds.filter((one) => one.available);
  $("timeline").hidden = !shown.length;
  if (!shown.length) return;
  const last = Math.max(info.rounds_planned ?? 0, shown.at(-1).round + 1), narrow = $("timeline").clientWidth < 600;
  const names = info.clients.map((name) => name.replace(/^client /, "")), page = { info, shown, names, narrow, x: shown.map((one) => one.round + 1) };
  const longest = Math.max(2, ...names.map((name) => short(name, narrow).length));
  page.margin = { l: Math.max(34, 10 + 6.4 * longest), r: 10, t: 8, b: 36 };
  page.across = axis("round", { range: [0.5, last + 0.5] });
  drawPart(page);
  drawCells(page, "gain", "channels", (gain) => 10 * Math.log10(gain), "dB", [WEAK_DB, 0, -WEAK_DB]);
  drawCells(page, "speed", "clocks", (speed) => 100 * speed, "%", [0, 100, Math.max(100, ...shown.flatMap((one) => (one.speed ?? []).map((speed) => 100 * speed)))]);
  drawLeft(page);
  drawQueues(page);
  listChanges(shown);
}

const short = (name, narrow) => { const most = narrow ? 8 : 14; return name.length > most ? `${name.slice(0, most - 1)}…` : name; };

// Plotly interprets some markup in labels, so texts from a run's files are escaped.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const wrapped = (text) => plain(text).replace(/(.{40,60}?) /g, "$1<br>");

// One row per client, the first on top: sets the chart's height and returns the axis.
function clientRows({ names, narrow }, element, extra) {
  const size = names.length, pitch = size <= SMALL ? ROOMY_PX : Math.max(2, Math.min(DENSE_PX, MOST_PX / size)), every = Math.ceil(LABEL_PX / pitch);
  const labelled = names.map((_, n) => n).filter((n) => n % every === 0);
  element.style.height = `${Math.round(size * pitch + extra)}px`;
  return { ...axis("", { range: [size - 0.5, -0.5], showgrid: false, zeroline: false, tickfont: { size: 10.5 } }), tickvals: labelled, ticktext: labelled.map((n) => plain(short(names[n], narrow))), ticks: "" };
}

function drawPart(page) {
  const { shown, names, x, margin, across } = page, element = $("chart-part"), [blue] = colours();
  const states = shown.map((one) => {
    const column = names.map(() => AWAY), missing = new Set([...(one.dropped ?? []), ...(one.late ?? []), ...(one.rejected ?? [])]);
    for (const n of one.available) column[n] = THERE;
    for (const n of one.clients) column[n] = missing.has(n) ? MISSING : PART;
    return column;
  });
  const palette = [tone("card"), tone("rest"), blue, tone("bad")], scale = palette.flatMap((colour, n) => [[n / 4, colour], [(n + 1) / 4, colour]]);
  const cells = { type: "heatmap", x, y: names.map((_, n) => n), z: names.map((_, n) => states.map((column) => column[n])), zmin: -0.5, zmax: 3.5, colorscale: scale, showscale: false, xgap: shown.length > 60 || page.narrow ? 0 : 1, ygap: names.length > 80 ? 0 : 1,
    text: names.map((name, n) => states.map((column) => `${plain(name)}: ${STATES[column[n]]}`)), hovertemplate: "round %{x}, %{text}<extra></extra>" };
  // The marks are in a separate strip above the clients.
  const strip = (which, symbol, colour, text) => { const some = shown.filter(which); return { type: "scatter", mode: "markers", x: some.map((one) => one.round + 1), y: some.map(() => 0), yaxis: "y2", text: some.map(text), hovertemplate: "%{text}<extra></extra>", marker: { symbol, size: 8, color: colour }, cliponaxis: false }; };
  const rows = clientRows(page, element, 36 + 26), height = parseFloat(element.style.height) - 44, edge = 1 - 18 / height;
  draw(element, [cells, strip((one) => one.idle_s, "diamond-open", tone("soft"), (one) => `round ${one.round + 1}: ${number(one.idle_s)} s idle before it`),
    strip((one) => one.planned_again, "triangle-down", tone("accent2"), (one) => `round ${one.round + 1} was planned again:<br>${wrapped(one.planned_again)}`)],
    { xaxis: across, yaxis: { ...rows, domain: [0, edge] }, yaxis2: { domain: [edge, 1], range: [-1, 1], visible: false, fixedrange: true }, hovermode: "closest", margin },
    `Who took part in each of ${shown.length} rounds: ${names.map((name, n) => `${name} ${states.filter((column) => column[n] >= PART).length}`).join(", ")}.`);
}

// One coloured cell for each client and round; clients that are not available have none. The middle of the range is grey.
function drawCells(page, key, id, value, unit, [low, middle, high]) {
  const { shown, names, x, margin, across } = page, element = $(`chart-${id}`);
  element.parentElement.hidden = !shown.some((one) => one[key]);
  if (element.parentElement.hidden) return;
  const there = shown.map((one) => new Set(one.available));
  const z = names.map((_, n) => shown.map((one, t) => (there[t].has(n) ? value(one[key]?.[n] ?? 1) : null)));
  const [blue, orange] = colours(), rows = clientRows(page, element, 36 + 34), scale = [[0, orange], [(middle - low) / (high - low), tone("rest")], ...(high > middle ? [[1, blue]] : [])];
  draw(element, [{ type: "heatmap", x, y: names.map((_, n) => n), z, zmin: low, zmax: high, colorscale: scale, hoverongaps: false,
    text: names.map((name) => x.map(() => plain(name))), hovertemplate: `round %{x}, %{text}: %{z:.3~g} ${unit}<extra></extra>`, ygap: names.length > 80 ? 0 : 1,
    colorbar: { orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", ypad: 2, len: 0.8, thickness: 7, outlinewidth: 0, ticksuffix: ` ${unit}`, nticks: 5, tickfont: { size: 10.5 } } }],
    { xaxis: across, yaxis: rows, margin: { ...margin, t: 34 } }, `${id === "channels" ? "Channel gains" : "Highest clocks"} of ${names.length} clients in ${shown.length} rounds, relative to the scenario's, in ${unit}.`);
}

function drawLeft({ info, shown, x, margin, across }) {
  const [blue, orange] = colours(), total = shown.at(-1), end = x.at(-1) + 1;
  const line = (key, spent, most, name, colour, unit) => {
    const left = [...shown.map((one) => one[key]), most - total[spent]];
    return { type: "scatter", mode: "lines", x: [...x, end], y: left.map((value) => (100 * value) / most), text: left.map((value) => `${number(value)} ${unit}`), name, line: { color: colour, width: 2, shape: "hv" }, hovertemplate: `${name} left before round %{x}: %{text}<extra></extra>` };
  };
  const even = { type: "scatter", mode: "lines", x: [1, info.rounds_planned + 1], y: [100, 0], name: "if spent evenly", line: { color: tone("soft"), width: 1, dash: "dot" }, hoverinfo: "skip" };
  if (!info.energy_budget_j || !info.delay_budget_s) return;
  draw($("chart-left"), [even, line("energy_left_j", "energy_total_j", info.energy_budget_j, "joules", orange, "J"), line("delay_left_s", "delay_total_s", info.delay_budget_s, "seconds", blue, "s")],
    { xaxis: across, yaxis: axis("% left", { range: [-2, 102] }), showlegend: true, margin: { ...margin, l: Math.max(44, margin.l), t: 26 } },
    `Left after ${shown.length} rounds: ${percent(1 - total.energy_total_j / info.energy_budget_j)} of the joules and ${percent(1 - total.delay_total_s / info.delay_budget_s)} of the seconds.`);
}

function drawQueues({ shown, margin, across }) {
  const queued = shown.filter((one) => one.policy?.energy_queue !== undefined), [blue, orange] = colours();
  $("chart-queues").parentElement.hidden = !queued.length;
  if (!queued.length) return;
  const line = (key, name, colour) => ({ type: "scatter", mode: "lines", x: queued.map((one) => one.round + 1), y: queued.map((one) => one.policy[key]), name, line: { color: colour, width: 2 }, hovertemplate: `${name} before round %{x}: %{y:.3~g}<extra></extra>` });
  draw($("chart-queues"), [line("energy_queue", "joules", orange), line("delay_queue", "seconds", blue)],
    { xaxis: across, yaxis: axis("in rounds' shares of the budget", { rangemode: "tozero" }), showlegend: true, margin: { ...margin, l: Math.max(44, margin.l), t: 26 } },
    `Virtual queues: joules ${number(queued.at(-1).policy.energy_queue)}, seconds ${number(queued.at(-1).policy.delay_queue)}, in shares of one round.`);
}

function listChanges(shown) {
  const changes = shown.filter((one) => one.planned_again);
  $("timeline-changes").hidden = !changes.length;
  $("timeline-count").textContent = changes.length === 1 ? "Planned again once" : `Planned again in ${changes.length} rounds`;
  fill($("timeline-list"), ...changes.map((one) => el("li", { value: one.round + 1 }, one.planned_again)));
}
