// The three views, their addresses, and the theme.
import { $ } from "./dom.js";
import { readTheme } from "./charts.js";
import { OPENED, loadNames } from "./scenario.js";
import * as symbols from "./symbols.js";
import { takeToken } from "./server.js";
import * as plan from "./plan.js";
import * as run from "./run.js";
import * as compare from "./compare.js";

const VIEWS = { plan, run, compare };
let shown = null;

function theme() {
  const chosen = localStorage.getItem("fedgap-theme") ?? "auto";
  const isDark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  $("theme").value = chosen;
  readTheme();
}

async function route() {
  const [path, query] = location.hash.slice(1).split("?", 2);
  const name = path.slice(1) in VIEWS ? path.slice(1) : "plan";
  for (const view of Object.keys(VIEWS)) {
    $(`view-${view}`).hidden = view !== name;
    const link = document.querySelector(`nav a[data-view=${view}]`);
    if (view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · fedgap studio`;
  if (shown && shown !== name) VIEWS[shown].leave?.();
  const entered = shown !== name;
  shown = name;
  await VIEWS[name].enter(new URLSearchParams(query ?? ""), entered);
}

const first = takeToken();
theme();
$("theme").addEventListener("change", (event) => {
  localStorage.setItem("fedgap-theme", event.target.value);
  theme();
  VIEWS[shown]?.redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); VIEWS[shown]?.redraw(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
for (const link of document.querySelectorAll("nav a")) {
  link.addEventListener("click", (event) => {  // each view is restored as it was left
    event.preventDefault();
    location.hash = VIEWS[link.dataset.view].address();
  });
}
addEventListener("hashchange", () => { takeToken(); route(); });
await loadNames();
await Promise.all([plan.prepare(), run.prepare(), compare.prepare()]);
symbols.prepare();
if (first && OPENED.kind === "runs") history.replaceState(null, "", OPENED.run ? `#/run?run=${encodeURIComponent(OPENED.run)}` : "#/run");
route();
