// The Compare view: groups of runs that differ only in their seed, against rounds, seconds or joules.
import { $, el, fill, number, percent, save, table } from "./dom.js";
import { Refused, get } from "./server.js";
import { axis, colours, draw } from "./charts.js";
import { shortLabel, groups as sweeps } from "./run_list.js";
import { notice } from "./plan.js";

const AGAINST = { round: "round", delay_total_s: "seconds", energy_total_j: "joules" };
const DASHES = ["solid", "dash", "dot", "dashdot"], BORDERS = ["solid", "dashed", "dotted", "dashed"];
let all = [], chosen = [], against = "round", reference = null, answer = null;

export const address = () => `#/compare?${new URLSearchParams({ ...(chosen.length ? { runs: chosen.join(" ") } : {}), ...(against !== "round" ? { x: against } : {}), ...(reference ? { from: reference } : {}) })}`;

export async function prepare() {
  for (const radio of document.querySelectorAll("[name=against]")) radio.addEventListener("change", () => { against = radio.value; history.replaceState(null, "", address()); render(); });
  $("compare-form").addEventListener("submit", (event) => event.preventDefault());
  $("compare-reference").addEventListener("change", (event) => { reference = event.target.value; moved(); });
  $("export-png").addEventListener("click", () => exportPicture("png"));
  $("export-svg").addEventListener("click", () => exportPicture("svg"));
  $("export-csv").addEventListener("click", exportCsv);
}

export async function enter(query) {
  if (query.has("runs") || query.has("x")) {
    chosen = (query.get("runs") ?? "").split(" ").filter(Boolean);
    against = query.get("x") in AGAINST ? query.get("x") : "round";
    reference = query.get("from");
  }
  document.querySelector(`[name=against][value=${against}]`).checked = true;
  try {
    all = await get("/api/runs");
    const gone = chosen.filter((name) => !all.some((one) => one.name === name));
    chosen = chosen.filter((name) => !gone.includes(name));
    notice(gone.length ? `These runs do not exist: ${gone.join(", ")}.` : "");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    notice(error.message);
    return;
  }
  drawPick();
  await moved();
}

// --- which runs -----------------------------------------------------------------------------------------------------

function drawPick() {
  const box = (one) => el("label", {}, el("input", { type: "checkbox", value: one.name, checked: chosen.includes(one.name), onchange: (event) => choose([one.name], event.target.checked) }), ` ${shortLabel(one)}`,
    one.state === "finished" ? null : el("span", { class: "note" }, ` ${one.state}`));
  const found = sweeps(all), alone = found.length === 1 && found[0][0] === "";
  fill($("pick"), ...(all.length ? found : []).flatMap(([group, members]) => {
    if (alone) return members.map(box);
    const names = members.map(({ name }) => name), picked = names.filter((name) => chosen.includes(name)).length;
    const whole = el("input", { type: "checkbox", "data-sweep": group, checked: picked === names.length, indeterminate: picked > 0 && picked < names.length, onchange: (event) => choose(names, event.target.checked), "aria-label": `All runs of ${group || "no sweep"}` });
    return el("details", { class: "group", open: found.length < 3 || picked > 0 }, el("summary", {}, whole, ` ${group || "Single runs"}`, el("span", { class: "note" }, ` ${names.length}`)), ...members.map(box));
  }), all.length ? null : el("p", { class: "note" }, "No runs yet; start one in the Run view."));
}

function choose(names, yes) {
  chosen = yes ? [...chosen, ...names.filter((name) => !chosen.includes(name))] : chosen.filter((name) => !names.includes(name));
  for (const box of $("pick").querySelectorAll("input[value]")) if (names.includes(box.value)) box.checked = yes;
  for (const whole of $("pick").querySelectorAll("[data-sweep]")) {
    const members = all.filter((one) => one.group === whole.dataset.sweep), picked = members.filter(({ name }) => chosen.includes(name)).length;
    Object.assign(whole, { checked: picked === members.length, indeterminate: picked > 0 && picked < members.length });
  }
  moved();
}

async function moved() {
  history.replaceState(null, "", address());
  const asked = address();
  if (chosen.length) {
    const query = new URLSearchParams([...chosen.map((name) => ["run", name]), ...(reference ? [["reference", reference]] : [])]);
    try {
      const found = await get(`/api/compare?${query}`);
      if (asked !== address()) return;
      answer = found;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      notice(error.message);
      return;
    }
  }
  render();
}

export const redraw = () => render();

// --- what they reached ----------------------------------------------------------------------------------------------

const seeds = (group) => (group.runs.length > 1 ? `${group.runs.length} seeds` : group.state === "finished" ? `seed ${group.seeds[0]}` : `seed ${group.seeds[0]}, ${group.state}`);
const look = (i) => ({ colour: colours()[i % 8], dash: DASHES[Math.floor(i / 8) % 4], border: BORDERS[Math.floor(i / 8) % 4] });

function curves(key) {
  const scale = key === "test_accuracy" ? 100 : 1, scaled = (values) => values.map((value) => scale * value);
  return answer.groups.flatMap((group, i) => {
    const curve = group.curves[key], { colour, dash } = look(i), x = against === "round" ? curve.round.map((number) => number + 1) : curve[against];
    const band = group.runs.length < 2 ? [] : [
      { type: "scatter", mode: "lines", x, y: scaled(curve.low), line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      { type: "scatter", mode: "lines", x, y: scaled(curve.high), line: { width: 0 }, fill: "tonexty", fillcolor: `${colour}2e`, hoverinfo: "skip", showlegend: false }];
    return [...band, { type: "scatter", mode: x.length > 40 ? "lines" : "lines+markers", x, y: scaled(curve.mean), name: `${group.label} (${seeds(group)})`, meta: "mean", line: { color: colour, width: 2.2, dash }, marker: { size: 5 },
      hovertemplate: `%{fullData.name}<br>%{y:.4g}${scale === 100 ? " %" : ""} at %{x:.4g}<extra></extra>` }];
  });
}

function drawLegend() {
  fill($("compare-legend"), ...answer.groups.map((group, i) => {
    const mark = el("i"), { colour, border } = look(i);
    mark.style.borderTop = `3px ${border} ${colour}`;
    return el("li", {}, mark, `${group.label} `, el("span", { class: "note" }, seeds(group)));
  }));
  const several = answer.groups.some((group) => group.runs.length > 1);
  $("band-note").textContent = several ? "Each line is the mean over seeds, in the rounds that all of them evaluated; the band is the 95 % confidence interval of the mean." : "Each line is a single run. Runs that differ only in their seed are averaged and get a band.";
}

function render() {
  const some = chosen.length > 0 && answer !== null;
  $("nothing").hidden = some;
  for (const id of ["compare-legend", "compare-loss", "compare-accuracy", "group-outcomes"]) $(id).closest(".card").hidden = !some;
  for (const id of ["export-png", "export-svg", "export-csv", "compare-reference"]) $(id).disabled = !some;
  if (!some) return;
  drawLegend();
  const layout = { xaxis: axis(AGAINST[against], { rangemode: "tozero" }), margin: { l: 54, r: 10, t: 10, b: 40 } }, names = answer.groups.map((group) => group.label).join(", ");
  draw($("compare-loss"), curves("test_loss"), { ...layout, yaxis: axis("test loss", { rangemode: "tozero" }) }, `Test loss of ${names} against ${AGAINST[against]}; the table has the last values.`);
  draw($("compare-accuracy"), curves("test_accuracy"), { ...layout, yaxis: axis("accuracy, %") }, `Accuracy of ${names} against ${AGAINST[against]}; the table has the last values.`);
  drawTables();
}

// A mean with as many decimals as its interval has with two digits. An interval that comes only from rounding is not shown.
function plus(value, scale, unit, signed = false) {
  if (!value) return "–";
  const half = value.ci95 > 1e-9 * Math.abs(value.mean) ? value.ci95 * scale : 0, decimals = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(half))));
  const [mean, range] = half ? [(value.mean * scale).toFixed(decimals), ` ± ${half.toFixed(decimals)}`] : [number(value.mean * scale), ""];
  return `${signed && value.mean > 0 ? "+" : ""}${mean.replace("-", "−")}${range}${unit}`;
}
const VERDICTS = { higher: "higher", lower: "lower", tie: "no", identical: "identical", "too few seeds": "too few seeds" };

function drawTables() {
  const row = (...cells) => el("tr", {}, ...cells.map((text) => el("td", {}, text)));
  table($("group-outcomes"), ["group", "seeds", "accuracy", "test loss", "energy", "delay"], answer.groups.map((group) => row(group.label, group.runs.length > 1 ? String(group.runs.length) : `one (${group.seeds[0]})`,
    plus(group.test_accuracy, 100, " %"), plus(group.test_loss, 1, ""), plus(group.energy_j, 1, " J"), plus(group.delay_s, 1, " s"))), "Means and 95 % confidence intervals over distinct seeds");
  const finished = answer.groups.filter((group) => group.state === "finished"), base = finished.find((group) => group.runs.includes(answer.reference));
  fill($("compare-reference"), ...finished.map((group) => el("option", { value: group.runs[0], selected: group === base }, group.label)));
  $("differences-title").hidden = $("differences").closest(".scroll").hidden = $("differences-note").hidden = !answer.differences.length;
  if (answer.differences.length) {
    $("differences-title").textContent = `Difference from ${base.label}, paired seed by seed`;
    table($("differences"), ["group", "common seeds", "accuracy, points", "significant?", "test loss", "significant?"], answer.differences.map((one) => (one.seeds ? row(one.label, String(one.seeds), plus(one.test_accuracy, 100, "", true), VERDICTS[one.test_accuracy?.verdict] ?? "–", plus(one.test_loss, 1, "", true), VERDICTS[one.test_loss?.verdict] ?? "–")
      : el("tr", { class: "dim" }, el("td", {}, one.label), el("td", { colspan: "5", class: "words" }, "no seed in common")))), "Paired differences with 95 % confidence intervals");
  }
  const rows = answer.groups.flatMap((group) => group.runs.map((name, i) => [group, group.seeds[i], all.find((one) => one.name === name)]));
  table($("outcomes"), ["run", "seed", "state", "scheme", "rounds", "test loss", "accuracy", "best accuracy", "energy", "delay", "θ"], rows.map(([group, seed, one]) => row(group.label, number(seed), one.state, one.scheme ?? "–",
    String(one.rounds), number(one.test_loss), percent(one.test_accuracy, 2), percent(one.best_test_accuracy, 2), one.energy_j === null ? "–" : `${number(one.energy_j)} J`, one.delay_s === null ? "–" : `${number(one.delay_s)} s`, number(one.theta, 5))), "Outcomes of the single runs");
  const left = chosen.length - rows.length;
  $("repeated-note").textContent = left ? (left > 1 ? `${left} runs repeat a seed of their group and are left out.` : "One run repeats a seed of its group and is left out.") : "";
}

// --- export ---------------------------------------------------------------------------------------------------------

const HEIGHT = 520, ENTRY = 22, WIDTH = 1000;

async function exportPicture(format) {
  const height = Math.max(HEIGHT, 90 + ENTRY * answer.groups.length);
  for (const [id, name] of [["compare-loss", "loss"], ["compare-accuracy", "accuracy"]]) {
    if (!$(id).data) continue;
    const { data, layout } = $(id), legend = { orientation: "v", x: 1.02, y: 1, yanchor: "top" };
    const url = await Plotly.toImage({ data, layout: { ...layout, showlegend: true, legend, margin: { ...layout.margin, r: 20 }, autosize: false } }, { format, width: WIDTH, height, scale: format === "png" ? 2 : 1 });
    save(`fedgap-${name}.${format}`, format === "svg" ? new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" }) : blobOf(url));
  }
  $("export-done").textContent = `Saved fedgap-loss.${format} and fedgap-accuracy.${format}.`;
}

function blobOf(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (c) => c.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

async function exportCsv() {
  const columns = ["round", "delay_total_s", "energy_total_j", "train_loss", "test_loss", "test_accuracy"];
  const quoted = (value) => (value === undefined || value === null ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const lines = [];
  for (const name of chosen) for (const one of await get(`/api/runs/${encodeURIComponent(name)}/rounds`)) lines.push([name, ...columns.map((key) => one[key])].map(quoted).join(","));
  save("fedgap-runs.csv", [["run", ...columns].join(","), ...lines].join("\n") + "\n", "text/csv");
  $("export-done").textContent = "Saved fedgap-runs.csv.";
}
