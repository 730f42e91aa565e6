"""What planning is worth, as tables of the claims page: from the panel's rows and its judgement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedgap.evidence.planning_value import OURS, TIGHT
from fedgap.planning import PAPER_SCHEMES
from fedgap.registry import RULES
from fedgap.statistics import holm, interval, paired

Rows = Sequence[Mapping[str, Any]]
Seeds = dict[int, float]
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
rival spends until both reach the lower of their final accuracies. *Not inferior*: cells whose one-sided 95 % bound is
above −0.3 points.

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

| baseline | cells | proposed minus baseline, points | verdict |
|---|---|---|---|"""


def tables(results: Mapping[str, Any] | None) -> list[str]:
    """The section's lines; none before the panel is trained."""
    rows = [] if results is None else [row for panel in results["panels"] for row in panel.get("rows", [])
                                       if row["accuracy"] is not None]
    if results is None or not rows:
        return []
    judged = results["judged"]
    lines = [WHERE, *_places([row for row in rows if row["mode"] == "practical"]), "", RIVALS,
             *_rivals(judged), "", _regret(judged["regret"])]
    losses = _losses(judged["cells"])
    lines += ["", LOSSES, *losses] if losses else []
    again = _again([row for row in rows if row["mode"] == "practical" and "city" in row["cell"]
                    and row["value"] <= TIGHT])
    return [*lines, *(["", AGAIN, *again] if again else []), ""]


def _means(rows: Rows, scheme: str, cells: Sequence[tuple[str, float]]) -> Seeds:
    """By seed, the mean accuracy of a scheme over cells; only seeds that all of them have."""
    found: dict[tuple[str, float], Seeds] = {cell: {} for cell in cells}
    for row in rows:
        if row["scheme"] == scheme and (row["cell"], row["value"]) in found:
            found[row["cell"], row["value"]][row["seed"]] = row["accuracy"]
    seeds = set.intersection(*(set(by_seed) for by_seed in found.values()))
    return {seed: math.fsum(by_seed[seed] for by_seed in found.values()) / len(found) for seed in sorted(seeds)}


def _both(rows: Rows, one: str, other: str) -> list[tuple[str, float]]:
    """The cells that have runs of both schemes."""
    cells = [{(row["cell"], row["value"]) for row in rows if row["scheme"] == scheme} for scheme in (one, other)]
    return sorted(cells[0] & cells[1])


def _difference(rows: Rows, one: str, other: str) -> str:
    cells = _both(rows, one, other)
    if not cells:
        return "–"
    return paired(_means(rows, one, cells), _means(rows, other, cells)).difference.signed(100)


def _places(rows: Rows) -> list[str]:
    lines = []
    places = dict.fromkeys((row["cell"].rpartition(", ")[0], row["value"]) for row in rows)
    for place, share in sorted(places, key=lambda each: (each[0], each[1])):
        here = [row for row in rows if row["cell"].rpartition(", ")[0] == place and row["value"] == share]
        cells = sorted({(row["cell"], row["value"]) for row in here if row["scheme"] == OURS})
        ours = interval(list(_means(here, OURS, cells).values()))
        rules = {rule: _means(here, rule, cells) for rule in RULES.built_in if _both(here, OURS, rule) == cells}
        best = max(rules, key=lambda rule: math.fsum(rules[rule].values()) / max(1, len(rules[rule])), default=None)
        half = "" if ours.half is None else f" ± {100 * ours.half:.2f}"
        lines.append(f"| {place} | {_BUDGETS[share]} | {len(cells)} | {100 * ours.mean:.2f}{half} | "
                     f"{_difference(here, OURS, 'all_clients')} | {_difference(here, OURS, 'random_k')} | "
                     + (f"`{best}` | {_difference(here, OURS, best)} |" if best else "– | – |"))
    return lines


def _rivals(judged: Mapping[str, Any]) -> list[str]:
    lines = []
    for entry in sorted(judged["pooled"], key=lambda each: each["difference"]):
        tight = [each for cell in judged["cells"] if cell["share"] <= TIGHT for each in cell["rivals"]
                 if each["rival"] == entry["rival"] and each.get("not_inferior") is not None]
        half = "" if entry["half"] is None else f" ± {100 * entry['half']:.2f}"
        spent = " | ".join(f"× {entry[axis]:.2f}" if axis in entry else "–" for axis in ("seconds", "joules"))
        lines.append(f"| `{entry['rival']}` | {entry['cells']} | {100 * entry['difference']:+.2f}{half} | "
                     f"{entry['verdict']} | {spent} | {sum(each['not_inferior'] for each in tight)} of {len(tight)} |")
    return lines


def _regret(regret: Mapping[str, Any]) -> str:
    parts = [f"{100 * value['mean']:.2f} points over {value['cells']} {'tight ' if name == 'tight' else ''}cells"
             for name, value in regret.items()]
    return "Mean regret of `forecast`, the best mean accuracy of all schemes minus its own: " + ", ".join(parts) + "."


def _losses(cells: Rows) -> list[str]:
    lost = [(entry["difference"], cell, entry) for cell in cells for entry in cell["rivals"]
            if entry.get("difference", 0.0) < -0.003]
    return [f"| {cell['cell']} | {_BUDGETS[cell['share']]} | `{entry['rival']}` | {100 * entry['difference']:+.2f} | "
            f"{100 * entry['bound']:+.2f} |" for _, cell, entry in sorted(lost, key=lambda each: each[0])]


def _again(rows: Rows) -> list[str]:
    found, family = [], []
    for baseline in [name for name in PAPER_SCHEMES if name != "proposed"]:
        cells = _both(rows, "proposed", baseline)
        if cells:
            found.append((baseline, len(cells)))
            family.append(paired(_means(rows, "proposed", cells), _means(rows, baseline, cells)))
    return [f"| `{baseline}` | {cells} | {comparison.difference.signed(100)} | {comparison.verdict} |"
            for (baseline, cells), comparison in zip(found, holm(family), strict=True)]
