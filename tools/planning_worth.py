"""The section of the claims page about what planning is worth: tables from the results of the figure ``panel``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgap.evidence.equal_accuracy import AXES
from fedgap.evidence.planning_value import (
    MARGIN,
    OURS,
    TIGHT,
    OfCell,
    by_cell,
    pooled,
    pooled_difference,
    seed_means,
    spending,
)
from fedgap.planning import PAPER_SCHEMES
from fedgap.registry import RULES
from fedgap.statistics import holm, interval

Rows = Sequence[Mapping[str, Any]]
_BUDGETS = {0.125: "an eighth", 0.25: "a quarter", 1.0: "nominal"}

WHERE = """\
## What planning is worth, and where

Every scheme with the same learner, model, data, fleet and budgets (`experiments/panel`). A cell of this table is a mean
over the values of σ, five seeds. Differences are `forecast` minus the other, in points, paired over seeds, ± half of
the 95 % interval. The best rule is the published rule with the highest mean accuracy in that line.
[What is not trained yet](../../experiments/panel/README.md) is not here.

| task and fleet | budgets | cells | forecast, % | minus everybody | minus random-k | best rule | minus best rule |
|---|---|---|---|---|---|---|---|"""
RIVALS = """\
### Against each rival, over the tight budgets

The mean over all cells with at most a quarter of the nominal budgets that both have; *higher* and *lower* are
significant at 5 % after Holm's correction over the rivals. Seconds and joules: what `forecast` spends over what the
rival spends until both reach the lower of their final accuracies (geometric mean, 95 % interval over seeds). *Not
inferior*: cells whose one-sided 95 % bound is above −0.3 points.

| rival | cells | forecast minus rival, points | verdict | seconds | joules | not inferior |
|---|---|---|---|---|---|---|"""
LOSSES = """\
### Where forecast is below a rival

Cells in which a rival's mean accuracy is higher by more than 0.3 points;
[why](../../experiments/panel/README.md#where-forecast-loses-and-why).

| cell | budgets | rival | forecast minus rival, points | one-sided 95 % bound |
|---|---|---|---|---|"""
AGAIN = """\
### The paper's claims again, with the strong learner

Do joint selection and pruning win at tight budgets over the uneven fleet? The paper's own scheme `proposed`, which
minimises θ, minus its baselines, all with the practical learner; mean over the cells that both have. *Higher* and
*lower* are significant at 5 % after Holm's correction over the baselines; a large mean over few seeds may be a tie.

{answer}

| baseline | cells | proposed minus baseline, points | verdict |
|---|---|---|---|"""

_DECISIONS = {"pruning": "no_pruning", "selecting clients by θ": "all_clients"}
"""What the paper's scheme decides, and the baseline that leaves the decision out."""
_GAINS = {"higher": "wins", "lower": "loses", "tie": "neither wins nor loses"}
"""What a verdict on the paper's scheme minus a baseline says about the decision."""


def tables(results: Mapping[str, Any] | None) -> list[str]:
    """The lines of the section; empty before the panel is trained."""
    rows = [] if results is None else [row for panel in results["panels"] for row in panel.get("rows", [])
                                       if row["accuracy"] is not None]
    if results is None or not rows:
        return []
    judged, cells = results["judged"], by_cell([row for row in rows if row["mode"] == "practical"])
    lines = [WHERE, *_places(cells), "", RIVALS,
             *_rivals(judged), "", _regret(judged["regret"])]
    losses = _losses(judged["cells"])
    lines += ["", LOSSES, *losses] if losses else []
    again = _again([of_cell for (cell, share), of_cell in cells.items() if "city" in cell and share <= TIGHT])
    return [*lines, *(["", *again] if again else []), ""]


def _difference(cells: Iterable[OfCell], one: str, other: str) -> str:
    found = pooled(cells, one, other)
    return "–" if found is None else found[1].difference.signed(100)


def _places(cells: Mapping[tuple[str, float], OfCell]) -> list[str]:
    lines = []
    places = {(cell.rpartition(", ")[0], share) for cell, share in cells}
    for place, share in sorted(places):
        here = [of_cell for (cell, of), of_cell in cells.items() if (cell.rpartition(", ")[0], of) == (place, share)]
        ours = interval(list(seed_means(here, OURS).values()))
        rules = {rule: seed_means(here, rule) for rule in RULES.built_in if all(rule in of_cell for of_cell in here)}
        best = max(rules, key=lambda rule: math.fsum(rules[rule].values()) / max(1, len(rules[rule])), default=None)
        half = "" if ours.half is None else f" ± {100 * ours.half:.2f}"
        lines.append(f"| {place} | {_BUDGETS[share]} | {len(here)} | {100 * ours.mean:.2f}{half} | "
                     f"{_difference(here, OURS, 'all_clients')} | {_difference(here, OURS, 'random_k')} | "
                     + (f"`{best}` | {_difference(here, OURS, best)} |" if best else "– | – |"))
    return lines


def _rivals(judged: Mapping[str, Any]) -> list[str]:
    lines = []
    for entry in sorted(judged["pooled"], key=lambda each: each["difference"]):
        tight = [each for cell in judged["cells"] if cell["share"] <= TIGHT for each in cell["rivals"]
                 if each["rival"] == entry["rival"] and each.get("not_inferior") is not None]
        spent = " | ".join(spending(entry, axis) for axis in AXES)
        lines.append(f"| `{entry['rival']}` | {entry['cells']} | {pooled_difference(entry).signed(100)} | "
                     f"{entry['verdict']} | {spent} | {sum(each['not_inferior'] for each in tight)} of {len(tight)} |")
    return lines


def _regret(regret: Mapping[str, Any]) -> str:
    parts = [f"{100 * value['mean']:.2f} points over {value['cells']} {'tight ' if name == 'tight' else ''}cells"
             for name, value in regret.items()]
    return "Mean regret of `forecast`, the best mean accuracy of all schemes minus its own: " + ", ".join(parts) + "."


def _losses(cells: Rows) -> list[str]:
    lost = [(entry["difference"], cell, entry) for cell in cells for entry in cell["rivals"]
            if entry.get("difference", 0.0) < -MARGIN]
    return [f"| {cell['cell']} | {_BUDGETS[cell['share']]} | `{entry['rival']}` | {100 * entry['difference']:+.2f} | "
            f"{100 * entry['bound']:+.2f} |" for _, cell, entry in sorted(lost, key=lambda each: each[0])]


def _again(cells: Sequence[OfCell]) -> list[str]:
    """The section about the paper's claims; empty where no cell has its scheme and a baseline."""
    found = {baseline: pooled(cells, "proposed", baseline) for baseline in PAPER_SCHEMES if baseline != "proposed"}
    compared = {baseline: answer for baseline, answer in found.items() if answer is not None}
    corrected = dict(zip(compared, holm([comparison for _, comparison in compared.values()]), strict=True))
    if not corrected:
        return []
    said = [f"{what} {_GAINS[corrected[baseline].verdict]} ({corrected[baseline].difference.signed(100)} points "
            f"against `{baseline}`)" for what, baseline in _DECISIONS.items() if baseline in corrected]
    return [AGAIN.format(answer="**The answer:** " + ", ".join(said) + "."),
            *(f"| `{baseline}` | {len(compared[baseline][0])} | {comparison.difference.signed(100)} | "
              f"{comparison.verdict} |" for baseline, comparison in corrected.items())]
