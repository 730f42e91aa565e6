"""Verdicts on the paper's sentences about schemes: the proposed scheme is compared with its baselines, paired over
seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgap.evidence.results import MEASURES, by_seed
from fedgap.statistics import Interval, holm, interval, paired
from tools.claim_verdicts import NOT_YET, Answer, Judge, Results, in_all, number


def panel_of(results: Results, number: int, mode: str) -> Results:
    """Panel ``number``, or the panel with the same title that was run in this mode."""
    first: Results = results["panels"][number]
    twins = (panel for panel in results["panels"] if panel.get("title") == first.get("title"))
    return next((panel for panel in twins if any(row["mode"] == mode for row in panel.get("rows", []))), first)


def versus(baseline: str | None = None, panel: int = 0, *, lower: bool = False,
           tight: bool = False) -> Judge:
    """A judge that compares the proposed scheme with one baseline (or with all), at all values of a panel (or with
    ``tight`` only at the tightest)."""
    def judge(results: Results, mode: str) -> Answer:
        chosen = panel_of(results, panel, mode)
        if chosen.get("status"):
            return NOT_YET
        compared = [c for c in chosen["comparisons"] if c["mode"] == mode and baseline in (None, c["baseline"])]
        if tight:
            compared = [c for c in compared if c["value"] == min(other["value"] for other in compared)]
        if not compared:
            return NOT_YET
        verdict, text = comparisons(compared, lower=lower)
        return verdict, text + _averages(chosen["rows"], compared, lower=lower)
    return judge


WORTH = {False: 0.01, True: 0.05}
"""If a comparison could not have detected a difference of this size, a tie decides nothing. By "lower is better": in
accuracy (False), or in loss in nats (True)."""


def comparisons(compared: Sequence[Mapping[str, Any]], *, lower: bool = False) -> Answer:
    """The verdict on comparisons: "holds" if all are better, "holds in part" if some are better and fewer are worse.

    If there are only ties, and these could have hidden more than :data:`WORTH`, it is "undecided"; otherwise "does not
    hold"."""
    good, bad = ("lower", "higher") if lower else ("higher", "lower")
    count = {name: sum(c["verdict"] == name for c in compared) for name in ("higher", "lower", "tie", "identical")}
    verdict = ("holds" if count[good] == len(compared) else "holds in part" if count[good] and not count[bad]
               else "does not hold")
    scale, unit = (1.0, "") if lower else (100.0, " points")
    text = (f"better in {count[good]}, level in {count['tie']}, the same model in {count['identical']}, worse in "
            f"{count[bad]} of {len(compared)} comparisons over {_seeds(compared)}")
    if few := len(compared) - sum(count.values()):
        text += f" ({few} have too few seeds yet)"
    shown = [c for c in compared if c["verdict"] in (good, bad)]
    for name, group in (("best", [c for c in shown if c["verdict"] == good]),
                        ("worst significant", [c for c in shown if c["verdict"] == bad])):
        if group:
            c = max(group, key=lambda comparison: abs(comparison["difference"]))
            text += (f"; {name} {scale * c['difference']:+.2f} ± {scale * c['half']:.2f}{unit} against {c['baseline']} "
                     f"at {c['value']:g}")
    detectable = [c["detectable"] for c in compared if c["verdict"] == "tie" and c["detectable"]]
    if detectable and not lower and max(detectable) >= 1.0:
        text += "; with so few seeds ties could have hidden any difference"
    elif detectable:
        text += f"; ties could have hidden {scale * max(detectable):.2f}{unit}"
    if verdict == "does not hold" and count[good] and count[bad] < count[good]:
        verdict = "holds in part"
    if not (count[good] or count[bad] or count["identical"]) and min(detectable, default=0.0) > WORTH[lower]:
        verdict = "undecided"
    return verdict, text


def _seeds(compared: Sequence[Mapping[str, Any]]) -> str:
    """The number of seeds as text, such as ``3 seeds`` or ``2 to 3 seeds``."""
    counts = [c["seeds"] for c in compared]
    return f"{min(counts)} seeds" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} seeds"


def on_average(rows: Sequence[Mapping[str, Any]], mode: str, baseline: str, measure: str) -> Interval | None:
    """Proposed minus baseline, where each seed's accuracy is averaged over the values that all seeds of both schemes
    have.

    Averaging over values reduces the noise if there are few seeds."""
    pair = [{(row["seed"], row["value"]): row[measure] for row in rows if row["mode"] == mode and row["scheme"] == name
             and row[measure] is not None} for name in ("proposed", baseline)]
    both = pair[0].keys() & pair[1].keys()
    seeds = sorted({seed for seed, _ in both})
    values = [value for value in sorted({value for _, value in both}) if all((seed, value) in both for seed in seeds)]
    if not values:
        return None
    return interval([float(np.mean([pair[0][seed, value] - pair[1][seed, value] for value in values]))
                     for seed in seeds])


def _averages(rows: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]], *, lower: bool) -> str:
    """The average difference from each baseline as text, if there are comparisons at several values."""
    if len({c["value"] for c in compared}) < 2:
        return ""
    measure, scale, unit = (MEASURES["loss"], 1.0, "") if lower else (MEASURES["accuracy"], 100.0, ", points")
    differences = {name: on_average(rows, compared[0]["mode"], name, measure)
                   for name in dict.fromkeys(c["baseline"] for c in compared)}
    parts = [f"{name} {difference.signed(scale)}" for name, difference in differences.items() if difference is not None]
    return f"; on average over the values{unit}: {', '.join(parts)}" if parts else ""


def saturates(results: Results, mode: str) -> Answer:
    """Compare every baseline's gain from the nominal energy budget to the largest one with its gain from the smallest
    to the nominal.

    A baseline is saturated if the later gain is not above the earlier one, and is below half a point or not
    distinguishable from 0."""
    panel = results["panels"][0]
    rows = [row for row in panel.get("rows", []) if row["mode"] == mode]
    values = sorted({row["value"] for row in rows})
    if len(values) < 3:
        return NOT_YET
    steps, parts = ((values[0], panel["nominal"]), (panel["nominal"], values[-1])), []
    saturated: list[bool] = []
    names = [name for name in dict.fromkeys(row["scheme"] for row in rows if row["scheme"] != "proposed")
             if all(by_seed(rows, "accuracy", scheme=name, value=value) for value in steps[0] + steps[1])]
    if not names:
        return NOT_YET
    for name in names:
        gains = []
        for low, high in steps:
            before, after = (by_seed(rows, "accuracy", scheme=name, value=value) for value in (low, high))
            gains.append(interval([100.0 * (after[s] - before[s]) for s in sorted(before.keys() & after.keys())]))
        saturated.append(gains[1].mean <= max(gains[0].mean, 0.5) and (gains[1].mean < 0.5 or gains[1].low <= 0.0))
        parts.append(f"{name} {number((gains[0].mean, gains[0].half))}, then {number((gains[1].mean, gains[1].half))}")
    loose = [row for row in rows if row["value"] == values[-1] and row["accuracy"] is not None]
    late = sum(row["energy_j"] < 0.999 * row["value"] for row in loose)
    return in_all(saturated), (
        f"points gained from {values[0]:g} to {panel['nominal']:g} J, then to {values[-1]:g} J: " + "; ".join(parts)
        + f"; at {values[-1]:g} J {late} of {len(loose)} plans leave energy unspent")


def faster_at_first(panel: int = 0) -> Judge:
    """A judge that checks whether baselines have the lower loss after a quarter of the spending, but the higher loss at
    the end."""
    def judge(results: Results, mode: str) -> Answer:
        chosen = panel_of(results, panel, mode)
        if chosen.get("status"):
            return NOT_YET
        rows, axis = [row for row in chosen["rows"] if row["mode"] == mode], chosen["vary"]
        losses = {name: _early(rows, results["runs"], name, axis)
                  for name in dict.fromkeys(row["scheme"] for row in rows if row["scheme"] != "proposed")}
        names = [name for name, (baseline_losses, _) in losses.items() if baseline_losses]
        if not names:
            return NOT_YET
        early = holm([paired(*losses[name]) for name in names])
        ends = {c["baseline"]: c["verdict"] for c in chosen["comparisons"] if c["mode"] == mode}
        ahead = [name for name, c in zip(names, early, strict=True) if c.verdict == "lower"]
        behind = [name for name in ahead if ends.get(name) == "lower"]
        verdict = "does not hold" if not behind else "holds" if behind == ahead else "holds in part"
        if not ahead and min(c.difference.low for c in early) < -WORTH[True]:
            verdict = "undecided"
        text = "baseline's loss minus the proposed scheme's after a quarter of what both spend: " + "; ".join(
            f"{name} {c.difference.signed(digits=3)}" for name, c in zip(names, early, strict=True))
        return verdict, text + (f"; ahead at first: {', '.join(ahead)}; of these behind at the end: "
                                f"{', '.join(behind) or 'none'}" if ahead else "; none is ahead at first")
    return judge


def _early(rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Any], baseline: str,
           axis: str) -> tuple[dict[int, float], dict[int, float]]:
    """Training losses of the baseline and of the proposed scheme by seed, at a quarter of the smaller of their two
    totals."""
    losses: tuple[dict[int, float], dict[int, float]] = ({}, {})
    pair = [{row["seed"]: row for row in rows if row["scheme"] == name and row["accuracy"] is not None}
            for name in (baseline, "proposed")]
    for seed in sorted(pair[0].keys() & pair[1].keys()):
        point = 0.25 * min(rows_by_seed[seed][axis] for rows_by_seed in pair)
        for rows_by_seed, scheme_losses in zip(pair, losses, strict=True):
            row = rows_by_seed[seed]
            run = runs[row["run"]]
            spent = np.array(run["round"]) * (row[axis] / row["rounds"])
            scheme_losses[seed] = float(np.interp(point, spent, run["training_set_loss"]))
    return losses
