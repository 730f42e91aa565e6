"""The planning problem of the clients that are available now, and the conversion of its result to the whole fleet."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose, compose_single
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, drawn_labels, forecast
from fedgap.planning.plan import Segment
from fedgap.planning.policies.policy import PolicyStart, RoundView
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.task import Task
from fedgap.system import Fleet, RoundCost

_TIGHT = 1.0 + 1e-9
"""A round that was found at these budgets is solved again within this multiple of them: they may just suffice."""


@dataclass(frozen=True, eq=False)
class PresentRound:
    """One round of M of the fleet's N clients, with their present channels, clocks and labels."""

    clients: Ints
    """Who they are in the whole fleet, (M,)."""
    size: int
    """N."""
    problem: Problem
    """Of these clients alone, with the budgets that are left."""
    scheme: Scheme
    """What may be decided in this round."""
    selected: Bools | None
    """Who takes part where that is fixed, (M,)."""
    battery_j: Floats
    """What is left in their batteries, (M,)."""
    dense: bool = False
    """Whether this is a first round that must not be pruned, although others may."""

    @classmethod
    def of(cls, start: PolicyStart, view: RoundView) -> "PresentRound | None":
        """The round that a policy sees; None where nobody who may be selected is there."""
        return cls.row(start, view.fleet, view.available, (view.label_counts, view.target_counts),
                       budgets=(view.energy_j, view.delay_s), first=not view.done, battery_j=view.battery_j)

    @classmethod
    def row(
        cls, start: PolicyStart, fleet: Fleet, available: Bools, labels: tuple[Floats | None, Floats | None], *,
        budgets: tuple[float, float], first: bool, battery_j: Floats | None = None,
    ) -> "PresentRound | None":
        """A round with this fleet, these clients and labels (theirs and the target's); ``first``: the first one.

        :param battery_j: what is left in all clients' batteries, (N,); by default what the fleet begins with.
        """
        fixed = start.selected
        clients = np.flatnonzero(available)
        if not len(clients) or (fixed is not None and not (fixed & available).any()):
            return None
        nominal = start.problem
        counts, target = labels
        problem = replace(
            nominal, fleet=fleet.take(clients), energy_j=budgets[0], delay_s=budgets[1], phi=nominal.phi[clients],
            label_counts=None if counts is None else counts[clients], target_counts=target, dense_first=False,
            names=tuple(nominal.names[n] for n in clients) if nominal.names else (),
        )
        dense = nominal.dense_first and first and start.scheme.prune
        scheme = replace(start.scheme, prune=False) if dense else start.scheme
        battery = (fleet.battery_j if battery_j is None else battery_j)[clients]
        return cls(clients, len(available), problem, scheme, None if fixed is None else fixed[clients], battery, dense)

    def as_usual(self, start: PolicyStart) -> "PresentRound":
        """The same clients in a round that may be pruned, where the first round may not."""
        return replace(self, scheme=start.scheme, dense=False)

    def objective(self, rounds: int, slowed: float) -> ForecastTangent:
        """The forecast's tangent for so many rounds in all, with these clients and labels."""
        return replace(forecast(self.problem.with_rounds(rounds)), slowed=slowed)

    def task(self, rounds: int, slowed: float) -> Task:
        """This round alone, which may use all that is left; its cost is what the forecast for so many rounds has."""
        return Task(self.problem.with_rounds(1), self.scheme, self.objective(rounds, slowed), self.selected)

    @cached_property
    def _one(self) -> Task:
        return self.task(1, 0.0)

    @property
    def shortest_s(self) -> Floats:
        """The least seconds that each client needs, (M,)."""
        return self._one.kinds[-1].curves.least_s

    def within(self, selected: Bools, energy_j: float, delay_s: float) -> Segment | None:
        """The round of these clients, (M,), that prunes least within budgets of its own; None where it does not fit.

        Budgets above what is left are cut to that. Clients whose batteries it would overdraw are left out.
        """
        energy = min(energy_j * _TIGHT, self.problem.energy_j)
        delay = min(delay_s * _TIGHT, self.problem.delay_s)
        problem = replace(self._one.problem, energy_j=energy, delay_s=delay)
        if energy <= problem.broadcast_j:
            return None
        while selected.any():
            composed = compose(replace(self._one, problem=problem), Composition((Part(0, selected, 1),)))
            if composed is None:
                return None
            segment = composed.segments[0]
            overdrawn = self.problem.cost(segment).client_j > self.battery_j
            if not overdrawn.any():
                return self.whole(segment)
            selected = selected & ~overdrawn
        return None

    def least_pruned(self, selections: Bools, rounds: int, slowed: float) -> Bools | None:
        """Which of these selections, (S, M), is best for a last round that may use all that is left."""
        task = self.task(rounds, slowed)
        if self.problem.energy_j <= task.problem.broadcast_j:
            return None
        cost, _ = compose_single(task, selections)
        best = int(cost.argmin())
        return selections[best] if np.isfinite(cost[best]) else None

    def spread(self, values: Any) -> Any:
        """Values of these clients, (M,), as ones of the whole fleet, (N,), with 0 for the others."""
        everybody = np.zeros(self.size, dtype=values.dtype)
        everybody[self.clients] = values
        return everybody

    def whole(self, segment: Segment) -> Segment:
        """A round of these clients as one of the whole fleet."""
        return replace(
            segment, selected=self.spread(segment.selected), pruning_ratio=self.spread(segment.pruning_ratio),
            power_w=self.spread(segment.power_w), frequency_hz=self.spread(segment.frequency_hz),
        )

    def cost(self, segment: Segment) -> RoundCost:
        """The cost of a round that is given for the whole fleet; only the present clients receive the broadcast."""
        arrays = {key: getattr(segment, key)[self.clients]
                  for key in ("selected", "pruning_ratio", "power_w", "frequency_hz")}
        return self.problem.cost(replace(segment, **arrays))

    def divergence(self, selected: Bools, rounds: int) -> float:
        """KL of the labels that clients of the whole fleet, (N,), draw, if there are so many rounds in all."""
        return self.drawn(selected, rounds)[1]

    def drawn(self, selected: Bools, rounds: int) -> tuple[Floats, float]:
        """The labels that they draw, (C,), and :meth:`divergence`; no labels where none are known."""
        labels = drawn_labels(self.problem.with_rounds(rounds))
        return (np.zeros(0), 0.0) if labels is None else labels.drawn(selected[self.clients])
