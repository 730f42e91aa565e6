// The list of all runs; the runs of a sweep are under one heading that can be folded.
import { $, el, fill, number, percent, table } from "./dom.js";

const FEW = 15;  // up to this many runs are shown unfolded
const folded = new Map();  // group → whether the user has folded it
let shown = "";

export function groups(runs) {
  const found = new Map();
  for (const one of runs) found.set(one.group, [...(found.get(one.group) ?? []), one]);
  for (const [group, members] of found) if (group) members.sort((a, b) => a.label.localeCompare(b.label, undefined, { numeric: true }));
  return [...found].sort(([a], [b]) => (a === "") - (b === ""));  // sweeps first, single runs after them
}

// A sweep names its runs by what was swept: "scheme=no_pruning,seed=1" reads "no_pruning, seed 1".
export const shortLabel = ({ group, label }) => (group && label.includes("=") ? label.split(",").map((part) => part.replace(/^(scheme|selection|objective|policy)=/, "").replace("=", " ")).join(", ") : label);

const HEADS = ["run", "state", "rounds", "accuracy", "energy", "delay"];

function row(one, watched, follow) {
  const button = el("button", { type: "button", class: "link", "data-run": one.name, onclick: () => follow(one.name) }, shortLabel(one));
  const cells = [one.state, `${one.rounds}${one.rounds_planned ? ` of ${one.rounds_planned}` : ""}`, percent(one.test_accuracy),
                 one.energy_j === null ? "–" : `${number(one.energy_j)} J`, one.delay_s === null ? "–" : `${number(one.delay_s)} s`];
  return el("tr", one.name === watched ? { class: "chosen" } : {}, el("td", {}, button), ...cells.map((text) => el("td", {}, text)));
}

function summary(group, members) {
  const states = new Map();
  for (const { state } of members) states.set(state, (states.get(state) ?? 0) + 1);
  const told = [...states].map(([state, count]) => (count === members.length ? `all ${state}` : `${count} ${state}`)).join(", ");
  return el("summary", {}, group || "Single runs", el("span", { class: "note" }, ` ${members.length} run${members.length > 1 ? "s" : ""}, ${members.length > 1 ? told : members[0].state}`));
}

export function showRuns(runs, watched, follow) {
  const now = JSON.stringify([runs.map(({ clients, ...one }) => one), watched]);
  if (now === shown) return;  // so that the focus and the folded groups stay
  shown = now;
  const focused = document.activeElement?.dataset?.run, all = groups(runs);
  fill($("runs"), ...(runs.length ? all : []).map(([group, members]) => {
    const list = el("table");
    table(list, HEADS, members.map((one) => row(one, watched, follow)), `${group || "Single runs"}, the newest first`);
    const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of runs: ${group || "single runs"}` }, list);
    if (all.length === 1 && group === "") return scroll;
    const open = !(folded.get(group) ?? (runs.length > FEW && !members.some(({ name }) => name === watched)));
    const fold = el("details", { class: "group", "data-group": group, open }, summary(group, members), scroll);
    fold.addEventListener("toggle", () => folded.set(group, !fold.open));
    return fold;
  }));
  if (!runs.length) fill($("runs"), el("p", { class: "note" }, "No runs yet."));
  if (focused) document.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
}
