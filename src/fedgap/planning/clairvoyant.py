"""What no policy can beat: a certified lower bound on the forecast error in a world that is known in advance.

Let ℓ_t(μ, ν) be the least Lagrangian of a round in row t of the world: cost of the round by a tangent of the forecast,
plus μ times its joules and ν times its seconds. Whoever trains R rounds in the first W rows, and passes the other ones
idle, has at least the error

    constant + (the R least of ℓ_0..ℓ_{W−1}, summed, + ν·(W − R)·(seconds of an idle row) − μ·E₀ − ν·T₀) / R

for every μ, ν ≥ 0 (weak duality). The least over W is a bound for R rounds. The forecast error falls with R if all else
is equal, so the costs of R₂ rounds bound those of all R₁ ≤ R ≤ R₂. Intervals of R are halved, the one of least bound
first, until the least bound belongs to a single R.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappush, heappushpop
from itertools import pairwise

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.objectives.forecast_tangent import ForecastTangent
from fedgap.planning.oracles.oracle import oracles_for
from fedgap.planning.oracles.planes import PlaneBound
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.policies.row_program import RowProgram
from fedgap.planning.policy_simulation import ChangingWorld, SimulatedPolicy
from fedgap.planning.tolerances import ENUMERATED_CLIENTS
from fedgap.report.printable import Printable

_ENOUGH = 2e-3
"""Share of the error by which the bound may be improved at most when the search ends."""
_MOST_SPLITS = 24
"""Intervals that are halved at most; the bound is valid whenever the search ends."""
_SAMPLED = 8
"""Rows that the prices are chosen by."""
_FACTORS = (2.0, 2.0, 1.4, 1.2, 1.1)
"""By which both prices are changed, together and one by one, while that raises the bound."""


@dataclass(frozen=True, eq=False, repr=False)
class Clairvoyant(Printable):
    """The bound for one world."""

    least_error: float
    """Certified: no policy can reach a smaller forecast error in this world."""
    rounds: int
    """The number of rounds at which the bound is least."""

    def regret(self, reached: SimulatedPolicy | float) -> float:
        """How far an error is above the bound, as a share of the bound."""
        error = reached.error if isinstance(reached, SimulatedPolicy) else reached
        return (error - self.least_error) / self.least_error

    def parts(self) -> list[str]:
        """A sentence."""
        return [f"Certified: no policy can reach a forecast accuracy above {100.0 * (1.0 - self.least_error):.3f} % "
                "in this world."]


def clairvoyant(world: ChangingWorld) -> Clairvoyant:
    """The certified bound on what any policy could have reached in a world."""
    return _Bounds(world).least()


class _Bounds:
    """Bounds over intervals of the number of rounds."""

    def __init__(self, world: ChangingWorld) -> None:
        self.world, self.problem = world, world.start.problem
        budgets = self.problem.energy_j, self.problem.delay_s
        distinct = world.most_rows if world.labels_at is not None else min(world.trace.rounds, world.most_rows)
        rows = [world.present(number, budgets, first=False) for number in range(distinct)]
        self.rows: dict[int, PresentRound] = {number: row for number, row in enumerate(rows) if row is not None}
        """Those in which somebody is there."""
        self.distinct = distinct
        program = RowProgram(world.start, {})
        guess, rounds = list(self.rows.values()), world.start.plan.rounds
        self.sample = guess[:: -(-len(guess) // _SAMPLED)]
        program.first_prices(self.sample, rounds, rounds)
        self.prices: tuple[float, float] = program.state["prices"]
        self.slowed: float = program.state["slowed"]
        self.guess = rounds

    def least(self) -> Clairvoyant:
        """The bound over all numbers of rounds."""
        most, near = self.problem.rounds, self.guess
        edges = sorted({1, *(max(1, round(near * share)) for share in (0.5, 0.8, 0.95)), near,
                        *(min(most, round(near * share)) for share in (1.05, 1.3)), most + 1})
        intervals = [(self._bound(low, high - 1), low, high - 1) for low, high in pairwise(edges)]
        for _ in range(_MOST_SPLITS):
            bound, low, high = min(intervals)
            if low == high or bound >= (1.0 - _ENOUGH) * self._single(intervals):
                break
            intervals.remove((bound, low, high))
            middle = (low + high) // 2
            intervals += [(max(bound, self._bound(a, b)), a, b) for a, b in ((low, middle), (middle + 1, high))]
        bound, low, high = min(intervals)
        return Clairvoyant(min(bound, 1.0), (low + high + 1) // 2)

    @staticmethod
    def _single(intervals: Sequence[tuple[float, int, int]]) -> float:
        """The least bound of an interval that holds one number only."""
        return min((bound for bound, low, high in intervals if low == high), default=np.inf)

    def _bound(self, low: int, high: int) -> float:
        """A bound on the error of every policy that trains between ``low`` and ``high`` rounds."""
        mu, nu = self._best_prices(low, high)
        values = np.full(self.distinct, np.inf)
        for number, row in self.rows.items():
            values[number] = self._rounds(row, low, high)(mu, nu)
        values = np.resize(values, self.world.most_rows)
        spent = mu * self.problem.energy_j + nu * self.problem.delay_s
        constant = self._tangent(self.sample[0], low, high).constant
        sums = _least_sums(values, low, high, nu * self.world.start.step_s)
        return float((constant + (sums - spent) / np.arange(low, high + 1)).min())

    def _best_prices(self, low: int, high: int) -> tuple[float, float]:
        """Prices with a large bound, by trial on a sample of the rows."""
        rounds = [self._rounds(row, low, high) for row in self.sample]
        energy, delay = self.problem.energy_j / low, self.problem.delay_s / low

        def value(prices: tuple[float, float]) -> float:
            mu, nu = prices
            return float(np.mean([least(mu, nu) for least in rounds])) - mu * energy - nu * delay

        best, prices = value(self.prices), self.prices
        for factor in _FACTORS:
            for powers in ((1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)):
                trial = prices[0] * factor ** powers[0], prices[1] * factor ** powers[1]
                if (found := value(trial)) > best:
                    best, prices = found, trial
        return prices

    def _rounds(self, row: PresentRound, low: int, high: int) -> Callable[[float, float], float]:
        """A function from prices to ℓ of a row."""
        tangent = self._tangent(row, low, high)
        task = replace(row.task(1, 0.0), objective=tangent)
        if row.problem.size > ENUMERATED_CLIENTS and row.selected is None and tangent.additive is None:
            return PlaneBound(task).least
        oracle = oracles_for(task)[-1]
        if not oracle.usable:
            return lambda mu, nu: np.inf
        listed = oracle.enumeration
        if listed is None:
            return lambda mu, nu: oracle.price(mu, nu, 0.0).lower_bound
        return lambda mu, nu: float(listed.bounds(mu, nu)[0].min())

    def _tangent(self, row: PresentRound, low: int, high: int) -> ForecastTangent:
        """The costs of ``high`` rounds with the label limits of ``low`` rounds: both bound those between."""
        tangent = row.objective(low, self.slowed)
        forecast = tangent.fitted.forecast
        start = forecast.start * (high / low) ** -forecast.rounds_power
        return replace(tangent, fitted=replace(tangent.fitted, forecast=replace(forecast, start=start)))


def _least_sums(values: Floats, low: int, high: int, step: float) -> Floats:
    """For each R in [low, high] the least over W of the R least of the first W values, summed, + (W − R)·step."""
    sums = np.full(high - low + 1, np.inf)
    for place, count in enumerate(range(low, high + 1)):
        kept: list[float] = []
        total = 0.0
        for passed, value in enumerate(values.tolist(), start=1):
            if passed <= count:
                heappush(kept, -value)
                total += value
            else:
                dropped = -heappushpop(kept, -value)
                total = total + value - dropped if np.isfinite(total) else float(-np.sum(kept))
            if passed >= count:
                sums[place] = min(sums[place], total + (passed - count) * step)
    return sums
