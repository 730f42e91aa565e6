"""Ratios of joules and seconds to equal accuracy, in the form of the claims page."""

from __future__ import annotations

import math

from fedgap.evidence.equal_accuracy import AXES, Runs, ratios, spent_at
from fedgap.statistics import Interval

__all__ = ["AXES", "Runs", "ratios", "spent_at", "written"]


def written(value: Interval) -> str:
    """The ratio as text, such as ``0.85 (0.80 to 0.91)``; without an interval if all seeds agree or there is only
    one."""
    if value.half is None or value.half < 5e-4:
        return f"{math.exp(value.mean):.2f}"
    return f"{math.exp(value.mean):.2f} ({math.exp(value.low):.2f} to {math.exp(value.high):.2f})"
