"""What no policy can beat: a certified lower bound on the forecast error in a world that is known in advance.

Let ℓ_t(μ, ν) be the least Lagrangian of a round in row t of the world: cost of the round by a tangent of the forecast,
plus μ times its joules and ν times its seconds. Whoever trains R rounds in the first W rows, and passes the other ones
idle, has at least the error

    constant + (the R least of ℓ_0..ℓ_{W−1}, summed, + ν·(W − R)·(seconds of an idle row) − μ·E₀ − ν·T₀) / R

for every μ, ν ≥ 0 (weak duality). The least over W is a bound for R rounds. The forecast error falls with R if all else
is equal, so the costs of R₂ rounds bound those of all R₁ ≤ R ≤ R₂. Which intervals of R are bounded together, and at
which prices, is estimated by a linear program over good rounds of some rows; any choice gives a valid bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappush, heappushpop

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.objectives.forecast_tangent import ForecastTangent
from fedgap.planning.oracles.enumerate import Enumeration
from fedgap.planning.oracles.oracle import oracles_for
from fedgap.planning.oracles.planes import PlaneBound
from fedgap.planning.policies.cheapest_round import cheapest_by, cheapest_rounds
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.policies.row_program import RowProgram
from fedgap.planning.policy_simulation import ChangingWorld, SimulatedPolicy
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS
from fedgap.report.printable import Printable

_ENOUGH = 2e-3
"""Share of the error by which intervals of R are allowed to lower the bound."""
_SAMPLED = 8
"""Rows that the prices are chosen by."""
_PROGRAMS = 8
"""Programs that look for an interval's prices at most."""
_MET = 1e-3
"""Share of the error by which the sampled rows may disagree with their program."""
_DEARER = 2.0
"""Factor by which prices rise while the sampled rows have no rounds that fit the budgets."""


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
        rows = [_without_batteries(world.present(number, budgets, first=False)) for number in range(distinct)]
        self.rows: dict[int, PresentRound] = {number: row for number, row in enumerate(rows) if row is not None}
        """Those in which somebody is there."""
        self.distinct = distinct
        self.planes: dict[int, PlaneBound] = {}
        self.enumerations: dict[int, Enumeration] = {}
        rounds, there = world.start.plan.rounds, list(self.rows)
        sampled = there[:: -(-len(there) // _SAMPLED)]
        self.sample: list[int] = []
        self.program = RowProgram(world.start, {})
        self.program.first_prices([self.rows[number] for number in sampled], rounds, rounds)
        for number in sampled:
            task = self.rows[number].task(rounds, self.program.state["slowed"])
            if self.program.good_rounds(task, rounds) is not None:
                self.sample.append(number)
        best, expected = self.program.best_left(rounds, self.problem.rounds, *budgets, leap=max(1, rounds // 8))
        self.rounds = best
        if np.isfinite(expected.error):
            self.program.state |= {"prices": expected.prices, "slowed": expected.slowed}
        self.prices: tuple[float, float] = self.program.state["prices"]
        self.slowed: float = self.program.state["slowed"]

    def least(self) -> Clairvoyant:
        """The bound over all numbers of rounds."""
        goal = (1.0 - _ENOUGH) * self._bound(self.rounds, self.rounds)
        bounds: list[tuple[float, int]] = []
        open_ = [(1, self.problem.rounds)]
        while open_:
            low, most = open_.pop()
            high = self._widest(low, most, goal)
            if high < most:
                open_.append((high + 1, most))
            bound = self._bound(low, high)
            if bound < goal and high > low:
                open_ += [((low + high) // 2 + 1, high), (low, (low + high) // 2)]
            else:
                bounds.append((bound, (low + high + 1) // 2))
        bound, rounds = min(bounds)
        return Clairvoyant(min(bound, 1.0), rounds)

    def _widest(self, low: int, most: int, goal: float) -> int:
        """The last number of rounds that may share a bound with ``low``, by estimate."""
        high = low
        while high < most and self._estimate(low, high + 1) >= goal:
            step = 1
            while high + 2 * step <= most and self._estimate(low, high + 2 * step) >= goal:
                step *= 2
            high += step
        return high

    def _estimate(self, low: int, high: int) -> float:
        """About what :meth:`_bound` gives."""
        tangent = self._tangent(self.rows[self.sample[0]], low, high)
        return tangent.constant + self.program.shared(
            tangent, self.problem.energy_j / low, self.problem.delay_s / low).objective

    def _bound(self, low: int, high: int) -> float:
        """A bound on the error of every policy that trains between ``low`` and ``high`` rounds."""
        mu, nu = self._best_prices(low, high)
        values = np.full(self.distinct, np.inf)
        for number in self.rows:
            values[number] = self._least(number, low, high)(mu, nu)
        values = np.resize(values, self.world.most_rows)
        spent = mu * self.problem.energy_j + nu * self.problem.delay_s
        constant = self._tangent(self.rows[self.sample[0]], low, high).constant
        sums = _least_sums(values, low, high, nu * self.world.start.step_s)
        return float((constant + (sums - spent) / np.arange(low, high + 1)).min())

    def _best_prices(self, low: int, high: int) -> tuple[float, float]:
        """Prices with a large bound for the sampled rows, by column generation."""
        energy, delay = self.problem.energy_j / low, self.problem.delay_s / low
        tasks = [self._task(number, low, high) for number in self.sample]
        listed = [self._enumeration(number, task) for number, task in zip(self.sample, tasks, strict=True)]
        prices, best, most = self.prices, self.prices, -np.inf
        for _ in range(_PROGRAMS):
            program = self.program.shared(self._tangent(self.rows[self.sample[0]], low, high), energy, delay)
            prices = program.prices if np.isfinite(program.objective) else (_DEARER * prices[0], _DEARER * prices[1])
            value = -prices[0] * energy - prices[1] * delay
            for place, (task, oracle) in enumerate(zip(tasks, listed, strict=True)):
                columns = cheapest_rounds(task, *prices) if oracle is None else cheapest_by(oracle, *prices)
                if columns is not None:
                    columns = columns.take(range(1))
                    self.program.add(place, task, columns)
                    paid = columns.cost + prices[0] * columns.energy + prices[1] * columns.deadline
                    value += float(paid[0]) / len(tasks)
            if value > most:
                best, most = prices, value
            if most >= program.objective - _MET * abs(program.objective):
                break
        self.prices = best
        return best

    def _least(self, number: int, low: int, high: int) -> Callable[[float, float], float]:
        """A function from prices to ℓ of a row."""
        row, task = self.rows[number], self._task(number, low, high)
        tangent, listed = self._tangent(row, low, high), self._enumeration(number, task)
        if listed is not None:
            return lambda mu, nu: float(listed.bounds(mu, nu)[0].min()) if listed.usable else np.inf
        if tangent.additive is None:
            planes = self.planes.setdefault(number, PlaneBound(task))
            return lambda mu, nu: planes.least(tangent, mu, nu)
        oracle = oracles_for(task)[-1]
        if not oracle.usable:
            return lambda mu, nu: np.inf
        return lambda mu, nu: oracle.price(mu, nu, 0.0).lower_bound

    def _task(self, number: int, low: int, high: int) -> Task:
        """A round of a row with the costs of :meth:`_tangent`."""
        row = self.rows[number]
        return replace(row.task(1, 0.0), objective=self._tangent(row, low, high))

    def _enumeration(self, number: int, task: Task) -> Enumeration | None:
        """All selections of a row with a task's costs; None where there are too many to list."""
        if task.problem.size > ENUMERATED_CLIENTS and task.selected is None:
            return None
        if number not in self.enumerations:
            listed = oracles_for(task)[-1].enumeration
            assert listed is not None
            self.enumerations[number] = listed
        return self.enumerations[number].with_objective(task.objective)

    def _tangent(self, row: PresentRound, low: int, high: int) -> ForecastTangent:
        """Costs of a round that are a lower bound for every plan of ``low`` to ``high`` rounds.

        It combines the costs of ``high`` rounds with the label limits of ``low`` rounds.
        """
        tangent = row.objective(low, self.slowed)
        forecast = tangent.fitted.forecast
        steps, bits = self.problem.local_steps, self.problem.upload_bits
        start = forecast.start * forecast.at(high, steps, bits).scale / forecast.at(low, steps, bits).scale
        return replace(tangent, fitted=replace(tangent.fitted, forecast=replace(forecast, start=start)))


def _without_batteries(row: PresentRound | None) -> PresentRound | None:
    """The row as it can be at best where batteries empty: nobody has to be sent the model over a bad channel."""
    if row is None or np.isinf(row.problem.fleet.battery_j).all():
        return row
    fleet = row.problem.fleet
    gain = np.where(np.isfinite(fleet.battery_j), fleet.downlink_gain.max(), fleet.downlink_gain)
    return replace(row, problem=replace(row.problem, fleet=replace(fleet, downlink_gain=gain)))


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
