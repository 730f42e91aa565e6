"""A certified lower bound on the forecast error of all policies, in a world that is known in advance.

Let ℓ_t(μ, ν) be the least Lagrangian of a round in row t of the world: the cost of the round by a tangent of the
forecast, plus μ times its joules and ν times its seconds. A policy that trains R rounds in the first W rows, and passes
the other rows idle, has at least the error

    constant + (the R least of ℓ_0..ℓ_{W−1}, summed, + ν·(W − R)·(seconds of an idle row) − μ·E₀ − ν·T₀) / R

for every μ, ν ≥ 0, by weak duality. The least over W is a bound for R rounds. The tangent is the one whose slope
K·e^{z₀} is a given number (:mod:`fedgap.planning.objectives.forecast_tangent`). Only its constant then depends on R, so
that one evaluation of all ℓ_t gives a bound for every R. Any prices and any tangent give a valid bound. Those that are
tried next come from a linear program over good rounds of all rows (:mod:`fedgap.planning.known_rows`), for the R with
the least bound so far.
"""

from dataclasses import dataclass, replace
from heapq import heappush, heappushpop

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.known_rows import KnownRows
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
from fedgap.theory.forecast import PlanFeatures

_SAMPLED = 3
"""Number of rows from which the first prices are computed."""
_FIRST_PRICES = ((1.0, 1.0), (8.0, 0.5), (0.5, 8.0), (8.0, 8.0))
"""Multiples of the first prices at which rounds of all rows are searched before the first program is solved."""
_PROGRAMS = 80
"""Maximum number of programs that are solved."""
_MET = 1e-3
"""The search ends when the bound is below the program's value by at most this share of the error."""
_STUCK = 2
"""The search also ends when this many programs have raised the bound of one R by less than that share."""
_DEARER = 2.0
"""Factor by which prices are raised while the known rounds do not fit the budgets."""


@dataclass(frozen=True, eq=False, repr=False)
class Clairvoyant(Printable):
    """The bound for one world."""

    least_error: float
    """Proven lower bound on the forecast error of all policies in this world."""
    rounds: int
    """The number of rounds at which the bound is least."""

    def regret(self, reached: SimulatedPolicy | float) -> float:
        """Return how far an error is above the bound, as a share of the bound."""
        error = reached.error if isinstance(reached, SimulatedPolicy) else reached
        return (error - self.least_error) / self.least_error

    def parts(self) -> list[str]:
        """Return one sentence with the bound, for ``print``."""
        return [f"Certified: no policy can reach a forecast accuracy above {100.0 * (1.0 - self.least_error):.3f} % "
                "in this world."]


def clairvoyant(world: ChangingWorld) -> Clairvoyant:
    """Return the certified bound on what any policy could have reached in a world."""
    return RowBounds(world.for_last_target).least()


class RowBounds:
    """Computes the lower bound on the error for each number of rounds."""

    def __init__(self, world: ChangingWorld) -> None:
        self.world, self.problem = world, world.start.problem
        self.budgets = self.problem.energy_j, self.problem.delay_s
        alike: dict[object, int] = {}
        self.first = [alike.setdefault(_contents(world, number), number) for number in range(world.most_rows)]
        """For each row of the world, the number of the first row that is equal to it."""
        rows = {number: _without_batteries(world.present(number, self.budgets, first=False))
                for number in alike.values()}
        self.rows: dict[int, PresentRound] = {number: row for number, row in rows.items() if row is not None}
        """Of these first rows, those in which clients are available."""
        self.planes: dict[int, PlaneBound] = {}
        self.enumerations: dict[int, Enumeration] = {}
        rounds, there = world.start.plan.rounds, list(self.rows)
        first = RowProgram(world.start, {})
        first.first_prices([self.rows[number] for number in there[:: -(-len(there) // _SAMPLED)]], rounds, rounds)
        self.prices: tuple[float, float] = first.state["prices"]
        self.slowed: float = first.state["slowed"]
        self.known = KnownRows(self.first, self.budgets, world.start.step_s)
        unlimited, nothing_missing = self._some_row.objective(1, 0.0), PlanFeatures(1, 1, 1.0 / self.problem.size, 0, 0)
        self.bounds = np.array([unlimited.with_rounds(number).fixed.error(nothing_missing)
                                for number in range(1, self.problem.rounds + 1)])
        """The best bound so far for 1, 2, ... rounds, (R,). The first is the error if all clients took part without
        pruning and their labels matched the target."""
        self.best_prices = np.zeros((self.problem.rounds, 2))
        for factors in _FIRST_PRICES:
            self._raise_bounds(rounds, (factors[0] * self.prices[0], factors[1] * self.prices[1]))

    def least(self) -> Clairvoyant:
        """Return the least bound over all numbers of rounds."""
        misses = np.zeros(self.problem.rounds, dtype=np.intp)
        rounds = self.problem.rounds
        for _ in range(_PROGRAMS):
            rounds = int(self.bounds.argmin()) + 1
            before, known = self.bounds[rounds - 1], self.best_prices[rounds - 1]
            tangent = self._some_row.objective(rounds, self.slowed)
            program = self.known.shared(feature_weights(tangent), rounds)
            if np.isfinite(program.objective):
                if before >= (1.0 - _MET) * (tangent.constant + program.objective):
                    break
                # If the program's prices did not raise the bound, try the mean of them and the best prices.
                prices = np.array(program.prices) if misses[rounds - 1] % 2 == 0 else 0.5 * (known + program.prices)
                few, divergence, pruning = program.features
                self.slowed = tangent.fixed.slowed(PlanFeatures(1, 1, few, pruning, divergence))
            else:
                prices = _DEARER * known
            self._raise_bounds(rounds, (float(prices[0]), float(prices[1])))
            misses[rounds - 1] += bool(self.bounds[rounds - 1] <= before + _MET * abs(before))
            if misses[rounds - 1] == _STUCK:
                break
        return Clairvoyant(min(float(self.bounds.min()), 1.0), int(self.bounds.argmin()) + 1)

    def _raise_bounds(self, rounds: int, prices: tuple[float, float]) -> None:
        """Evaluate all rows at these prices, with the tangent for ``rounds`` rounds, and raise every R's bound."""
        mu, nu = prices
        values = self._values(rounds, mu, nu)[self.first]
        numbers = np.arange(1, self.problem.rounds + 1)
        sums = _least_sums(values, 1, len(numbers), nu * self.world.start.step_s)
        spent = mu * self.budgets[0] + nu * self.budgets[1]
        bounds = self._constants(rounds) + (sums - spent) / numbers
        if self._limits_change:
            bounds[: rounds - 1] = -np.inf
        better = bounds > self.bounds
        self.bounds[better], self.best_prices[better] = bounds[better], prices

    def _constants(self, rounds: int) -> Floats:
        """Return the constants of the tangents for 1, 2, ... rounds whose slope is that for ``rounds``, (R,)."""
        tangent = self._some_row.objective(rounds, self.slowed)
        slope, fixed = tangent.slope, tangent.fixed
        scales = np.array([tangent.with_rounds(number).fixed.scale for number in range(1, self.problem.rounds + 1)])
        return np.asarray(fixed.floor + slope * (1.0 - np.log(slope / scales)))

    @property
    def _limits_change(self) -> bool:
        """Whether more rounds restrict the labels that clients may draw; bounds then do not hold for fewer rounds."""
        labels = self._some_row.objective(1, 0.0).labels
        return labels is not None and labels.batches == "target"

    def _values(self, rounds: int, mu: float, nu: float) -> Floats:
        """Return ℓ of each row at these prices; infinite if nobody is available. The best rounds are recorded."""
        values = np.full(self.world.most_rows, np.inf)
        for number, row in self.rows.items():
            task = row.task(rounds, self.slowed)
            values[number], columns = self._cheapest(number, task, mu, nu)
            if columns is not None:
                self.known.add(number, features_of(task, columns)[:5])
        return values

    def _cheapest(self, number: int, task: Task, mu: float, nu: float) -> tuple[float, Columns | None]:
        """Return a lower bound on ℓ of a row, and rounds whose value is close to it; None if nobody can take part."""
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
        """Return all selections of a row with the costs of a task; None if there are too many to list."""
        if task.problem.size > ENUMERATED_CLIENTS and task.selected is None:
            return None
        if number not in self.enumerations:
            listed = oracles_for(task)[-1].enumeration
            assert listed is not None
            self.enumerations[number] = listed
        return self.enumerations[number].with_objective(task.objective)


def _contents(world: ChangingWorld, number: int) -> object:
    """Return a value that is equal for equal rows of the world."""
    return world.trace.row(number), *(None if labels is None else labels.tobytes() for labels in world.labels(number))


def _without_batteries(row: PresentRound | None) -> PresentRound | None:
    """Return a row that is at least as good as the real one may be after batteries have become empty.

    The model need not be sent to clients with an empty battery, so that such clients get the best downlink of all.
    """
    if row is None or np.isinf(row.problem.fleet.battery_j).all():
        return row
    fleet = row.problem.fleet
    gain = np.where(np.isfinite(fleet.battery_j), fleet.downlink_gain.max(), fleet.downlink_gain)
    return replace(row, problem=replace(row.problem, fleet=replace(fleet, downlink_gain=gain)))


def _least_sums(values: Floats, low: int, high: int, step: float) -> Floats:
    """Return, for each R in [low, high], the minimum over W of the sum of the R least of the first W values, plus
    (W − R)·step."""
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
