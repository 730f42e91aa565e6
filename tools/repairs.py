"""The effect of each repair alone: with the repair minus without it, everything else as repaired, paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgap.statistics import Interval, interval
from tools.guide import named, ranks

READINGS = {
    "size_normalised": ("size_normalised mean, secant, corrected", "as_printed mean, secant, corrected"),
    "mean": ("size_normalised mean, secant, corrected", "size_normalised sum, secant, corrected"),
    "mixture": ("size_normalised mixture, secant, corrected", "size_normalised mean, secant, corrected"),
    "corrected": ("size_normalised mixture, secant, corrected", "size_normalised mixture, secant, printed"),
    "secant": ("size_normalised mixture, secant, corrected", "size_normalised mixture, theorem, corrected"),
}
"""Repair → readings of θ with it and without it; the reading ``size_normalised`` with ``mean`` is shown as ``mean``."""
_CELLS = 13
"""Number of rows in the benchmark of pruning rules once it is complete."""


def rows(guide: Mapping[str, Any] | None, pruning: Mapping[str, Any] | None,
         repeats: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Rows (repair, what was measured, difference) from the plans of ``tools.guide``, the pruning rules and repeated
    runs."""
    lines = []
    for name, (reading_with, reading_without) in READINGS.items():
        text = "not yet measured" if guide is None else "; ".join(
            f"{_shown(_difference(guide['rows'], sigma, reading_with, reading_without), 2)} at σ = {sigma:g}"
            for sigma in (5.0, 0.3))
        lines.append((name, "rank correlation of θ with the test error of random plans", text))
    complete = pruning is not None and len(pruning["rows"]) == _CELLS
    cells = {(row["variant"], row["ratio"]): row["each"] for row in pruning["rows"]} if complete and pruning else {}
    for name, what, columns in (
        ("dense_first", "points of accuracy, the pruned model evaluated",
         (("dense first", 1), ("without repair", 1))),
        ("dense_first: gradients remembered", "points of accuracy, both with a dense first round",
         (("dense first", 1), ("dense first, forgetting", 1))),
        ("evaluate_pruned", "points of accuracy, the pruned model minus the full one, `dense_first` in both",
         (("dense first", 1), ("dense first", 0))),
    ):
        (first, i), (second, j) = columns
        text = "not yet measured" if not cells else "; ".join(
            f"{_shown(_paired(cells[first, ratio], i, cells[second, ratio], j), 1)} at λ = {ratio:g}"
            for ratio in (0.3, 0.5, 0.7))
        lines.append((name, what, text))
    lines.append(("current weights", "points of accuracy of plans at the nominal budgets, repaired", _weights(repeats)))
    return lines


def _weights(repeats: Mapping[str, Any] | None) -> str:
    """Accuracy with current weights in the importance minus that with previous weights, by scheme; both were trained on
    one machine."""
    all_rows = repeats["rows"] if repeats else []
    parts = []
    for scheme in dict.fromkeys(row["scheme"] for row in all_rows):
        current, previous = ({row["seed"]: 100.0 * row["accuracy"][1] for row in all_rows
                              if (row["scheme"], row["variant"]) == (scheme, variant)}
                             for variant in ("again", "previous_weights"))
        seeds = sorted(current.keys() & previous.keys())
        if len(seeds) > 1:
            parts.append(f"{_shown(interval([current[s] - previous[s] for s in seeds]), 2)} for {scheme}")
    return "; ".join(parts) or "not yet measured"


def _difference(plans: Sequence[dict[str, Any]], sigma: float, reading_with: str, reading_without: str) -> Interval:
    sigma_plans = [row for row in plans if row["sigma"] == sigma]
    with_it, without_it = (ranks(sigma_plans, named(reading)) for reading in (reading_with, reading_without))
    return interval([a - b for a, b in zip(with_it, without_it, strict=True)])


def _paired(first: Sequence[Sequence[float]], i: int, second: Sequence[Sequence[float]], j: int) -> Interval:
    """Column ``i`` of the first rule's seeds minus column ``j`` of the second rule's, as an interval."""
    return interval([a[i] - b[j] for a, b in zip(first, second, strict=True)])


def _shown(value: Interval, digits: int) -> str:
    return f"{value.mean:+.{digits}f} ± {value.half:.{digits}f}"
