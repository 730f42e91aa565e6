"""What each repair does by itself: with it less without it, everything else as repaired, paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgap.evidence.guide import named, ranks
from fedgap.statistics import Interval, interval

READINGS = {
    "size_normalised": ("size_normalised mean, secant, corrected", "as_printed mean, secant, corrected"),
    "mean": ("size_normalised mean, secant, corrected", "size_normalised sum, secant, corrected"),
    "mixture": ("size_normalised mixture, secant, corrected", "size_normalised mean, secant, corrected"),
    "corrected": ("size_normalised mixture, secant, corrected", "size_normalised mixture, secant, printed"),
    "secant": ("size_normalised mixture, secant, corrected", "size_normalised mixture, theorem, corrected"),
}
"""Repair → θ's reading with and without it; ``size_normalised`` and ``mean`` are shown under ``mean``."""
_CELLS = 13
"""Of the benchmark of pruning rules, when it is complete."""


def rows(guide: Mapping[str, Any] | None, pruning: Mapping[str, Any] | None,
         repeats: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """(repair, what was measured, with less without), from the guide's plans, the pruning rules, runs repeated."""
    found = []
    for name, (own, without) in READINGS.items():
        text = "not yet measured" if guide is None else "; ".join(
            f"{_shown(_difference(guide['rows'], sigma, own, without), 2)} at σ = {sigma:g}" for sigma in (5.0, 0.3))
        found.append((name, "rank correlation of θ with the test error of random plans", text))
    complete = pruning is not None and len(pruning["rows"]) == _CELLS
    cells = {(row["variant"], row["ratio"]): row["each"] for row in pruning["rows"]} if complete and pruning else {}
    for name, what, columns in (
        ("dense_first", "points of accuracy, the pruned model evaluated",
         (("dense first", 1), ("without repair", 1))),
        ("dense_first: gradients remembered", "points of accuracy, both with a dense first round",
         (("dense first", 1), ("dense first, forgetting", 1))),
        ("evaluate_pruned", "points of accuracy, the pruned model less the full one, `dense_first` in both",
         (("dense first", 1), ("dense first", 0))),
    ):
        (first, i), (second, j) = columns
        text = "not yet measured" if not cells else "; ".join(
            f"{_shown(_paired(cells[first, ratio], i, cells[second, ratio], j), 1)} at λ = {ratio:g}"
            for ratio in (0.3, 0.5, 0.7))
        found.append((name, what, text))
    found.append(("current weights", "points of accuracy of plans at the nominal budgets, repaired", _weights(repeats)))
    return found


def _weights(repeats: Mapping[str, Any] | None) -> str:
    """Current less previous weights in the importance, by scheme, both trained on the same machine."""
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


def _difference(plans: Sequence[dict[str, Any]], sigma: float, own: str, without: str) -> Interval:
    mine = [row for row in plans if row["sigma"] == sigma]
    return interval([a - b for a, b in zip(ranks(mine, named(own)), ranks(mine, named(without)), strict=True)])


def _paired(own: Sequence[Sequence[float]], i: int, without: Sequence[Sequence[float]], j: int) -> Interval:
    return interval([a[i] - b[j] for a, b in zip(own, without, strict=True)])


def _shown(value: Interval, digits: int) -> str:
    return f"{value.mean:+.{digits}f} ± {value.half:.{digits}f}"
