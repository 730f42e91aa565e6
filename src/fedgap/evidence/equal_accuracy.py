"""Joules and seconds to equal accuracy: what a scheme spends until it is as good as a baseline.

Two runs of one seed have both reached the lower of their two final accuracies. The first evaluation at or above it
(interpolated linearly between evaluations) shows what each run had spent by then. The ratio, scheme divided by
baseline, is averaged geometrically over seeds. If the baseline's final accuracy were used instead, seeds in which the
scheme never reaches it would be left out, which would flatter the scheme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgap.statistics import Interval, interval

AXES = {"seconds": "delay_s", "joules": "energy_j"}
TOTALS = {"seconds": "delay_total_s", "joules": "energy_total_j"}
"""The keys of a record with what the run had spent at each of its evaluations."""
Runs = Mapping[str, Mapping[str, Any]]


def spent_at(row: Mapping[str, Any], run: Mapping[str, Any], accuracy: float) -> float | None:
    """The share of its rounds that a run had done when it first reached this accuracy; None if it never did."""
    before, reached = 0.0, 0.0
    for number, value in zip(run["round"], run["test_accuracy"], strict=True):
        if value >= accuracy:
            part = 1.0 if value == reached else (accuracy - reached) / (value - reached)
            return float((before + part * (number - before)) / row["rounds"])
        before, reached = number, value
    return None


def spent(row: Mapping[str, Any], run: Mapping[str, Any], accuracy: float, axis: str) -> float | None:
    """The seconds or joules (by ``axis``) that a run had spent when it first reached this accuracy; None if it never
    did.

    They are interpolated between the run's evaluations if its record has what was spent there. Otherwise all rounds are
    assumed to cost the same, which is nearly true for the rounds of one plan."""
    share = spent_at(row, run, accuracy)
    if share is None or TOTALS[axis] not in run:
        return None if share is None else share * float(row[AXES[axis]])
    return float(np.interp(share * row["rounds"], [0.0, *run["round"]], [0.0, *run[TOTALS[axis]]]))


def logarithms(rows: Sequence[Mapping[str, Any]], runs: Runs, baseline: str,
               scheme: str = "proposed") -> dict[str, dict[int, float]]:
    """ln(scheme/baseline) by axis (seconds, joules) and seed, for the seeds that have both.

    The rows must be of one mode and value.
    """
    schemes = {name: {row["seed"]: row for row in rows if row["scheme"] == name and row["accuracy"] is not None}
               for name in (scheme, baseline)}
    found: dict[str, dict[int, float]] = {axis: {} for axis in AXES}
    for seed in sorted(schemes[scheme].keys() & schemes[baseline].keys()):
        both = [schemes[scheme][seed], schemes[baseline][seed]]
        accuracy = min(row["accuracy"] for row in both)
        for axis in AXES:
            ours, theirs = (spent(row, runs[row["run"]], accuracy, axis) for row in both)
            if ours is not None and theirs is not None:
                found[axis][seed] = math.log(ours / theirs)
    return found


def ratios(rows: Sequence[Mapping[str, Any]], runs: Runs, baseline: str,
           scheme: str = "proposed") -> dict[str, Interval]:
    """Return the mean over seeds of ln(scheme over baseline) by axis; axes that no seed has are left out."""
    found = logarithms(rows, runs, baseline, scheme)
    return {axis: interval(list(by_seed.values())) for axis, by_seed in found.items() if by_seed}


def written(ratio: Interval) -> str:
    """A ratio given by its logarithm as text, such as ``0.85 (0.80 to 0.91)``; only its mean where all seeds agree or
    there is one seed."""
    if ratio.half is None or ratio.half < 5e-4:
        return f"{math.exp(ratio.mean):.2f}"
    return f"{math.exp(ratio.mean):.2f} ({math.exp(ratio.low):.2f} to {math.exp(ratio.high):.2f})"
