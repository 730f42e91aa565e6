"""A point of Algorithm 1, and P1 as the algorithm treats it: with the variables of one round, repeated R times.

Channels are constant over rounds (Section V). Every round has the same subproblem, and the algorithm starts equally in
every round, so that all rounds get the same values: the (a, λ, p, f) of one round stand for all R. If round 0 must be
unpruned (``dense_first``), it has the same a, p and f with λ = 0, and its cost is part of both budgets.
"""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.system import computation_delay, computation_energy, fixed_delay, upload_delay, upload_energy

TOLERANCE = 1e-7
"""Relative excess at which a budget still counts as kept, because the subproblems are solved to about this
tolerance."""


@dataclass(frozen=True, eq=False)
class Iterate:
    """The values (a, λ, p, f) of one round, each of shape (N,). Unselected clients keep their last λ, p and f."""

    selected: Bools
    ratio: Floats
    power_w: Floats
    frequency_hz: Floats


@dataclass(frozen=True, eq=False)
class Loads:
    """What each client needs at given p and f for the whole model, shape (N,)."""

    energy_j: Floats
    """Energy of computing and uploading."""
    delay_s: Floats
    """Time of computing and uploading."""
    download_s: Floats
    """Time of the download and the latency, which pruning does not change."""


@dataclass(frozen=True, eq=False)
class Repeated:
    """P1 with one round that is repeated, under the restrictions of a scheme."""

    problem: Problem
    scheme: Scheme

    @property
    def dense_rounds(self) -> int:
        """1 if round 0 must be unpruned, otherwise 0."""
        return int(self.problem.dense_first and self.scheme.prune)

    @property
    def pruned_rounds(self) -> int:
        """The number of rounds that may be pruned, R − dense_rounds."""
        return self.problem.rounds - self.dense_rounds

    @property
    def energy_j(self) -> float:
        """E₀ minus the energy of the R broadcasts, which no decision changes."""
        return self.problem.energy_j - self.problem.rounds * self.problem.broadcast_j

    @property
    def max_ratio(self) -> Floats:
        """λ^max of every client, (N,); 0 if the scheme does not prune."""
        return self.problem.fleet.max_ratio if self.scheme.prune else np.zeros(self.problem.size)

    def loads(self, power_w: Floats, frequency_hz: Floats) -> Loads:
        """Return what every client needs for the whole model at these powers and frequencies."""
        fleet, whole = self.problem.fleet, np.zeros(self.problem.size)
        return Loads(
            energy_j=computation_energy(fleet, whole, frequency_hz) + upload_energy(fleet, whole, power_w),
            delay_s=computation_delay(fleet, whole, frequency_hz) + upload_delay(fleet, whole, power_w),
            download_s=fixed_delay(fleet),
        )

    def energy_of(self, loads: Loads, ratio: Floats) -> Floats:
        """Return the joules of each client over all rounds, if it is selected, (N,)."""
        return np.asarray((self.pruned_rounds * (1.0 - ratio) + self.dense_rounds) * loads.energy_j)

    def theta(self, point: Iterate) -> float:
        """Return θ of a point, as the scheme minimises it."""
        return self.problem.objective(self.segments(point)).theta

    def feasible(self, point: Iterate) -> bool:
        """Return whether a point keeps every constraint of P1."""
        return self.problem.violation(self.segments(point)) <= 2.0 * TOLERANCE

    def segments(self, point: Iterate) -> tuple[Segment, ...]:
        """Return the point as segments of a plan. Round 0 is a separate segment if it must be unpruned."""

        def segment(rounds: int, ratio: Floats) -> Segment:
            columns = (np.where(point.selected, c, 0.0) for c in (ratio, point.power_w, point.frequency_hz))
            return Segment(rounds, point.selected, *columns, local_steps=self.problem.local_steps,
                           upload_bits=self.problem.upload_bits)

        first = [segment(self.dense_rounds, np.zeros(self.problem.size))] if self.dense_rounds else []
        rest = [segment(self.pruned_rounds, point.ratio)] if self.pruned_rounds else []
        return (*first, *rest)
