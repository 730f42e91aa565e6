"""Prices of a joule and a second from rows of the world, by a linear program over the good rounds of each row.

The world is expected to continue with rows like those remembered, each as often as it was counted. A row may also be
passed without training, which takes ``step_s`` seconds. Per remaining round, y is how much of each known round is
trained, and ω ≥ 1 how many rows are passed. The program is

    min Σ y·cost   s.t.   Σ y·joules ≤ E,   Σ y·seconds + step_s·(ω − 1) ≤ T,   Σ y = 1,   Σ_{row} y ≤ share_{row}·ω.

The dual prices of E and T tell which round is best in any other row, and whether it is better to wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.linear_program import solve_linear
from fedgap.planning.master import Master
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, plan_features
from fedgap.planning.oracles.oracle import oracles_for
from fedgap.planning.policies.cheapest_round import best_nearby, cheapest_rounds, nearby_rounds
from fedgap.planning.policies.done_rounds import DoneRounds
from fedgap.planning.policies.policy import PolicyStart
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.round_lagrangian import Columns
from fedgap.planning.task import Task
from fedgap.planning.whole_rounds import pricing_of
from fedgap.theory.label_matching import label_divergence

_FIRST_PROGRAM = 1e-3
"""Relative precision to which the program for the first prices is solved."""

_LEAST_PRICE = 1e-3
"""Lower limit of prices: a round's share of a budget costs at least this multiple of the cost of full pruning."""
_FEWER = 0.8
"""If the remaining rounds do not fit the budgets, this share of them is tried next."""


@dataclass(frozen=True)
class Expected:
    """What is expected of a number of remaining rounds. The error is infinite if they do not fit the budgets."""

    error: float
    prices: tuple[float, float] = (0.0, 0.0)
    """Prices of a joule and of a second, per remaining round."""
    slowed: float = 0.0
    """z of all rounds, including those done: the z₀ at which the next tangent of the forecast should be taken."""


class Shared(NamedTuple):
    """The solution of the program. The objective is infinite if the budgets do not suffice."""

    objective: float
    prices: tuple[float, float] = (0.0, 0.0)
    features: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Means over the rounds of 1/k, KL and the pruning ratio."""


class RowProgram:
    """The program over the rows in ``state["rows"]``. ``state`` also has the latest prices and z₀."""

    target: Floats | None = None
    """The present target's smoothed label distribution. KL of all rounds, also in earlier rows, is the divergence from
    it."""

    def __init__(self, start: PolicyStart, state: dict[str, Any]) -> None:
        self.start, self.state = start, state
        self._arrays: dict[int, tuple[list[list[float]], Floats]] = {}
        tangent = self.tangent(start.plan.rounds, 0.0)
        features = plan_features(start.problem, start.plan.segments)
        state |= {"rows": [], "counts": [], "prices": None, "slowed": tangent.fixed.slowed(features)}

    def tangent(self, rounds: int, slowed: float) -> ForecastTangent:
        """Return the tangent at z₀ = ``slowed`` of the forecast for this total number of rounds."""
        return ForecastTangent(self.start.problem.with_rounds(rounds), self.start.fitted, slowed,
                               counts_samples=False)

    @property
    def rows(self) -> list[Floats]:
        """For each row, the 1/k, KL, mean pruning ratio, joules and seconds of its good rounds, (5, S)."""
        # Every program reads all rows, so that converted rows are kept.
        known = self._arrays
        self._arrays = {id(row): known[id(row)] if id(row) in known and known[id(row)][0] is row
                        else (row, self._judged(np.array(row))) for row in self.state["rows"]}
        return [array for _, array in self._arrays.values()]

    def judge_by(self, target: Floats | None) -> None:
        """Use this target for KL of all rows from now on."""
        if self.target is None or target is None or not np.array_equal(self.target, target):
            self.target, self._arrays = target, {}

    def _judged(self, row: Floats) -> Floats:
        """Return the first five features of rounds, with KL from the present target if the drawn labels are known."""
        features, labels = row[:5], row[5:]
        if self.target is None or not len(labels):
            return features
        return np.vstack([features[0], label_divergence(labels.T, self.target), features[2:]])

    def first_prices(self, rows: Sequence[PresentRound], rounds: int, left: int) -> None:
        """Compute the prices if each of these rows has an equal share of the rounds; the budgets are the last row's."""
        tasks = [row.task(rounds, self.state["slowed"]) for row in rows]
        oracles = [oracle for task in tasks if (oracle := oracles_for(task, bounded=False)[-1]).usable]
        self.state["prices"] = (0.0, 0.0)
        if oracles:
            budgets = rows[-1].problem
            shares = np.full(len(oracles), 1.0 / len(oracles))
            # These oracles prove no bound, so that columns are added until the program stops improving.
            master = Master(shares, budgets.energy_j / left, budgets.delay_s / left, pricing_of(oracles),
                            _FIRST_PROGRAM)
            master.run()
            self.state["prices"] = master.prices

    def least_prices(self, task: Task, left: int) -> tuple[float, float]:
        """Return the present prices of a joule and a second, which stay a little above 0, lest rounds waste either."""
        mu, nu = self.state["prices"]
        worth = _LEAST_PRICE * task.objective.pruning_weight * left
        return max(mu, worth / task.problem.energy_j), max(nu, worth / task.problem.delay_s)

    def good_rounds(self, task: Task, left: int) -> Columns | None:
        """Return the best rounds of a new row at the present prices, the best one first, and remember the row.

        The result is None if no client can meet the longest deadline.

        :param left: the number of remaining rounds.
        """
        mu, nu = self.least_prices(task, left)
        columns = cheapest_rounds(task, mu, nu)
        if columns is not None:
            self.state["rows"].append(features_of(task, nearby_rounds(task, columns, mu, nu)).tolist())
            self.state["counts"].append(1)
        return columns

    def better_rounds(self, task: Task, left: int, place: int = -1) -> tuple[Columns | None, float]:
        """Return the best rounds of a remembered row at the present prices, and by how much the best one is better than
        those known before. The row is remembered with them.

        :param place: the index of the row.
        """
        mu, nu = self.least_prices(task, left)
        columns = cheapest_rounds(task, mu, nu)
        if columns is None:
            return None, 0.0
        known, objective = self.rows[place], task.objective
        assert isinstance(objective, ForecastTangent)
        before = (feature_weights(objective) @ known[:3] + mu * known[3] + nu * known[4]).min()
        best = columns.cost[0] + mu * columns.energy[0] + nu * columns.deadline[0]
        self.add(place, task, nearby_rounds(task, columns, mu, nu))
        every = self.rows[place]
        kept = best_nearby(feature_weights(objective) @ every[:3], every[3], every[4], mu, nu)
        self.state["rows"][place] = np.array(self.state["rows"][place])[:, kept].tolist()
        return columns, float(before - best)

    def worth_waiting(self, task: Task, left: int) -> bool:
        """Return whether it is better to pass the present (last) row idle, and to train in a later row instead."""
        mu, nu = self.least_prices(task, left)
        objective = task.objective
        assert isinstance(objective, ForecastTangent)
        weights = feature_weights(objective)
        rows = self.rows
        every, sizes = np.hstack(rows), [row.shape[1] for row in rows]
        value = weights @ every[:3] + mu * every[3] + nu * every[4]
        values = np.minimum.reduceat(value, np.cumsum([0, *sizes[:-1]]))
        return bool(values[-1] > dearest_taken(values, self.shares, nu * self.start.step_s))

    def add(self, place: int, task: Task, columns: Columns) -> None:
        """Add rounds to a row that is remembered; ``place`` is its index."""
        self.state["rows"][place] = np.hstack([self.state["rows"][place], features_of(task, columns)]).tolist()

    @property
    def shares(self) -> Floats:
        """The share of the remaining rounds that is expected to be like each row."""
        counts = np.array(self.state["counts"], dtype=np.float64)
        return np.asarray(counts / counts.sum())

    def expected(self, left: int, energy_j: float, delay_s: float, done: DoneRounds | None = None) -> Expected:
        """Return what is expected if ``left`` more rounds are trained, in rows like those remembered.

        :param energy_j: joules and :param delay_s: seconds that are left; :param done: the rounds trained so far.
        """
        done = done or DoneRounds()
        rows, total = self.rows, done.rounds + left
        if not rows or energy_j <= 0.0 or delay_s <= 0.0:
            return Expected(np.inf)
        tangent = self.tangent(total, self.state["slowed"])
        fixed = tangent.fixed
        shared = self.shared(tangent, energy_j / left, delay_s / left)
        if not np.isfinite(shared.objective):
            return Expected(np.inf)
        few, divergence, pruning = shared.features
        sums = DoneRounds(total, done.few_clients + left * few, done.pruning + left * pruning,
                          done.divergence + left * divergence)
        return Expected(sums.error(fixed), shared.prices, fixed.slowed(sums.features))

    def shared(self, tangent: ForecastTangent, energy: float, delay: float) -> Shared:
        """Solve the program of the module docstring, with E = ``energy`` and T = ``delay`` per remaining round."""
        rows = self.rows
        every = np.hstack(rows)
        width, count, step = every.shape[1], len(rows), self.start.step_s / delay
        table = np.zeros((3 + count, width + 1))
        table[:3, :width] = every[3] / energy, every[4] / delay, np.ones(width)
        table[3:, :width] = np.repeat(np.eye(count), [row.shape[1] for row in rows], axis=1)
        table[1, width], table[3:, width] = step, -self.shares
        lower, upper = np.full(3 + count, -np.inf), np.zeros(3 + count)
        lower[2], upper[:3] = 1.0, (1.0, 1.0 + step, 1.0)
        return shared_rounds(feature_weights(tangent), every, table, (lower, upper), (energy, delay), presolve=False)

    def best_left(
        self, guess: int, most: int, energy_j: float, delay_s: float, done: DoneRounds | None = None, *, leap: int
    ) -> tuple[int, Expected]:
        """Return the number of remaining rounds with the least expected error, and what is expected of it.

        :param guess: the number at which the search starts; :param most: the largest number;
        :param leap: by how much the number is changed at first.
        """
        known: dict[int, Expected] = {}

        def look(left: int) -> float:
            if left not in known:
                known[left] = self.expected(left, energy_j, delay_s, done)
            return known[left].error

        best = guess
        while not np.isfinite(look(best)) and best > 1:
            best = int(_FEWER * best)
        leap = max(leap, (guess - best) // 2)
        while leap:
            near = [left for left in (best - leap, best + leap) if 1 <= left <= most]
            other = min(near, key=look, default=best)
            if look(other) < look(best):
                best = other
            else:
                leap //= 2
        return best, known[best]


def dearest_taken(values: Floats, shares: Floats, waiting: float) -> float:
    """Return the value v* up to which a round should be taken, if future rows have these values (K,) and shares (K,).

    Passing a row costs ``waiting``, so that v* = waiting + Σ share·min(value, v*).
    """
    order = np.argsort(values, kind="stable")
    share = shares[order]
    return float(((waiting + np.cumsum(share * values[order])) / np.cumsum(share)).min())


def shared_rounds(weights: Floats, every: Floats, table: Floats, limits: tuple[Floats, Floats],
                  units: tuple[float, float], *, rounds: int = 1, presolve: bool = True) -> Shared:
    """Solve a program over known rounds; objective and features of the result are those of a mean round.

    :param weights: what 1/k, KL and the mean pruning ratio cost, (3,); :param every: the known rounds, (5, S).
    :param table: the constraints, joules and seconds first. The columns after the S rounds cost nothing.
    :param limits: the lower and upper limits of the constraints.
    :param units: the joules and seconds by which the first two constraints were divided.
    :param rounds: how many rounds the solution has; :param presolve: see :func:`solve_linear`.
    """
    cost, width = weights @ every[:3], every.shape[1]
    base = float(cost.min())
    unit = float(np.median(cost - base)) or 1.0  # HiGHS has absolute tolerances
    costs = np.append((cost - base) / unit, np.zeros(table.shape[1] - width))
    answer = solve_linear(costs, table, *limits, presolve=presolve)
    if answer is None:
        return Shared(np.inf)
    mu, nu = (answer.prices[:2] * unit / units).tolist()
    few, divergence, pruning = (every[:3] @ answer.weights[:width] / rounds).tolist()
    return Shared(base + unit * answer.value / rounds, (mu, nu), (few, divergence, pruning))


def feature_weights(tangent: ForecastTangent) -> Floats:
    """Return what 1/k, KL and the mean pruning ratio cost by a tangent, (3,)."""
    return np.array([tangent.few_weight, tangent.label_weight, tangent.pruning_weight])


def features_of(task: Task, columns: Columns) -> Floats:
    """Return the features of S rounds: 1/k, KL, mean pruning ratio, joules, seconds, and the labels drawn.

    The shape is (5 + C, S) with C classes, or (5, S) if labels are not known or depend on the target.
    """
    objective, selected = task.objective, columns.selected
    assert isinstance(objective, ForecastTangent)
    weight, labels = objective.pruning_weight, objective.labels
    unpruned = objective.selection_cost(selected)
    pruning = (columns.cost - unpruned) / weight if weight > 0.0 else np.zeros(len(unpruned))
    features = np.stack([1.0 / selected.sum(axis=-1), objective.divergence(selected), np.maximum(pruning, 0.0),
                         columns.energy, columns.deadline])
    if labels is None or labels.batches == "target":
        return features
    return np.vstack([features, (selected.astype(np.float64) @ labels.table).T])
