// Plotly in the page's own colours, light and dark.

const LIGHT = ["#0b6aa2", "#c2570c", "#00805a", "#a8437c", "#8a6d00", "#4a4fb5", "#5b6670", "#b3261e"];
const DARK = ["#6bb7e6", "#f0a35e", "#4fc79b", "#e48dbb", "#e0c14a", "#a3a7f2", "#a5b1bd", "#ff9d94"];

export const dark = () => document.documentElement.dataset.theme === "dark";
export const colours = () => (dark() ? DARK : LIGHT);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let tones = null;
export function readTheme() {
  tones = { ink: css("--ink"), soft: css("--soft"), grid: css("--grid"), card: css("--card"), bad: css("--bad"), accent: css("--accent") };
}
export const tone = (name) => tones[name];

export function axis(title, more = {}) {
  return { title: { text: title, font: { size: 12 }, standoff: 4 }, gridcolor: tones.grid, zerolinecolor: tones.grid, linecolor: tones.grid,
           ...more };
}

const SETTINGS = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

export function draw(element, traces, layout, summary) {
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", summary);
  const base = { margin: { l: 48, r: 10, t: 8, b: 36 }, paper_bgcolor: tones.card, plot_bgcolor: tones.card, colorway: colours(),
                 font: { color: tones.ink, size: 12, family: "system-ui, sans-serif" }, hoverlabel: { font: { size: 12 } },
                 legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, showlegend: false };
  return Plotly.react(element, traces, { ...base, ...layout }, SETTINGS);
}
