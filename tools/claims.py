"""The claims table: each claim in Sections III to V of the paper that can be checked, and what was measured.

    python -m tools.claims            writes docs/explanation/claims.md from the committed results
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedgap.evidence.equal_accuracy import AXES, Runs, ratios, written
from fedgap.evidence.store import Store
from fedgap.planning import PAPER_SCHEMES
from tools import EXPERIMENTS, ROOT, planning_worth, repairs, where_it_loses
from tools import claim_verdicts as verdicts
from tools.claim_verdicts import NOT_YET, Results
from tools.scheme_claims import faster_at_first, panel_of, saturates, versus

PAGE = ROOT / "docs" / "explanation" / "claims.md"
MODES = ("repaired", "as_printed")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its place in the paper, and the function that judges it in a mode from the results of a
    figure."""

    where: str
    text: str
    figure: str
    judge: verdicts.Judge
    unproven: str = ""
    """A link to why the paper does not prove it, whatever was measured."""

    def verdict(self, answer: verdicts.Answer) -> str:
        """The verdict as a cell of the table: a claim that holds only in measurements links to why."""
        return f"{answer[0]} ([not proven]({self.unproven}))" if self.unproven and answer[0] == "holds" else answer[0]


CLAIMS = (
    Claim("III-A", "Assumption 4: ‖ω − ω̃‖² ≤ λ‖ω‖².", "theory", verdicts.assumption4),
    Claim("III-B", "Lemma 1: ‖∇L − ∇L̃‖ ≤ φ‖∇L‖.", "theory", verdicts.lemma, "limits.md#of-the-theory"),
    Claim("III-B", "Proposition 1: the gap grows by at most ½(η² + Φ²)E‖G‖² a round.", "theory", verdicts.proposition,
          "limits.md#of-the-theory"),
    Claim("III-B", "Remark 1: a smaller φ means labels more consistent with the test set's.", "fig3",
          verdicts.phi_follows_divergence),
    Claim("III-B", "Remark 1: and thereby a smaller discrepancy between training and test.", "theory",
          verdicts.phi_orders_clients),
    Claim("III-B", "Theorem 1: the mean squared gradient norm is at most θ.", "theory", verdicts.theorem,
          "limits.md#of-the-theory"),
    Claim("III-B", "Its proof: E‖G‖² ≤ A²/(Z·k).", "theory", verdicts.moment_bound),
    Claim("III-B", "Remark 2: more clients and smaller pruning ratios speed up convergence.", "guide",
          verdicts.clients_and_pruning),
    Claim("IV-A", "P1 is hard to solve optimally.", "benchmarks/alternating_gap", verdicts.hard_to_solve),
    Claim("IV-B", "Algorithm 1 gives a suboptimal solution.", "benchmarks/alternating_gap", verdicts.algorithm_gap),
    Claim("IV", "Minimising θ under the budgets gives the better learner (implied).", "guide", verdicts.good_guide),
    Claim("V, Table I", "The sizes are those of LeNet and ResNet-110.", "table1", verdicts.table_sizes),
    Claim("V, Fig. 3", "As σ grows, the label distributions become more balanced.", "fig3", verdicts.more_balanced),
    Claim("V, Fig. 3", "As σ grows, the statements vary less among clients.", "fig3", verdicts.spread_falls),
    Claim("V, Fig. 4", "The statement improves accuracy at every σ (on MNIST; not in the paper).", "fig4",
          versus("no_generalization")),
    Claim("V, Fig. 4", "The statement improves accuracy at every σ (CIFAR-10).", "fig4",
          versus("no_generalization", 1)),
    Claim("V, Fig. 5(a)", "Lowest final training loss within the delay threshold (MNIST).", "fig5", versus(lower=True)),
    Claim("V, Fig. 5(b)", "The same on CIFAR-10.", "fig5", versus(panel=1, lower=True)),
    Claim("V, Fig. 5(b)", "Some baselines lower the loss faster at first and end higher (CIFAR-10).", "fig5",
          faster_at_first(1)),
    Claim("V, Fig. 6(a)", "Lowest final training loss within the energy threshold (MNIST).", "fig6",
          versus(lower=True)),
    Claim("V, Fig. 6(a)", "Some baselines lower the loss faster at first and end higher (MNIST).", "fig6",
          faster_at_first()),
    Claim("V, Fig. 6(b)", "Lowest final training loss within the energy threshold (CIFAR-10).", "fig6",
          versus(panel=1, lower=True)),
    Claim("V, Figs. 5(b), 6(b)", "The same with ResNet-110, the model of the text (nominal budgets).", "fig6",
          versus(panel=3, lower=True)),
    Claim("V, Fig. 7(a)", "Higher accuracy than every baseline at every delay threshold (MNIST).", "fig7", versus()),
    Claim("V, Fig. 7(a)", "Significantly above the design without the statement (MNIST).", "fig7",
          versus("no_generalization")),
    Claim("V, Fig. 7(b)", "Higher accuracy than every baseline at every delay threshold (CIFAR-10).", "fig7",
          versus(panel=1)),
    Claim("V, Fig. 8(a)", "As the energy threshold grows, the baselines' gain saturates, and delay binds (MNIST).",
          "fig8", saturates),
    Claim("V, Fig. 8(a)", "A considerable advantage under the tightest energy threshold (MNIST).", "fig8",
          versus(tight=True)),
    Claim("V, Fig. 8(a)", "Higher accuracy than every baseline at every energy threshold (MNIST).", "fig8", versus()),
    Claim("V, Fig. 8(a)", "Above the design without the statement (MNIST).", "fig8", versus("no_generalization")),
    Claim("V, Fig. 8(b)", "Higher accuracy at every energy threshold (CIFAR-10).", "fig8", versus(panel=1)),
    Claim("V, Figs. 7(b), 8(b)", "The same with ResNet-110, the model of the text (nominal budgets).", "fig8",
          versus(panel=3)),
    Claim("beyond", "Higher accuracy at T₀ = 90 s, however many rounds are asked for (MNIST).", "rounds", versus()),
    Claim("beyond", "The same advantage where clients differ more (MNIST, σ = 0.1, 0.3, 1).", "heterogeneity",
          versus()),
    Claim("beyond", "And over the city fleet of 40 clients, φ by mean (MNIST, σ = 0.3, 1).", "heterogeneity",
          versus(panel=1)),
    Claim("beyond", "And over the city fleet, φ of the pooled labels (MNIST, σ = 0.3, 1).", "heterogeneity",
          versus(panel=2)),
    Claim("beyond", "And over the city fleet, φ by mean (CIFAR-10, ResNet-20, σ = 0.1, 0.3, 1).", "heterogeneity",
          versus(panel=3)),
)
SETTINGS = (("fig7", 0, 150.0, "nominal"), ("fig7", 0, 90.0, "T₀ = 90 s"), ("fig8", 0, 150.0, "E₀ = 150 J"),
            ("heterogeneity", 0, 0.3, "σ = 0.3"), ("heterogeneity", 0, 0.1, "σ = 0.1"),
            ("heterogeneity", 1, 0.3, "city, σ = 0.3, by mean"), ("heterogeneity", 2, 0.3, "city, σ = 0.3, mixture"),
            ("fig7", 1, 3600.0, "CIFAR-10, nominal"), ("fig7", 1, 2160.0, "CIFAR-10, T₀ = 2160 s"),
            ("fig8", 1, 4260.0, "CIFAR-10, E₀ = 4260 J"))
"""Figure, panel and value at which joules and seconds to equal accuracy are compared; everything else is nominal."""


def load(figure: str, folder: Path = EXPERIMENTS) -> Results | None:
    """The committed results of a figure or benchmark; None if there are none."""
    path = folder / figure / "results.json"
    if figure.startswith("benchmarks/"):
        path = folder.parent / "benchmarks" / "results" / f"{figure.partition('/')[2]}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def page(folder: Path = EXPERIMENTS) -> str:
    """The text of ``docs/explanation/claims.md``, computed from the committed results alone."""
    results_of = {name: load(name, folder) for name in dict.fromkeys(claim.figure for claim in CLAIMS)}
    runs = {run["key"]: run for run in Store(folder / "runs.jsonl")}
    judged = {claim: _answers(claim, results_of[claim.figure], runs) for claim in CLAIMS}
    lines = [HEAD.format(runs=_runs(runs)), *counted(judged), "", *planning_worth.tables(load("panel", folder)),
             DETAILS]
    for number, (claim, answers) in enumerate(judged.items(), start=1):
        cells = " | ".join(claim.verdict(answer) for answer in answers)
        lines.append(f"| [{number}](#claim-{number}) | {claim.where} | {claim.text} | {cells} |")
    lines += ["", MEASURED]
    for number, (claim, answers) in enumerate(judged.items(), start=1):
        lines += [f"### Claim {number}", "", f"{claim.where}. {claim.text}", ""]
        lines += [f"- {mode.replace('_', ' ').capitalize()}: **{verdict}**, {text}." if text != "–" else
                  f"- {mode.replace('_', ' ').capitalize()}: {verdict}."
                  for mode, (verdict, text) in zip(MODES, answers, strict=True)]
        lines.append("")
    lines += [where_it_loses.REPAIRED, *where_it_loses.repaired(results_of),
              "", where_it_loses.BEFORE, *where_it_loses.repaired(results_of, significant=False),
              "", where_it_loses.AS_PRINTED, *where_it_loses.as_printed(results_of)]
    pruning, repeats_path = load("benchmarks/pruning_repairs", folder), folder / "repeats.json"
    repeats = json.loads(repeats_path.read_text(encoding="utf-8")) if repeats_path.is_file() else None
    lines += ["", REPAIRS, *(f"| `{name}` | {what} | {text} |" for name, what, text in
                             repairs.rows(results_of["guide"], pruning, repeats))]
    return "\n".join([*lines, "", SAVINGS, *_savings(results_of, runs)]) + "\n" + _missing(results_of)


def _answers(claim: Claim, results: Results | None, runs: Runs) -> list[verdicts.Answer]:
    """The verdict on a claim and the measurement, in each mode."""
    return [claim.judge({**results, "runs": runs}, mode) if results is not None else NOT_YET for mode in MODES]


GROUPS = {"III": "the bound (Section III)", "IV": "the algorithm (Section IV)", "V": "the experiments (Section V)",
          "beyond": "beyond the paper's settings"}
VERDICTS = ("holds", "holds in part", "undecided", "does not hold", "not measured")


def counted(judged: Mapping[Claim, list[verdicts.Answer]]) -> list[str]:
    """Table rows that count the verdicts by part of the paper and mode, and one row for the whole paper."""
    lines = []
    for title, members in [*((title, [part]) for part, title in GROUPS.items()),
                           ("_all of the paper_", ["III", "IV", "V"])]:
        for place, mode in enumerate(MODES):
            answers = [answer[place][0] for claim, answer in judged.items()
                       if claim.where.split("-")[0].split(",")[0] in members]
            cells = " | ".join(str(answers.count(verdict)) for verdict in VERDICTS)
            lines.append(f"| {title} | {mode.replace('_', ' ')} | {len(answers)} | {cells} |")
    return lines


def _savings(results_of: Mapping[str, Results | None], runs: Runs) -> list[str]:
    lines = []
    for figure, panel, value, title in SETTINGS:
        results = results_of[figure]
        for baseline in list(PAPER_SCHEMES)[1:]:
            cells = []
            for mode in MODES:
                rows = [] if results is None else panel_of(results, panel, mode).get("rows", [])
                rows = [row for row in rows if row["mode"] == mode and row["value"] == value]
                ratio = ratios(rows, runs, baseline)
                cells += [written(ratio[axis]) if axis in ratio else "–" for axis in AXES]
            if set(cells) != {"–"}:
                lines.append(f"| {title} | {baseline} | {' | '.join(cells)} |")
    return lines


def _runs(runs: Runs) -> str:
    """Describe the runs behind the page, and what they cost."""
    parts = []
    for machine in sorted({run["machine"] for run in runs.values()}):
        seconds = [run["wall_s"] for run in runs.values() if run["machine"] == machine]
        parts.append(f"{len(seconds):,} on {machine} in {sum(seconds) / 3600:.2f} process-hours")
    return "; ".join(parts) or "none yet"


def _missing(results_of: Mapping[str, Results | None]) -> str:
    lines = []
    for name, results in results_of.items():
        for panel in [] if results is None else results.get("panels", []):
            if panel["status"]:
                lines.append(f"- {name}, {panel['title']}: {panel['status']}.")
            elif panel.get("missing"):
                parts = " and ".join(f"{n} {mode.replace('_', ' ')}" for mode, n in panel["missing_by_mode"].items())
                lines.append(f"- {name}, {panel['title']}: distinct runs that are not trained yet: {parts}; the "
                             "comparisons above use the seeds that both schemes have.")
        if results is None:
            lines.append(f"- {name}: not yet run.")
        elif results.get("pending"):
            lines.append(f"- {name}: {results['pending']}.")
    return "\n## Not yet measured\n\n" + "\n".join(lines) + "\n" if lines else ""


HEAD = """\
# Claim by claim

What the paper says in Sections III to V, and what was measured. `python -m tools.claims` writes this page from the
results in `experiments/`, and a test checks that it is up to date. [Reproduce the paper](../how-to/reproduce.md)
explains how each figure was made and how to make it again, and [How the paper is read](readings.md) explains the two
modes.

Trained runs: {runs}; several processes shared the GPU, so that it was busy for less than that.

## How many claims hold

Each claim is judged in both modes. [How a claim is judged](#how-a-claim-is-judged) defines the words. A claim that
holds in measurements may still lack a proof; it then has a link to the reason.

| claims about | mode | claims | hold | hold in part | undecided | do not hold | not measured |
|---|---|---|---|---|---|---|---|"""
DETAILS = """\
## Each claim

The number leads to what was measured.

| | where | claim | repaired | as printed |
|---|---|---|---|---|"""
MEASURED = """\
## What was measured for each claim

### How a claim is judged

- *Holds*: the proposed scheme is better in every comparison.
- *Holds in part*: it is better in some comparisons, and in more than it is worse.
- *Undecided*: there are only ties, and each could have hidden more than a point (of the loss, 0.05).
- *Does not hold*: everything else, for example where both schemes trained the same model.
- A rank correlation whose interval is above 0.5 holds, one above 0 holds in part.

Numbers are means over seeds ± half of Student's 95 % interval. Comparisons of schemes are paired over seeds (two-sided
t-test, level 5 %). They are Holm-corrected over one panel and mode, so that the same difference may be a tie in one
figure and significant in another, which has other comparisons. "The same model" means that both schemes planned the
same selections and pruning ratios; "level" that no difference was found. What a tie could have hidden is the difference
that would have been found with a probability of 80 %. "On average over the values" is the proposed scheme minus the
baseline, each seed's mean over the values of σ or the budget for which all seeds exist. On CIFAR-10 the mode as printed
was run at the nominal budgets and at all σ; the city fleet and ResNet-110 were run as repaired only.
"""


REPAIRS = """\
## What each repair does alone

Difference: with the repair minus without it, all else as repaired; paired over ten seeds, ± half of the 95 % interval.
LeNet-5 on MNIST. The first five are judged by whether θ ranks the 200 random plans of each σ better
(`experiments/guide`), the others by training (`benchmarks/pruning_repairs.py`: σ = 5, all clients, 400 rounds; the last
one by `tools.repeats`).

| repair | measured | with the repair minus without it |
|---|---|---|"""
SAVINGS = """\
## Joules and seconds to equal accuracy

What the proposed scheme spends over what a baseline spends until each first reaches the lower of their two final
accuracies (MNIST where nothing else is said; geometric mean over seeds, 95 % interval): below 1 the proposed scheme
needs less. Where both trained the same model, what differs is what its rounds cost.

| setting | baseline | seconds, repaired | joules, repaired | seconds, as printed | joules, as printed |
|---|---|---|---|---|---|"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
