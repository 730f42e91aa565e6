"""The claims table: each sentence of Sections III to V that can be true or false, and what was measured of it.

    python -m fedgap.evidence.claims            writes docs/explanation/claims.md from the committed results
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgap.evidence.definition import FOLDER

PAGE = FOLDER.parent / "docs" / "explanation" / "claims.md"
MODES = ("repaired", "as_printed")
NOT_YET = ("not yet measured", "–")
Answer = tuple[str, str]
"""Verdict and measurement."""
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, where it stands, and how it is judged in a mode from the results of a figure."""

    where: str
    text: str
    figure: str
    judge: Callable[[Results, str], Answer]


def _number(value: Mapping[str, Any] | Sequence[Any], form: str = "{:.2f}") -> str:
    mean, half = (value["mean"], value["half"]) if isinstance(value, Mapping) else value
    return form.format(mean) + ("" if half is None else f" ± {form.format(half)}")


def _theory(results: Results, mode: str) -> Mapping[str, Any]:
    return next(row for row in results["summary"] if row["mode"] == mode)


def _held(share: float) -> str:
    return "holds" if share == 1.0 else "holds in part" if share > 0.5 else "does not hold"


def lemma(results: Results, mode: str) -> Answer:
    """Lemma 1 for every client at every measured round."""
    row = _theory(results, mode)
    return _held(row["lemma_held"]["mean"]), (
        f"held at {row['lemma_held']['mean']:.0%} of the clients and rounds; "
        f"loose by {_number(row['lemma_orders_loose'], '{:.1f}')} orders of magnitude")


def proposition(results: Results, mode: str) -> Answer:
    """Proposition 1 at every measured round."""
    row = _theory(results, mode)
    return _held(row["proposition_held"]["mean"]), (
        f"held at {row['proposition_held']['mean']:.0%} of the rounds; "
        f"loose by {_number(row['proposition_orders_loose'], '{:.1f}')} orders of magnitude")


def theorem(results: Results, mode: str) -> Answer:
    """Theorem 1 for whole runs, with both constants."""
    row = _theory(results, mode)
    loose = {name: row[f"orders_loose_{name}"] for name in ("printed", "corrected")}
    verdict = "holds" if all(one["mean"] - (one["half"] or 0.0) > 0.0 for one in loose.values()) else "holds in part"
    return verdict, (f"loose by {_number(loose['printed'], '{:.1f}')} orders of magnitude with printed constants, "
                     f"{_number(loose['corrected'], '{:.1f}')} with corrected ones")


def assumption4(results: Results, mode: str) -> Answer:
    """Assumption 4 at every measured round that prunes."""
    row = _theory(results, mode)
    if "assumption4_held" not in row:
        return NOT_YET
    share = row["assumption4_held"]["mean"]
    return _held(share), f"held at {_number(row['assumption4_held'], '{:.2f}')} of the measured rounds"


def phi_orders_clients(results: Results, mode: str) -> Answer:
    """Whether clients of smaller φ have gradients closer to the test gradient."""
    one = _theory(results, mode)["phi_ranks_difference"]
    low, high = one["mean"] - (one["half"] or 0.0), one["mean"] + (one["half"] or 0.0)
    verdict = "holds" if low > 0.5 else "holds in part" if low > 0 else "does not hold" if high < 0.5 else "undecided"
    return verdict, f"rank correlation of φ_n with ‖∇L_n − ∇L̃‖ among clients: {_number(one)}"


def clients_and_pruning(results: Results, mode: str) -> Answer:
    """More clients and less pruning, among random plans within one budget (trained as repaired)."""
    if mode == "as_printed":
        return NOT_YET
    parts = [f"σ = {block['sigma']:g}: clients {_number(block['of']['fewest clients last (−k)'])}, "
             f"pruning ratio {_number(block['of']['mean pruning ratio'])}" for block in results["correlations"]]
    return "holds in part", ("rank correlation with the test error of fewer clients and of more pruning, where the "
                             "budget lets a pruned model train for longer: " + "; ".join(parts))


def good_guide(results: Results, mode: str) -> Answer:
    """Whether θ ranks random plans as their accuracy does."""
    name = {"repaired": "size_normalised mixture, secant, corrected", "as_printed": "as_printed sum, theorem, printed"}
    values = {block["sigma"]: block["of"][name[mode]] for block in results["correlations"]}
    lows = [one["mean"] - one["half"] for one in values.values()]
    verdict = "holds" if min(lows) > 0.5 else "holds in part" if min(lows) > 0.0 else "does not hold"
    return verdict, "rank correlation of θ with the test error: " + "; ".join(
        f"{_number(one)} at σ = {sigma:g}" for sigma, one in values.items())


def spread_falls(results: Results, mode: str) -> Answer:
    """Fig. 3: the statements' deviation among clients at every σ."""
    rows = [row for row in results["spread"] if row["mode"] == mode]
    values = [row["deviation"][0] for row in rows]
    verdict = "holds" if all(a > b for a, b in pairwise(values)) else "does not hold"
    return verdict, "standard deviation of φ among clients: " + "; ".join(
        f"{_number(row['deviation'], '{:.3g}')} at σ = {row['sigma']:g}" for row in rows)


def table_sizes(results: Results, mode: str) -> Answer:
    """Table I's sizes of the models that the text names."""
    ratio = {(row["model"], row["quantity"]): row["ratio"] for row in results["rows"]}
    sizes = "; ".join(f"{model} H {ratio[model, 'gradient_bits']:.3f}, e {ratio[model, 'flops_per_sample']:.3f}"
                      for model in ("lenet5", "resnet44", "resnet110"))
    return "holds in part", f"derived over printed: {sizes}; the text's ResNet-110 does not fit it, ResNet-44 does"


def versus(baseline: str | None = None, panel: int = 0, *, lower: bool = False,
           tight: bool = False) -> Callable[[Results, str], Answer]:
    """Proposed against one baseline, or all, over a panel's values (or its tightest alone)."""
    def judge(results: Results, mode: str) -> Answer:
        one = results["panels"][panel]
        if one.get("status"):
            return NOT_YET
        found = [c for c in one["comparisons"] if c["mode"] == mode and baseline in (None, c["baseline"])]
        if tight:
            found = [c for c in found if c["value"] == min(each["value"] for each in found)]
        return comparisons(found, lower=lower) if found else NOT_YET
    return judge


def comparisons(found: Sequence[Mapping[str, Any]], *, lower: bool = False) -> Answer:
    """Better in all: holds; better in some and worse in none: in part; otherwise it does not hold."""
    good, bad = ("lower", "higher") if lower else ("higher", "lower")
    count = {name: sum(c["verdict"] == name for c in found) for name in ("higher", "lower", "tie", "identical")}
    verdict = ("holds" if count[good] == len(found) else "holds in part" if count[good] and not count[bad]
               else "does not hold")
    scale, unit = (1.0, "") if lower else (100.0, " points")
    text = (f"better in {count[good]}, level in {count['tie']}, the same model in {count['identical']}, worse in "
            f"{count[bad]} of {len(found)} comparisons")
    if few := len(found) - sum(count.values()):
        text += f" ({few} have too few seeds yet)"
    shown = [c for c in found if c["verdict"] in (good, bad)]
    for name, group in (("best", [c for c in shown if c["verdict"] == good]),
                        ("worst", [c for c in shown if c["verdict"] == bad])):
        if group:
            c = max(group, key=lambda each: abs(each["difference"]))
            text += (f"; {name} {scale * c['difference']:+.2f} ± {scale * c['half']:.2f}{unit} against {c['baseline']} "
                     f"at {c['value']:g}")
    detectable = [c["detectable"] for c in found if c["verdict"] == "tie" and c["detectable"]]
    if detectable:
        text += f"; ties could have hidden {scale * max(detectable):.2f}{unit}"
    if verdict == "does not hold" and count[good] and count[bad] < count[good]:
        verdict = "holds in part"
    return verdict, text


CLAIMS = (
    Claim("III-A", "Assumption 4: ‖ω − ω̃‖² ≤ λ‖ω‖².", "theory", assumption4),
    Claim("III-B", "Lemma 1: ‖∇L − ∇L̃‖ ≤ φ‖∇L‖.", "theory", lemma),
    Claim("III-B", "Proposition 1: the gap grows by at most ½(η² + Φ²)E‖G‖² a round.", "theory", proposition),
    Claim("III-B", "Remark 1: a smaller φ means a smaller discrepancy between training and test.", "theory",
          phi_orders_clients),
    Claim("III-B", "Theorem 1: the mean squared gradient norm is at most θ.", "theory", theorem),
    Claim("III-B", "Remark 2: more clients and smaller pruning ratios speed up convergence.", "guide",
          clients_and_pruning),
    Claim("IV", "Minimising θ under the budgets gives the better learner (implied).", "guide", good_guide),
    Claim("V, Table I", "The sizes are those of LeNet and ResNet-110.", "table1", table_sizes),
    Claim("V, Fig. 3", "As σ grows, the statements vary less among clients.", "fig3", spread_falls),
    Claim("V, Fig. 4", "The statement improves accuracy at every σ (on MNIST; not in the paper).", "fig4",
          versus("no_generalization")),
    Claim("V, Fig. 4", "The statement improves accuracy at every σ (CIFAR-10).", "fig4",
          versus("no_generalization", 1)),
    Claim("V, Fig. 5(a)", "Lowest final training loss within the delay threshold (MNIST).", "fig5", versus(lower=True)),
    Claim("V, Fig. 5(b)", "The same on CIFAR-10, some baselines faster at first.", "fig5", versus(panel=1, lower=True)),
    Claim("V, Fig. 6(a)", "Lowest final training loss within the energy threshold (MNIST).", "fig6",
          versus(lower=True)),
    Claim("V, Fig. 6(b)", "The same on CIFAR-10.", "fig6", versus(panel=1, lower=True)),
    Claim("V, Fig. 7(a)", "Higher accuracy than every baseline at every delay threshold (MNIST).", "fig7", versus()),
    Claim("V, Fig. 7(a)", "Significantly above the design without the statement (MNIST).", "fig7",
          versus("no_generalization")),
    Claim("V, Fig. 7(b)", "Higher accuracy than every baseline at every delay threshold (CIFAR-10).", "fig7",
          versus(panel=1)),
    Claim("V, Fig. 8(a)", "A considerable advantage under the tightest energy threshold (MNIST).", "fig8",
          versus(tight=True)),
    Claim("V, Fig. 8(a)", "Higher accuracy than every baseline at every energy threshold (MNIST).", "fig8", versus()),
    Claim("V, Fig. 8(a)", "Above the design without the statement (MNIST).", "fig8", versus("no_generalization")),
    Claim("V, Fig. 8(b)", "Higher accuracy at every energy threshold (CIFAR-10).", "fig8", versus(panel=1)),
    Claim("beyond", "The same advantage where clients differ more (MNIST, σ = 0.1, 0.3, 1).", "heterogeneity",
          versus()),
)


def load(figure: str, folder: Path = FOLDER) -> Results | None:
    """A figure's committed results, if there are any."""
    path = folder / figure / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def page(folder: Path = FOLDER) -> str:
    """``docs/explanation/claims.md``, from the committed results alone."""
    found = {name: load(name, folder) for name in dict.fromkeys(claim.figure for claim in CLAIMS)}
    lines = [HEAD.format(runs=_runs(found))]
    for claim in CLAIMS:
        results = found[claim.figure]
        answers = [claim.judge(results, mode) if results is not None else NOT_YET for mode in MODES]
        cells = [f"**{verdict}**: {text}" if text != "–" else verdict for verdict, text in answers]
        lines.append(f"| {claim.where} | {claim.text} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n" + _missing(found)


def _runs(found: Mapping[str, Results | None]) -> str:
    """The runs behind the page, and what they cost."""
    most = [r["provenance"] for r in found.values() if r is not None and "hours" in r.get("provenance", {})]
    machines = sorted({machine for one in most for machine in one["machines"]})
    hours = max((one["hours"] for one in most), default=0.0)
    return f"{max((one['distinct_runs'] for one in most), default=0)} distinct runs behind its largest figure " \
           f"took {hours:g} process-hours on {', '.join(machines) or 'no machine yet'}"


def _missing(found: Mapping[str, Results | None]) -> str:
    lines = []
    for name, results in found.items():
        for panel in [] if results is None else results.get("panels", []):
            if panel["status"]:
                lines.append(f"- {name}, {panel['title']}: {panel['status']}.")
            elif panel.get("missing"):
                lines.append(f"- {name}, {panel['title']}: {panel['missing']} distinct runs are not trained yet; the "
                             "comparisons above use the seeds that both schemes have.")
        if results is None:
            lines.append(f"- {name}: not yet run.")
    return "\n## Not yet measured\n\n" + "\n".join(lines) + "\n" if lines else ""


HEAD = """\
# Claim by claim

What the paper says in Sections III to V, and what was measured. This page is written by
`python -m fedgap.evidence.claims` from the results in `experiments/`; a test holds that it is up to date. How each
figure was made, and how to make it again, is in [Reproduce the paper](../how-to/reproduce.md); what the two modes are,
in [How the paper is read](readings.md). The {runs}.

Numbers are means over seeds ± half of Student's 95 % interval. Comparisons of schemes are paired over seeds (two-sided
t-test, Holm-corrected over one figure and mode, level 5 %); "the same model" means that both schemes planned the same
selections and pruning ratios, "level" that no difference was found, and the largest difference that a tie could have
hidden (80 % power) is said. *Holds*: better in every comparison. *Holds in part*: better in some, and in more than it
is worse.

| where | claim | repaired | as printed |
|---|---|---|---|"""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
