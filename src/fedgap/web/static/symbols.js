// An explanation for every symbol: it is shown when the symbol is pointed at, touched or reached by the keyboard.
import { el } from "./dom.js";

export const SYMBOLS = {
  "θ": "θ (theta): the paper's bound on the mean squared gradient over all rounds. It is a score for comparing plans (lower is better), not an accuracy.",
  "α": "α (alpha): the part of θ that does not depend on the plan. It comes from the loss of the initial model, divided by the learning rate and the number of rounds.",
  "λ": "λ (lambda): pruning ratio, the share of the model's weights that a client removes before it trains and uploads.",
  "σ": "σ (sigma): concentration of the Dirichlet distribution that the clients' labels are drawn from. With a small σ the clients' labels differ much, with a large σ they are similar.",
  "φ": "φ (phi): how far a client's label distribution is from the target's, as the generalization statement measures it. 0 is best.",
  "τ": "τ (tau): local steps, the gradient steps that a client takes in a round before it uploads.",
  "η": "η (eta): learning rate of the clients' steps.",
  "PUE": "PUE: power usage effectiveness, the joules that a device draws in total for each joule that its processor uses. 1 is best.",
};
const PATTERN = new RegExp(Object.keys(SYMBOLS).map((name) => (/^\w+$/.test(name) ? `\\b${name}\\b` : name)).join("|"), "g");
const LEFT_ALONE = ".symbol, .chart, #symbol-tip, button, select, option, input, textarea, pre, script, style, svg, caption, a, summary";

// Split text nodes at their symbols; a new text gets the same treatment as soon as it is in the page.
function explain(node) {
  if (node.nodeType === Node.ELEMENT_NODE) {
    if (!node.matches(LEFT_ALONE)) for (const child of [...node.childNodes]) explain(child);
    return;
  }
  if (node.nodeType !== Node.TEXT_NODE || !node.parentElement || node.parentElement.closest(LEFT_ALONE)) return;
  const text = node.data, found = [...text.matchAll(PATTERN)];
  if (!found.length) return;
  const pieces = [];
  let after = 0;
  for (const { 0: symbol, index } of found) {
    pieces.push(text.slice(after, index), el("button", { type: "button", class: "symbol", "aria-describedby": "symbol-tip", "data-symbol": symbol }, symbol));
    after = index + symbol.length;
  }
  node.replaceWith(...pieces.filter((piece) => piece !== ""), text.slice(after));
}

export function prepare() {
  const tip = el("div", { id: "symbol-tip", role: "tooltip", hidden: true });
  document.body.append(tip);
  let shown = null;  // the symbol that is being explained
  const show = (button) => {
    shown = button;
    tip.textContent = SYMBOLS[button.dataset.symbol];
    tip.hidden = false;
    place();
  };
  const hide = () => { tip.hidden = true; shown = null; };
  const place = () => {
    const at = shown.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
    tip.style.top = `${at.bottom + height + 10 < innerHeight ? at.bottom + 6 : Math.max(4, at.top - height - 6)}px`;
  };
  const on = (kind, work) => document.addEventListener(kind, (event) => { const button = event.target.closest?.(".symbol"); if (button) work(button, event); });
  on("mouseover", show);
  on("focusin", show);
  on("click", (button, event) => { event.preventDefault(); show(button); });  // inside a label, it must not move to the field
  on("mouseout", (button) => { if (document.activeElement !== button) hide(); });
  on("focusout", hide);
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // The browser also scrolls when a new chart moves the page, so the tip follows its symbol while that is visible.
  addEventListener("scroll", () => {
    if (!shown) return;
    const { top, bottom } = shown.getBoundingClientRect();
    if (bottom > 0 && top < innerHeight) place(); else hide();
  }, { passive: true, capture: true });
  const page = document.querySelector("main");
  explain(page);
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes) for (const node of addedNodes) if (node.isConnected) explain(node);
  }).observe(page, { childList: true, subtree: true });
}
