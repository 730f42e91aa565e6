"""What no policy can beat: a certified lower bound on the forecast error in a world that is known in advance.

Let ℓ_t(μ, ν) be the least Lagrangian of a round in row t of the world: cost of the round by a tangent of the forecast,
plus μ times its joules and ν times its seconds. Whoever trains R rounds in the first W rows, and passes the other ones
idle, has at least the error

    constant + (the R least of ℓ_0..ℓ_{W−1}, summed, + ν·(W − R)·(seconds of an idle row) − μ·E₀ − ν·T₀) / R

for every μ, ν ≥ 0 (weak duality). The least over W is a bound for R rounds. The forecast error falls with R if all else
is equal, so the costs of R₂ rounds bound those of all R₁ ≤ R ≤ R₂. Which intervals of R are bounded together, and at
which prices, is estimated by a linear program over good rounds of all rows (:mod:`fedgap.planning.known_rows`); any
choice gives a valid bound.
"""

from dataclasses import dataclass, replace
from heapq import heappush, heappushpop

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.known_rows import KnownRows
from fedgap.planning.objectives.forecast_tangent import ForecastTangent
from fedgap.planning.oracles.enumerate import Enumeration
from fedgap.planning.oracles.oracle import oracles_for
from fedgap.planning.oracles.planes import PlaneBound
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.policies.row_program import RowProgram, feature_weights, features_of
from fedgap.planning.policy_simulation import ChangingWorld, SimulatedPolicy
from fedgap.planning.round_lagrangian import Columns, RoundCurve
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS
from fedgap.report.printable import Printable

_ENOUGH = 2e-3
"""Share of the error by which intervals of R are allowed to lower the bound."""
_SAMPLED = 3
"""Rows that the first prices are chosen by."""
_FIRST_PRICES = ((1.0, 1.0), (8.0, 0.5), (0.5, 8.0), (8.0, 8.0))
"""Multiples of them at which the rounds of all rows are looked for before the first program."""
_PROGRAMS = 6
"""Programs that look for an interval's prices at most."""
_MET = 5e-4
"""Share of the error by which a bound may be below its program."""
_STUCK = 2
"""So many programs that raise the bound by less than that are the last ones."""
_DEARER = 2.0
"""Factor by which prices rise while the known rounds do not fit the budgets."""


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
    return _Bounds(world.for_last_target).least()


class _Bounds:
    """Bounds over intervals of the number of rounds."""

    def __init__(self, world: ChangingWorld) -> None:
        self.world, self.problem = world, world.start.problem
        self.budgets = self.problem.energy_j, self.problem.delay_s
        alike: dict[object, int] = {}
        self.first = [alike.setdefault(_contents(world, number), number) for number in range(world.most_rows)]
        """For each row of the world the first one that is equal to it."""
        rows = {number: _without_batteries(world.present(number, self.budgets, first=False))
                for number in alike.values()}
        self.rows: dict[int, PresentRound] = {number: row for number, row in rows.items() if row is not None}
        """Of these the ones in which somebody is there."""
        self.planes: dict[int, PlaneBound] = {}
        self.enumerations: dict[int, Enumeration] = {}
        rounds, there = world.start.plan.rounds, list(self.rows)
        first = RowProgram(world.start, {})
        first.first_prices([self.rows[number] for number in there[:: -(-len(there) // _SAMPLED)]], rounds, rounds)
        self.prices: tuple[float, float] = first.state["prices"]
        self.slowed: float = first.state["slowed"]
        self.known = KnownRows(self.first, self.budgets, world.start.step_s)
        for mu, nu in _FIRST_PRICES:
            self._values(rounds, rounds, mu * self.prices[0], nu * self.prices[1])
        self.rounds = self._best_rounds(rounds)
        self.enough = np.inf
        """A bound that need not be raised further: another number of rounds has this one."""

    def _best_rounds(self, rounds: int) -> int:
        """The number of rounds with the least bound, by estimate."""
        leap = max(1, rounds // 8)
        while leap:
            near = [other for other in (rounds - leap, rounds + leap) if 1 <= other <= self.problem.rounds]
            best = min([rounds, *near], key=lambda count: self._estimate(count, count))
            rounds, leap = best, leap if best != rounds else leap // 2
        return rounds

    def least(self) -> Clairvoyant:
        """The bound over all numbers of rounds."""
        tried: dict[int, float] = {}
        while self.rounds not in tried:
            tried[self.rounds] = self._bound(self.rounds, self.rounds)
            self.rounds = self._best_rounds(self.rounds)
        self.enough = min(tried.values())
        goal = (1.0 - _ENOUGH) * self.enough
        bounds: list[tuple[float, int]] = []
        open_ = [(1, self.problem.rounds)]
        while open_:
            low, most = open_.pop()
            high = self._widest(low, min(most, low + low // 2), goal)
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
        tangent = self._tangent(self._some_row, low, high)
        return tangent.constant + self.known.shared(feature_weights(tangent), low).objective

    def _bound(self, low: int, high: int) -> float:
        """A bound on the error of every policy that trains between ``low`` and ``high`` rounds."""
        best, prices, stepped, stuck = -np.inf, self.prices, True, 0
        for _ in range(_PROGRAMS):
            tangent = self._tangent(self._some_row, low, high)
            program = self.known.shared(feature_weights(tangent), low)
            if not np.isfinite(program.objective):
                prices = _DEARER * prices[0], _DEARER * prices[1]
            elif stepped:
                prices = program.prices
            else:  # the program's prices were too far away: half way between them and the best ones
                prices = 0.5 * (program.prices[0] + self.prices[0]), 0.5 * (program.prices[1] + self.prices[1])
            bound = self._bound_at(low, high, prices)
            stepped = bound > best or not stepped
            stuck = 0 if bound > best + _MET * abs(best) else stuck + 1
            if bound > best:
                best, self.prices = bound, prices
            if np.isfinite(program.objective):
                _, divergence, pruning = program.features
                self.slowed = tangent.fixed.slowed(pruning, divergence)
            met = best >= (1.0 - _MET) * (tangent.constant + program.objective)
            if met or best >= self.enough or stuck == _STUCK:
                break
        return best

    def _bound_at(self, low: int, high: int, prices: tuple[float, float]) -> float:
        """The bound at given prices."""
        mu, nu = prices
        values = self._values(low, high, mu, nu)[self.first]
        sums = _least_sums(values, low, high, nu * self.world.start.step_s)
        spent = mu * self.budgets[0] + nu * self.budgets[1]
        constant = self._tangent(self._some_row, low, high).constant
        return float((constant + (sums - spent) / np.arange(low, high + 1)).min())

    def _values(self, low: int, high: int, mu: float, nu: float) -> Floats:
        """ℓ of each row at some prices, infinite where nobody is there; the best rounds become known."""
        values = np.full(self.world.most_rows, np.inf)
        for number, row in self.rows.items():
            task = replace(row.task(1, 0.0), objective=self._tangent(row, low, high))
            values[number], columns = self._cheapest(number, task, mu, nu)
            if columns is not None:
                self.known.add(number, features_of(task, columns)[:5])
        return values

    def _cheapest(self, number: int, task: Task, mu: float, nu: float) -> tuple[float, Columns | None]:
        """A lower bound on ℓ of a row, and a round that comes near to it."""
        listed = self._enumeration(number, task)
        if listed is not None:
            return listed.least(mu, nu) if listed.usable else (np.inf, None)
        if task.objective.additive is None:
            if number not in self.planes:
                self.planes[number] = PlaneBound(task)
            planes = self.planes[number]
            if not planes.usable:
                return np.inf, None
            bound, selected, deadline = planes.price(task.objective, mu, nu)
            base = task.objective.selection_cost(selected[None])
            curve = RoundCurve(task, task.kinds[-1].curves, selected[None], base, mu, nu, planes.worths.floor)
            return bound, curve.at(np.array([deadline]))[2]
        oracle = oracles_for(task)[-1]
        if not oracle.usable:
            return np.inf, None
        priced = oracle.price(mu, nu, 0.0)
        return priced.lower_bound, priced.columns

    @property
    def _some_row(self) -> PresentRound:
        return next(iter(self.rows.values()))

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


def _contents(world: ChangingWorld, number: int) -> object:
    """What tells a row of the world from others."""
    return world.trace.row(number), *(None if labels is None else labels.tobytes() for labels in world.labels(number))


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
