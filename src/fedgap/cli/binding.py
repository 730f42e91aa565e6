"""What holds each client back in a round of a plan, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fedgap.planning import Plan, Segment
    from fedgap.planning.problem import Problem

NEAR = 1e-4
"""Relative distance at which a limit counts as reached; Algorithm 1's interior points stop this short of it."""


def energy_binds(problem: Problem, plan: Plan) -> bool:
    """Whether all of E₀ is used."""
    return plan.energy_j >= (1.0 - NEAR) * problem.energy_j


def delay_binds(problem: Problem, plan: Plan) -> bool:
    """Whether all of T₀ is used."""
    return plan.delay_s >= (1.0 - NEAR) * problem.delay_s


def binding(problem: Problem, segment: Segment, *, energy: bool) -> list[str]:
    """For each client the limits that it has reached in this segment's rounds; empty for one that is not selected.

    ``deadline``: nobody in the round takes longer. ``power cap``, ``clock cap``, ``both caps``: p = p^max,
    f = f^max. ``unpruned``: λ = 0, the least pruning, where others prune. ``most pruned``: λ = λ^max. ``energy``: below
    a cap, for E₀ is used up.

    :param energy: whether E₀ is used up.
    """
    fleet = problem.fleet
    power = segment.power_w >= (1.0 - NEAR) * fleet.max_power_w
    frequency = segment.frequency_hz >= (1.0 - NEAR) * fleet.max_frequency_hz
    reached = {
        "deadline": ends_last(problem, segment),
        "power cap": power & ~frequency,
        "clock cap": frequency & ~power,
        "both caps": power & frequency,
        "unpruned": (segment.pruning_ratio <= NEAR) & segment.pruning_ratio[segment.selected].any(),
        "most pruned": (segment.pruning_ratio >= fleet.max_ratio - NEAR) & (fleet.max_ratio > NEAR),
        "energy": ~(power & frequency) & energy,
    }
    return [
        ", ".join(word for word, holds in reached.items() if holds[n]) if segment.selected[n] else ""
        for n in range(problem.size)
    ]


def ends_last(problem: Problem, segment: Segment) -> npt.NDArray[np.bool_]:
    """The stragglers of a round: nobody takes longer, though several may tie. Shape (N,)."""
    cost = problem.cost(segment)
    return np.asarray(segment.selected & (cost.client_s >= (1.0 - NEAR) * cost.delay_s))
