// Plotly in the page's own colours, light and dark.

const LIGHT = ["#0b6aa2", "#c2570c", "#00805a", "#a8437c", "#8a6d00", "#4a4fb5", "#5b6670", "#b3261e"];
const DARK = ["#6bb7e6", "#f0a35e", "#4fc79b", "#e48dbb", "#e0c14a", "#a3a7f2", "#a5b1bd", "#ff9d94"];

export const dark = () => document.documentElement.dataset.theme === "dark";
export const colours = () => (dark() ? DARK : LIGHT);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let tones = null;
export function readTheme() {
  tones = { ink: css("--ink"), soft: css("--soft"), grid: css("--grid"), card: css("--card"), bad: css("--bad"), accent: css("--accent"), rest: css("--rest"), accent2: css("--k1") };
}
export const tone = (name) => tones[name];

export function axis(title, more = {}) {
  return { title: { text: title, font: { size: 12 }, standoff: 4 }, gridcolor: tones.grid, zerolinecolor: tones.grid, linecolor: tones.grid,
           ...more };
}

// Labels of clients below bars: all of them if they fit, slanted if that helps, otherwise every k-th.
export function clientAxis(keys, names, element, last = []) {
  const room = Math.max(120, element.clientWidth - 74 - 46 * last.length), longest = Math.max(1, ...names.map((name) => name.length)), wide = 7 * longest + 8;
  const level = longest <= 4 || names.length * wide <= room, every = Math.ceil((names.length * (level ? wide : 15)) / room);
  const clear = last.length ? (24 + 3.5 * longest) / (room / names.length) : 0;  // number of labels that are left out before the last one
  const shown = keys.map((_, n) => n).filter((n) => n % every === 0 && names.length - n >= clear);
  return { ...axis("client", { type: "category", tickfont: { size: 11 }, tickangle: level ? 0 : -60 }), tickvals: [...shown.map((n) => keys[n]), ...last], ticktext: [...shown.map((n) => names[n]), ...last],
           room: level ? 38 : 44 + 5.5 * longest };
}

// Values that span decades are coloured by their logarithm; the colour bar shows the values.
export function colourScale(values, show) {
  const low = Math.min(...values), high = Math.max(...values), decades = low > 0 && high / low > 10;
  if (!decades) return { of: (value) => value, bar: { nticks: 5 } };
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), marks = [];
  for (let power = first; power <= last; power += 1) for (const step of last - first > 2 ? [1] : [1, 2, 5]) marks.push(step * 10 ** power);
  const shown = marks.filter((mark) => mark >= low && mark <= high);
  return { of: Math.log10, bar: { tickvals: shown.map(Math.log10), ticktext: shown.map(show) } };
}

// Plotly's default buttons include one that sends the chart to its company's site, so the buttons are listed here.
const BUTTONS = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
// On touch screens the page scrolls, and the buttons are left out because they would never disappear.
const touch = matchMedia("(hover: none)").matches;
const SETTINGS = { displaylogo: false, responsive: true, modeBarButtons: BUTTONS, plotlyServerURL: "", showTips: false, ...(touch ? { displayModeBar: false } : {}) };

// Without any point a sentence is shown instead of empty axes.
const isEmpty = (traces) => traces.every((trace) => !(trace.z ?? trace.y ?? []).flat().some((value) => value !== null && value !== undefined));

// Plotly is large, so it is loaded for the first chart, and the numbers of the first plan need not wait for it.
const waiting = new Map();
const afterFrame = (next) => requestAnimationFrame(() => setTimeout(next));
let asked = false;
function loadPlotly() {
  if (asked) return;
  asked = true;
  const script = document.createElement("script");
  script.src = "plotly.min.js";
  script.addEventListener("load", drawWaiting);
  afterFrame(() => document.head.append(script));  // so that the numbers appear first
}

// Draw from the top of the page downwards; each chart appears as soon as it is drawn.
function drawWaiting() {
  const [next] = waiting;
  if (!next) return;
  draw(next[0], ...next[1]);
  afterFrame(drawWaiting);
}

export function draw(element, traces, layout, summary) {
  if (!window.Plotly) {
    waiting.set(element, [traces, layout, summary]);
    loadPlotly();
    return;
  }
  waiting.delete(element);  // replaced by this newer drawing
  element.classList.toggle("nothing", isEmpty(traces));
  if (isEmpty(traces)) {
    if (element.data) Plotly.purge(element);
    element.removeAttribute("role");
    element.removeAttribute("aria-label");
    element.textContent = element.dataset.nothing ?? "There is nothing to show yet.";
    return;
  }
  if (!element.data) element.textContent = "";
  element.setAttribute("role", "figure");  // not img, because Plotly's buttons inside must be reachable
  element.setAttribute("aria-label", summary);
  const base = { margin: { l: 48, r: 10, t: 8, b: 36 }, paper_bgcolor: tones.card, plot_bgcolor: tones.card, colorway: colours(),
                 font: { color: tones.ink, size: 12, family: "system-ui, sans-serif" }, hoverlabel: { font: { size: 12 } },
                 legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, showlegend: false, dragmode: touch ? false : "zoom" };
  Plotly.react(element, traces, { ...base, ...layout }, SETTINGS);
  for (const svg of element.querySelectorAll("svg.main-svg")) svg.setAttribute("aria-hidden", "true");  // the summary has the same content
}
