"""Which limits keep each client of a plan from doing better, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedgap.analysis.cost_report import NEAR, segment_cost
from fedgap.analysis.plan_check import check_plan
from fedgap.arrays import Bools
from fedgap.config import Scenario
from fedgap.planning import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, repr=False)
class Binding(Printable):
    """The limits that a plan reaches: budgets, and limits of the clients in each segment."""

    names: tuple[str, ...]
    rounds: tuple[int, ...]
    """The number of rounds of each segment."""
    energy: bool
    """Whether the energy budget E₀ is used up."""
    delay: bool
    """Whether the delay budget T₀ is used up."""
    clients: tuple[tuple[str, ...], ...]
    """For each segment and client, the limits reached in words (see :func:`limits_reached`)."""

    @classmethod
    def from_problem(cls, problem: Problem, plan: Plan) -> Binding:
        """Return the limits that a plan reaches. The plan must fit the problem."""
        energy = plan.energy_j >= (1.0 - NEAR) * problem.energy_j
        delay = plan.delay_s >= (1.0 - NEAR) * problem.delay_s
        drained = problem.client_energy(plan.segments) >= (1.0 - NEAR) * problem.fleet.battery_j
        words = tuple(tuple(limits_reached(problem, segment, energy=energy, drained=drained))
                      for segment in plan.segments)
        return cls(problem.names, tuple(segment.rounds for segment in plan.segments), energy, delay, words)

    def parts(self) -> list[RenderableType]:
        """Return a table with one row per client and one column per segment, and a sentence about the budgets."""
        from fedgap.report.number_format import rounds

        heads = [f"in {rounds(count)} ({position})" for position, count in enumerate(self.rounds, 1)]
        table = Sheet("What binds", "client", *heads, left=heads)
        for name, *words in zip(self.names, *self.clients, strict=True):
            table.add_row(name, *(word or "–" for word in words))
        used = [name for name, binds in (("energy", self.energy), ("delay", self.delay)) if binds]
        return [table, f"Used up: the {' and the '.join(used)} budget." if used else "Neither budget is used up."]


def what_binds(scenario: Scenario, plan: Plan) -> Binding:
    """Return which budgets a plan uses up, and which limits each client reaches."""
    check_plan(scenario, plan, other_scenario=True)
    return Binding.from_problem(Problem.of(scenario), plan)


def limits_reached(
    problem: Problem, segment: Segment, *, energy: bool, drained: Bools | None = None
) -> list[str]:
    """Return the limits that each client reaches in the rounds of a segment, in words; "" for unselected clients.

    ``deadline``: no other client of the round takes longer. ``power cap``, ``clock cap``, ``both caps``: p = p^max, f =
    f^max. ``least power``, ``least clock``: p = p^min, f = f^min. ``battery``: B_n is used up. ``unpruned``: λ = 0,
    although others prune. ``most pruned``: λ = λ^max. ``energy``: power or clock is below its maximum because E₀ is
    used up.

    :param energy: whether E₀ is used up; :param drained: the clients whose battery is used up, (N,).
    """
    fleet = problem.fleet
    power = segment.power_w >= (1.0 - NEAR) * fleet.max_power_w
    frequency = segment.frequency_hz >= (1.0 - NEAR) * fleet.max_frequency_hz
    reached = {
        "deadline": segment_cost(problem, segment).stragglers,
        "power cap": power & ~frequency,
        "clock cap": frequency & ~power,
        "both caps": power & frequency,
        "least power": (segment.power_w <= (1.0 + NEAR) * fleet.min_power_w) & ~power,
        "least clock": (segment.frequency_hz <= (1.0 + NEAR) * fleet.min_frequency_hz) & ~frequency,
        "battery": np.zeros(problem.size, dtype=np.bool_) if drained is None else drained,
        "unpruned": (segment.pruning_ratio <= NEAR) & segment.pruning_ratio[segment.selected].any(),
        "most pruned": (segment.pruning_ratio >= fleet.max_ratio - NEAR) & (fleet.max_ratio > NEAR),
        "energy": ~(power & frequency) & np.bool_(energy),
    }
    return [
        ", ".join(word for word, holds in reached.items() if holds[n]) if segment.selected[n] else ""
        for n in range(problem.size)
    ]
