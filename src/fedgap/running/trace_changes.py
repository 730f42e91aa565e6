"""Describe in words what changed in the world from one row of its trace to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgap.arrays import Floats
from fedgap.system.trace import Trace

_CLOCK, _GAIN = 1.5, 10.0
"""Factors by which a clock and a channel's gain must change to be mentioned."""
_NAMED = 3
"""Maximum number of clients that are named; the others are only counted."""


def clients_changes(trace: Trace, number: int, names: Sequence[str]) -> list[str]:
    """Sentences that say which clients left, came back, became slower or faster, or have another channel since the
    previous row.

    Row 0 is compared with the fleet as the scenario describes it."""
    now = trace.row(number)
    last, before = (trace, trace.row(number - 1)) if number else (Trace.constant(1, len(names)), 0)
    here, was_here = trace.available[now], last.available[before]
    clock = np.where(here, trace.speed[now] / last.speed[before], 1.0)
    gain = np.where(here, trace.gain[now] / last.gain[before], 1.0)

    def named(who: np.ndarray) -> str:
        clients = np.flatnonzero(who).tolist()
        listed = [names[n] for n in clients[:_NAMED]]
        if len(clients) > _NAMED:
            listed.append(f"{len(clients) - _NAMED} more")
        return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"

    def text(who: np.ndarray, one: str, several: str, amount: Floats | None = None) -> list[str]:
        """A list with one sentence about these clients, with the largest ``amount``; empty if there are none."""
        if not who.any():
            return []
        size = "" if amount is None else f"{amount[who].max():.2g}"
        return [(one if who.sum() == 1 else several).format(named(who), size)]

    decibels = 10.0 * np.abs(np.log10(gain))
    return [
        *text(was_here & ~here, "{} left", "{} left"),
        *text(here & ~was_here, "{} came back", "{} came back"),
        *text(clock <= 1 / _CLOCK, "{} computes {} times slower", "{} compute up to {} times slower", 1.0 / clock),
        *text(clock >= _CLOCK, "{} computes {} times faster", "{} compute up to {} times faster", clock),
        *text(gain <= 1 / _GAIN, "the channel of {} is {} dB weaker", "the channels of {} are up to {} dB weaker",
              decibels),
        *text(gain >= _GAIN, "the channel of {} is {} dB stronger", "the channels of {} are up to {} dB stronger",
              decibels),
    ]
