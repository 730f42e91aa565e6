"""The section of the claims page about what planning is worth: tables from the results of the figure ``panel``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedgap.evidence.equal_accuracy import AXES
from fedgap.evidence.planning_value import (
    MARGIN,
    OURS,
    TIGHT,
    OfCell,
    by_cell,
    compared,
    fleet_of,
    pooled,
    pooled_difference,
    seed_means,
    spending,
)
from fedgap.planning import PAPER_SCHEMES
from fedgap.registry import RULES
from fedgap.statistics import interval

Rows = Sequence[Mapping[str, Any]]
_BUDGETS = {0.125: "an eighth", 0.25: "a quarter", 1.0: "nominal"}
_PAPERS_LEARNER = (", repaired", ", as_printed")
"""How the names of rivals end that have the paper's learner."""

WHERE = """\
## What planning is worth, and where

Every scheme with the same learner, model, data, fleet and budgets (`experiments/panel`). Each line is the mean over its
cells, one for each σ, and over five seeds. *Promised* is the accuracy that the plans of `forecast` state before
training, and `forecast` that of their models, in percent. Differences are `forecast` minus the other, in points, paired
over seeds, ± half of the 95 % interval. The best rule is the published rule with the highest mean in that line.
[What is not trained yet](../../experiments/panel/README.md) is not here.

| task, fleet | budgets | cells | promised | `forecast` | minus `all_clients` | minus random-k | best rule | minus it |
|---|---|---|---|---|---|---|---|---|"""
RIVALS = """\
### Against each rival, over the tight budgets

The mean over all cells with at most a quarter of the nominal budgets that both have; *higher* and *lower* are
significant at 5 % after Holm's correction over the rivals. Seconds and joules: what `forecast` spends over what the
rival spends until both reach the lower of their final accuracies (geometric mean, 95 % interval over seeds). *Not
inferior*: cells whose one-sided 95 % bound is above −0.3 points.

Rivals have different cells, so compare a line with `forecast` only, not with other lines. `all_clients` and the other
schemes of the paper minimise θ, with 8 local steps; [The forecast](forecast.md#what-planning-by-the-forecast-is-worth)
compares with everybody taking part where local steps and rounds are planned by the forecast. *Repaired* and
*as_printed* are the paper's schemes with the paper's learner. `forecast` often passes their final accuracy before its
first evaluation, so that their seconds and joules are estimates.

| rival | cells | forecast minus rival, points | verdict | seconds | joules | not inferior |
|---|---|---|---|---|---|---|"""
FLEETS = """\
### By fleet

The same differences over the cells of each fleet, with Holm's correction over the rivals of that fleet.

| rival | {fleets} |
|---|{columns}"""
LOSSES = """\
### Where forecast may be below a rival

{said}
The other cells are listed here ([why](../../experiments/panel/README.md#where-forecast-loses-and-why)). *Worse than*:
the rival is better at the one-sided 95 % level. *Undecided*: neither that nor non-inferiority is shown, because five
seeds leave too much noise. In brackets the difference in points, `forecast` minus rival.

| cell | budgets | worse than | undecided against |
|---|---|---|---|"""
AGAIN = """\
### The paper's claims again, with the strong learner

Do joint selection and pruning win at tight budgets over the uneven fleet? The paper's own scheme `proposed`, which
minimises θ, minus its baselines, all with the practical learner; mean over the cells that both have. *Higher* and
*lower* are significant at 5 % after Holm's correction over the baselines; a large mean over few seeds may be a tie.
The cells: {cells}.

{answer}
With the forecast in place of θ both win at such budgets, with ten seeds
([the experiment](forecast.md#what-planning-by-the-forecast-is-worth)).

| baseline | cells | proposed minus baseline, points | verdict |
|---|---|---|---|"""

_DECISIONS = {"pruning": "no_pruning", "selecting clients by θ": "all_clients"}
"""What the paper's scheme decides, and the baseline that leaves the decision out."""
_GAINS = {"higher": "wins", "lower": "loses", "tie": "is undecided"}
"""What a verdict on the paper's scheme minus a baseline says about the decision."""


def tables(results: Mapping[str, Any] | None) -> list[str]:
    """The lines of the section; empty before the panel is trained."""
    rows = [] if results is None else [row for panel in results["panels"] for row in panel.get("rows", [])
                                       if row["accuracy"] is not None]
    if results is None or not rows:
        return []
    judged, cells = results["judged"], by_cell([row for row in rows if row["mode"] == "practical"])
    lines = [WHERE, *_places(cells), "", RIVALS, *_rivals(judged), "", *_fleets(judged), "", _regret(judged["regret"])]
    lines += ["", *_losses(judged["cells"])]
    lines += ["", *_again({place: of_cell for place, of_cell in cells.items()
                           if fleet_of(place[0]) == "city" and place[1] <= TIGHT})]
    return [*lines, ""]


def _difference(cells: Sequence[OfCell], other: str) -> str:
    """``forecast`` minus another scheme, with the number of cells if not all of them have it."""
    found = pooled(cells, OURS, other)
    if found is None:
        return "–"
    fewer = "" if len(found[0]) == len(cells) else f" ({len(found[0])} of {len(cells)} cells)"
    return found[1].difference.signed(100) + fewer


def _places(cells: Mapping[tuple[str, float], OfCell]) -> list[str]:
    lines = []
    places = {(cell.rpartition(", ")[0], share) for cell, share in cells}
    for place, share in sorted(places):
        here = [of_cell for (cell, of), of_cell in cells.items() if (cell.rpartition(", ")[0], of) == (place, share)]
        mine = seed_means(here, OURS)
        if not mine:
            continue
        ours = interval(list(mine.values()))
        promised = [of_cell[OURS][seed]["forecast"] for of_cell in here for seed in mine]
        found = {rule: pooled(here, OURS, rule) for rule in RULES.built_in}
        gains = {rule: answer[1].difference.mean for rule, answer in found.items()
                 if answer is not None and len(answer[0]) == len(here)}
        best = min(gains, key=lambda rule: gains[rule], default=None)
        half = "" if ours.half is None else f" ± {100 * ours.half:.2f}"
        lines.append(f"| {place} | {_budgets(share)} | {len(here)} | {100 * math.fsum(promised) / len(promised):.2f} | "
                     f"{100 * ours.mean:.2f}{half} | {_difference(here, 'all_clients')} | "
                     f"{_difference(here, 'random_k')} | " + (f"`{best}` | {_difference(here, best)} |" if best else
                                                              "– | – |"))
    return lines


def _budgets(share: float) -> str:
    return _BUDGETS.get(share, f"× {share:g}")


def _rivals(judged: Mapping[str, Any]) -> list[str]:
    lines = []
    for entry in sorted(judged["pooled"], key=lambda each: each["difference"]):
        tight = [each for cell in judged["cells"] if cell["share"] <= TIGHT for each in cell["rivals"]
                 if each["rival"] == entry["rival"] and each.get("not_inferior") is not None]
        spent = " | ".join(spending(entry, axis) for axis in AXES)
        lines.append(f"| `{entry['rival']}` | {entry['cells']} | {pooled_difference(entry).signed(100)} | "
                     f"{entry['verdict']} | {spent} | {sum(each['not_inferior'] for each in tight)} of {len(tight)} |")
    return lines


def _fleets(judged: Mapping[str, Any]) -> list[str]:
    """A table with a line for each rival that has the practical learner, and a column for each fleet."""
    entries = [entry for entry in sorted(judged["pooled"], key=lambda each: each["difference"])
               if not entry["rival"].endswith(_PAPERS_LEARNER)]
    most = {fleet: max(entry["by_fleet"].get(fleet, {"cells": 0})["cells"] for entry in entries)
            for fleet in sorted({fleet for entry in entries for fleet in entry["by_fleet"]})}

    def cell(entry: Mapping[str, Any], fleet: str) -> str:
        found = entry["by_fleet"].get(fleet)
        if found is None:
            return "–"
        fewer = "" if found["cells"] == most[fleet] else f" ({found['cells']} cells)"
        return f"{pooled_difference(found).signed(100)} {found['verdict']}{fewer}"

    if not most:
        return []
    head = FLEETS.format(fleets=" | ".join(f"{fleet}, {count} cells" for fleet, count in most.items()),
                         columns="---|" * len(most))
    return [head, *(f"| `{entry['rival']}` | " + " | ".join(cell(entry, fleet) for fleet in most) + " |"
                    for entry in entries)]


def _regret(regret: Mapping[str, Any]) -> str:
    every, tight = regret["all"], regret.get("tight")
    parts = [_regret_over(every, "cells")]
    if tight is not None and tight["cells"] != every["cells"]:
        parts.append(_regret_over(tight, "tight cells"))
    return "Mean regret of `forecast`, the best mean accuracy of all schemes minus its own: " + "; ".join(parts) + "."


def _regret_over(entry: Mapping[str, Any], what: str) -> str:
    said = f"{100 * entry['mean']:.2f} points over {entry['cells']} {what}"
    if (held := entry.get("held_out")) is None:
        return said
    return (f"{said}. This is too high, because the best of many noisy means is. If the best scheme is chosen by the "
            f"other seeds, it is {100 * held['mean']:+.2f} ± {100 * held['half']:.2f} points")


def _losses(cells: Rows) -> list[str]:
    """A line for each cell in which non-inferiority to some rival is not shown."""
    lines = []
    for cell in cells:
        open_against = sorted((entry for entry in cell["rivals"] if entry.get("not_inferior") is False),
                              key=lambda entry: float(entry["difference"]))
        if open_against:
            worse = [entry for entry in open_against if entry["upper"] < 0.0]
            undecided = [entry for entry in open_against if entry["upper"] >= 0.0]
            lines.append(f"| {cell['cell']} | {_budgets(cell['share'])} | {_named(worse)} | {_named(undecided)} |")
    said = (f"In {len(cells) - len(lines)} of {len(cells)} cells `forecast` is not inferior to any rival by more than "
            f"{100 * MARGIN:g} points.")
    return [LOSSES.format(said=said), *lines]


def _named(entries: Rows) -> str:
    return ", ".join(f"`{entry['rival']}` ({100 * entry['difference']:+.2f})" for entry in entries) or "–"


def _again(cells: Mapping[tuple[str, float], OfCell]) -> list[str]:
    """The section about the paper's claims; empty where no cell has its scheme and a baseline."""
    found = compared(cells.values(), "proposed", (name for name in PAPER_SCHEMES if name != "proposed"))
    if not found:
        return []
    said = [f"{what} {_GAINS[found[baseline][1].verdict]} ({found[baseline][1].difference.signed(100)} points "
            f"against `{baseline}`)" for what, baseline in _DECISIONS.items() if baseline in found]
    named = [f"{cell} ({_budgets(share)})" for (cell, share), of_cell in cells.items() if "proposed" in of_cell]
    return [AGAIN.format(answer="**The answer:** " + ", ".join(said) + ".", cells="; ".join(named)),
            *(f"| `{baseline}` | {len(both)} | {comparison.difference.signed(100)} | {comparison.verdict} |"
              for baseline, (both, comparison) in found.items())]
