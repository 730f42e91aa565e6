// The Compare view: loss and accuracy of several runs against rounds, seconds or joules.
import { $, el, fill, number, percent, save, table } from "./dom.js";
import { Refused, get } from "./server.js";
import { axis, colours, draw } from "./charts.js";
import { SCHEMES } from "./scenario.js";
import { notice } from "./plan.js";

const AGAINST = { round: "round", delay_total_s: "seconds", energy_total_j: "joules" };
const DASHES = ["solid", "dash", "dot", "dashdot"];
let all = [], chosen = [], against = "round";
const history_ = new Map();  // rounds of runs, by name

export const address = () => `#/compare?${new URLSearchParams({ ...(chosen.length ? { runs: chosen.join(" ") } : {}), ...(against !== "round" ? { x: against } : {}) })}`;

export async function prepare() {
  for (const radio of document.querySelectorAll("[name=against]")) radio.addEventListener("change", () => { against = radio.value; moved(); });
  $("compare-form").addEventListener("submit", (event) => event.preventDefault());
  $("export-png").addEventListener("click", () => exportPicture("png"));
  $("export-svg").addEventListener("click", () => exportPicture("svg"));
  $("export-csv").addEventListener("click", exportCsv);
}

export async function enter(query) {
  if (query.has("runs") || query.has("x")) {
    chosen = (query.get("runs") ?? "").split(" ").filter(Boolean);
    against = query.get("x") in AGAINST ? query.get("x") : "round";
  }
  document.querySelector(`[name=against][value=${against}]`).checked = true;
  try {
    all = await get("/api/runs");
    const gone = chosen.filter((name) => !all.some((one) => one.name === name));
    chosen = chosen.filter((name) => !gone.includes(name));
    for (const name of chosen) history_.set(name, await get(`/api/runs/${encodeURIComponent(name)}/rounds`));
    notice(gone.length ? `There is no run ${gone.join(", ")} here.` : "");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    notice(error.message);
    return;
  }
  fill($("pick"), ...(all.length ? all.map((one) => el("label", {}, el("input", { type: "checkbox", value: one.name, checked: chosen.includes(one.name), onchange: toggle }), ` ${one.name}`,
    el("span", { class: "note" }, ` ${one.state}`))) : [el("p", { class: "note" }, "No runs yet; start one in the Run view.")]));
  render();
}

async function toggle(event) {
  const name = event.target.value;
  if (event.target.checked) {
    history_.set(name, await get(`/api/runs/${encodeURIComponent(name)}/rounds`));
    chosen = [...chosen, name];
  } else {
    chosen = chosen.filter((other) => other !== name);
  }
  moved();
}

function moved() {
  history.replaceState(null, "", address());
  render();
}

export const redraw = () => render();

const position = (one) => (against === "round" ? one.round + 1 : one[against]);

// A legend's line has room for so many letters; the table below has the whole name.
const letters = () => Math.max(12, Math.floor(($("compare-loss").clientWidth - 110) / 6.6));
const cut = (name) => { const most = letters(); return name.length <= most ? name : `${name.slice(0, Math.ceil(most / 2) - 1)}…${name.slice(-Math.floor(most / 2))}`; };

function legendRows(names, width) {
  const widest = Math.max(...names.map((name) => 6.6 * name.length + 50));
  return names.reduce((sum, name) => sum + 6.6 * name.length + 50, 0) <= width ? 1 : Math.ceil(names.length / Math.max(1, Math.floor(width / widest)));
}

function curves(key) {
  return chosen.flatMap((name, i) => {
    const colour = colours()[i % 8], rows = history_.get(name).filter((one) => one[key] !== undefined && one[key] !== null);
    return [{ type: "scatter", mode: key === "train_loss" ? "lines" : "lines+markers", x: rows.map(position), y: rows.map((one) => (key === "test_accuracy" ? 100 * one[key] : one[key])), name: cut(name), meta: name,
      line: { color: colour, width: key === "train_loss" ? 1 : 2.2, dash: DASHES[i % 4] }, opacity: key === "train_loss" ? 0.55 : 1, showlegend: key !== "train_loss", marker: { size: 5 } }];
  });
}

const margin = (width, name) => ({ l: 54, r: 10, t: 12 + 19 * legendRows(chosen.map(name), width - 70), b: 40 });

function render() {
  $("nothing").hidden = chosen.length > 0;
  for (const id of ["compare-loss", "compare-accuracy", "outcomes"]) $(id).closest(".card").hidden = chosen.length === 0;
  for (const id of ["export-png", "export-svg", "export-csv"]) $(id).disabled = chosen.length === 0;
  if (!chosen.length) return;
  const x = axis(AGAINST[against], { rangemode: "tozero" }), layout = { xaxis: x, showlegend: true, margin: margin($("compare-loss").clientWidth, cut) };
  draw($("compare-loss"), [...curves("train_loss"), ...curves("test_loss")], { ...layout, yaxis: axis("loss (test; thin: training)", { rangemode: "tozero" }) }, `Loss of ${chosen.join(", ")} against ${AGAINST[against]}; the table has the last values.`);
  draw($("compare-accuracy"), curves("test_accuracy"), { ...layout, yaxis: axis("accuracy, %") }, `Accuracy of ${chosen.join(", ")} against ${AGAINST[against]}; the table has the last values.`);
  const rows = chosen.map((name) => all.find((one) => one.name === name));
  table($("outcomes"), ["run", "state", "scheme", "seed", "rounds", "test loss", "accuracy", "best accuracy", "energy", "delay", "θ"], rows.map((one) => el("tr", {}, ...[one.name, one.state, SCHEMES[one.scheme] ?? one.scheme ?? "–", number(one.seed),
    String(one.rounds), number(one.test_loss), percent(one.test_accuracy, 2), percent(one.best_test_accuracy, 2), one.energy_j === null ? "–" : `${number(one.energy_j)} J`, one.delay_s === null ? "–" : `${number(one.delay_s)} s`, number(one.theta, 5)].map((text) => el("td", {}, text)))), "Outcomes of the chosen runs");
  overSeeds();
}

async function overSeeds() {
  const asked = chosen.join(" ");
  fill($("over-seeds"), chosen.length > 1 ? el("caption", {}, "Means over seeds are pending.") : null);
  const groups = await get(`/api/seeds?${new URLSearchParams(chosen.map((name) => ["run", name]))}`).catch(() => []);
  if (asked !== chosen.join(" ")) return;
  const several = groups.filter((group) => group.runs.length > 1), plus = (value, scale, unit) => (value.mean === null ? "–" : `${number(value.mean * scale)}${value.ci95 === null ? "" : ` ± ${number(value.ci95 * scale, 2)}`}${unit}`);
  if (!several.length) { fill($("over-seeds")); return; }
  table($("over-seeds"), ["over seeds", "scheme", "seeds", "accuracy", "test loss", "energy", "delay"], several.map((group) => el("tr", {}, ...[group.runs.join(", "), SCHEMES[group.scheme] ?? group.scheme ?? "–", String(group.runs.length),
    plus(group.test_accuracy, 100, " %"), plus(group.test_loss, 1, ""), plus(group.energy_j, 1, " J"), plus(group.delay_s, 1, " s")].map((text) => el("td", {}, text)))), "Means and 95 % confidence intervals over seeds");
}

// --- export ---------------------------------------------------------------------------------------------------------

async function exportPicture(format) {
  for (const [id, name] of [["compare-loss", "loss"], ["compare-accuracy", "accuracy"]]) {
    const { data, layout } = $(id), whole = data.map((trace) => ({ ...trace, name: trace.meta }));
    const wide = { ...layout, margin: margin(1000, (own) => own), autosize: false };
    const url = await Plotly.toImage({ data: whole, layout: wide }, { format, width: 1000, height: 520, scale: format === "png" ? 2 : 1 });
    save(`fedgap-${name}.${format}`, format === "svg" ? new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" }) : blobOf(url));
  }
  $("export-done").textContent = `Saved fedgap-loss.${format} and fedgap-accuracy.${format}.`;
}

function blobOf(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (c) => c.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

function exportCsv() {
  const columns = ["round", "delay_total_s", "energy_total_j", "train_loss", "test_loss", "test_accuracy"];
  const quoted = (value) => (value === undefined || value === null ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const lines = chosen.flatMap((name) => history_.get(name).map((one) => [name, ...columns.map((key) => one[key])].map(quoted).join(",")));
  save("fedgap-runs.csv", [["run", ...columns].join(","), ...lines].join("\n") + "\n", "text/csv");
  $("export-done").textContent = "Saved fedgap-runs.csv.";
}
