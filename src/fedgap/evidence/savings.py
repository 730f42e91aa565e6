"""Joules and seconds to equal accuracy: what the proposed scheme spends until it is as good as a baseline.

Of two runs of one seed, the lower of the two final accuracies is one that both have reached. Each one's first
evaluation at or above it (between evaluations by linear interpolation) says what it had spent by then; the ratio,
proposed's over the baseline's, is averaged geometrically over seeds. Taking the baseline's final accuracy instead
would leave out the seeds in which the proposed scheme never gets there, and flatter it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedgap.statistics import Interval, interval

AXES = {"seconds": "delay_s", "joules": "energy_j"}
Runs = Mapping[str, Mapping[str, Any]]


def spent_at(row: Mapping[str, Any], run: Mapping[str, Any], accuracy: float) -> float | None:
    """The share of its total that a run had spent when it first reached an accuracy; None if it never did.

    Rounds of one plan cost nearly the same, so that spending is taken to be proportional to rounds.
    """
    before, reached = 0.0, 0.0
    for number, value in zip(run["round"], run["test_accuracy"], strict=True):
        if value >= accuracy:
            part = 1.0 if value == reached else (accuracy - reached) / (value - reached)
            return float((before + part * (number - before)) / row["rounds"])
        before, reached = number, value
    return None


def ratios(rows: Sequence[Mapping[str, Any]], runs: Runs, baseline: str) -> dict[str, Interval]:
    """ln(proposed's over the baseline's) by axis, over the seeds of one mode and value that have both."""
    schemes = {name: {row["seed"]: row for row in rows if row["scheme"] == name and row["accuracy"] is not None}
               for name in ("proposed", baseline)}
    found: dict[str, list[float]] = {axis: [] for axis in AXES}
    for seed in sorted(schemes["proposed"].keys() & schemes[baseline].keys()):
        both = [schemes["proposed"][seed], schemes[baseline][seed]]
        accuracy = min(row["accuracy"] for row in both)
        shares = [spent_at(row, runs[row["run"]], accuracy) for row in both]
        for axis, key in AXES.items():
            own, other = (share * row[key] for share, row in zip(shares, both, strict=True) if share is not None)
            found[axis].append(math.log(own / other))
    return {axis: interval(values) for axis, values in found.items() if values}


def written(value: Interval) -> str:
    """e.g. ``0.85 (0.80 to 0.91)``; without an interval where all seeds agree or there is only one."""
    if value.half is None or value.half < 5e-4:
        return f"{math.exp(value.mean):.2f}"
    return f"{math.exp(value.mean):.2f} ({math.exp(value.low):.2f} to {math.exp(value.high):.2f})"
