"""The planning problem of one round with the clients that are available now.

Arrays of this problem have M entries, for the available clients only. Decisions are converted to the whole fleet of N.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, drawn_labels
from fedgap.planning.plan import Segment
from fedgap.planning.policies.policy import PolicyStart, RoundView
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.task import Task
from fedgap.system import Fleet, RoundCost
from fedgap.theory.fitted_forecast import FittedForecast

_TIGHT = 1.0 + 1e-9
"""A round is solved within this multiple of the budgets at which it was found, because these may only just suffice."""


@dataclass(frozen=True, eq=False)
class PresentRound:
    """One round of M of the fleet's N clients, with their present channels, clocks and labels."""

    clients: Ints
    """Indices of the clients in the whole fleet, (M,)."""
    size: int
    """N, the size of the whole fleet."""
    problem: Problem
    """The problem of these clients only, with the budgets that are left."""
    scheme: Scheme
    """What may be decided in this round."""
    selected: Bools | None
    """The clients that take part, (M,), if the scheme fixes them; otherwise None."""
    battery_j: Floats
    """Joules that are left in their batteries, (M,)."""
    fitted: FittedForecast
    """The forecast by which rounds are judged."""
    dense: bool = False
    """Whether this is the first round, which must not be pruned, although later rounds may be."""

    @classmethod
    def of(cls, start: PolicyStart, view: RoundView) -> "PresentRound | None":
        """Return the round that a policy sees; None if no client that may be selected is available."""
        return cls.row(start, view.fleet, view.available, (view.label_counts, view.target_counts),
                       budgets=(view.energy_j, view.delay_s), first=not view.done, battery_j=view.battery_j)

    @classmethod
    def row(
        cls, start: PolicyStart, fleet: Fleet, available: Bools, labels: tuple[Floats | None, Floats | None], *,
        budgets: tuple[float, float], first: bool, battery_j: Floats | None = None,
    ) -> "PresentRound | None":
        """Return the round with this fleet and these available clients; None if none of them may be selected.

        :param labels: label histograms of the clients, (N, classes), and of the target, (classes,);
        :param budgets: joules and seconds that are left; :param first: whether it is the first round that is trained;
        :param battery_j: joules that are left in all clients' batteries, (N,); by default full batteries.
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
        return cls(clients, len(available), problem, scheme, None if fixed is None else fixed[clients], battery,
                   start.fitted, dense)

    def as_usual(self, start: PolicyStart) -> "PresentRound":
        """Return the same clients in a round that may be pruned, also if this is an unpruned first round."""
        return replace(self, scheme=start.scheme, dense=False) if self.dense else self

    def objective(self, rounds: int, slowed: float) -> ForecastTangent:
        """Return the forecast's tangent at z₀ = ``slowed`` for ``rounds`` rounds in total, with these clients."""
        return ForecastTangent(self.problem.with_rounds(rounds), self.fitted, slowed, counts_samples=False)

    def task(self, rounds: int, slowed: float) -> Task:
        """Return the task of planning only this round, which may use all that is left of the budgets.

        The objective is :meth:`objective` for ``rounds`` rounds in total.
        """
        return self._one.with_same_curves(objective=self.objective(rounds, slowed))

    @cached_property
    def _one(self) -> Task:
        return Task(self.problem.with_rounds(1), self.scheme, self.objective(1, 0.0), self.selected)

    @property
    def shortest_s(self) -> Floats:
        """The least seconds that each client needs for a round, (M,)."""
        return self._one.kinds[-1].curves.least_s

    def within(self, selected: Bools, energy_j: float, delay_s: float) -> Segment | None:
        """Return the round of these clients (M,) that prunes least within these budgets, for the whole fleet.

        The budgets are limited to what is left. Clients whose batteries do not suffice are left out. The result is None
        if the round does not fit.
        """
        energy = min(energy_j * _TIGHT, self.problem.energy_j)
        delay = min(delay_s * _TIGHT, self.problem.delay_s)
        problem = replace(self._one.problem, energy_j=energy, delay_s=delay)
        if energy <= problem.broadcast_j:
            return None
        while selected.any():
            composed = compose(self._one.with_same_curves(problem=problem), Composition((Part(0, selected, 1),)))
            if composed is None:
                return None
            segment = composed.segments[0]
            overdrawn = self.problem.cost(segment).client_j > self.battery_j
            if not overdrawn.any():
                return self.whole(segment)
            selected = selected & ~overdrawn
        return None

    def spread(self, values: Any) -> Any:
        """Return values of these clients (M,) as values of the whole fleet (N,), with 0 for the others."""
        everybody = np.zeros(self.size, dtype=values.dtype)
        everybody[self.clients] = values
        return everybody

    def whole(self, segment: Segment) -> Segment:
        """Return a round of these clients, with arrays (M,), as a round of the whole fleet, with arrays (N,)."""
        return replace(
            segment, selected=self.spread(segment.selected), pruning_ratio=self.spread(segment.pruning_ratio),
            power_w=self.spread(segment.power_w), frequency_hz=self.spread(segment.frequency_hz),
        )

    def cost(self, segment: Segment) -> RoundCost:
        """Return the cost of a round of the whole fleet. Only the available clients receive the broadcast."""
        arrays = {key: getattr(segment, key)[self.clients]
                  for key in ("selected", "pruning_ratio", "power_w", "frequency_hz")}
        return self.problem.cost(replace(segment, **arrays))

    def divergence(self, selected: Bools, rounds: int) -> float:
        """Return KL(A) of a selection of the whole fleet (N,), if there are ``rounds`` rounds in total."""
        return self.drawn(selected, rounds)[1]

    def drawn(self, selected: Bools, rounds: int) -> tuple[Floats, float]:
        """Return the mean label distribution of a selection, (C,), and :meth:`divergence`; (0,) if labels are
        unknown."""
        labels = drawn_labels(self.problem.with_rounds(rounds))
        return (np.zeros(0), 0.0) if labels is None else labels.drawn(selected[self.clients])
