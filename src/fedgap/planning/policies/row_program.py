"""Prices of a joule and a second from rows of the world: a linear program over the good rounds of each row.

Every row stands for an equal share of the remaining rounds. The program shares what is left of both budgets between
them, and its prices say which round to take in any other row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.master import Master
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, forecast, plan_features
from fedgap.planning.oracles.oracle import oracles_for
from fedgap.planning.policies.cheapest_round import best_nearby, cheapest_rounds, nearby_rounds
from fedgap.planning.policies.done_rounds import DoneRounds
from fedgap.planning.policies.policy import PolicyStart
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.round_lagrangian import Columns
from fedgap.planning.task import Task
from fedgap.planning.whole_rounds import pricing_of

_FIRST_PROGRAM = 1e-3
"""Relative accuracy of the first prices."""

_LEAST_PRICE = 1e-3
"""A round's share of a budget costs at least this multiple of what pruning costs at most."""
_FEWER = 0.8
"""Share of the remaining rounds that is tried next where the budgets do not carry them."""


@dataclass(frozen=True)
class Expected:
    """What is expected of so many remaining rounds; the error is infinite where the budgets do not carry them."""

    error: float
    prices: tuple[float, float] = (0.0, 0.0)
    """Of a joule and of a second, per remaining round."""
    slowed: float = 0.0
    """z of all rounds, those done included: where the forecast's tangent should touch."""


class RowProgram:
    """The program over the rows in ``state["rows"]``; ``state`` also holds the latest prices and z₀."""

    def __init__(self, start: PolicyStart, state: dict[str, Any]) -> None:
        self.start, self.state = start, state
        self._arrays: dict[int, tuple[list[list[float]], Floats]] = {}
        self.fitted = forecast(start.problem).fitted
        tangent = self.tangent(start.plan.rounds, 0.0)
        features = plan_features(start.problem, start.plan.segments)
        state |= {"rows": [], "counts": [], "prices": None, "slowed": tangent.slowed_by(features)}

    def tangent(self, rounds: int, slowed: float) -> ForecastTangent:
        """The forecast for so many rounds in all."""
        return ForecastTangent(self.start.problem.with_rounds(rounds), self.fitted, slowed)

    @property
    def rows(self) -> list[Floats]:
        """Of each row of the world: 1/k, KL, mean pruning ratio, joules and seconds of its good rounds, (5, S)."""
        # Every program reads all rows; those of before need not be converted again.
        known = self._arrays
        self._arrays = {id(row): known[id(row)] if id(row) in known and known[id(row)][0] is row
                        else (row, np.array(row)) for row in self.state["rows"]}
        return [array for _, array in self._arrays.values()]

    def first_prices(self, rows: Sequence[PresentRound], rounds: int, left: int) -> None:
        """Prices for these rows with an equal share of the rounds each; the budgets are the last row's."""
        tasks = [row.task(rounds, self.state["slowed"]) for row in rows]
        oracles = [oracle for task in tasks if (oracle := oracles_for(task, bounded=False)[-1]).usable]
        self.state["prices"] = (0.0, 0.0)
        if oracles:
            budgets = rows[-1].problem
            shares = np.full(len(oracles), 1.0 / len(oracles))
            # Where there is no bound the program asks for columns until it stops improving.
            master = Master(shares, budgets.energy_j / left, budgets.delay_s / left, pricing_of(oracles),
                            _FIRST_PROGRAM)
            master.run()
            self.state["prices"] = master.prices

    def least_prices(self, task: Task, left: int) -> tuple[float, float]:
        """The present prices of a joule and a second, but not 0: rounds waste nothing that might still be needed."""
        mu, nu = self.state["prices"]
        worth = _LEAST_PRICE * task.objective.pruning_weight * left
        return max(mu, worth / task.problem.energy_j), max(nu, worth / task.problem.delay_s)

    def good_rounds(self, task: Task, left: int) -> Columns | None:
        """The best rounds of a new row at the present prices, the best one first; the row is remembered with them.

        None where nobody can meet the longest deadline. :param left: the number of remaining rounds.
        """
        mu, nu = self.least_prices(task, left)
        columns = cheapest_rounds(task, mu, nu)
        if columns is not None:
            self.state["rows"].append(features_of(task, nearby_rounds(task, columns, mu, nu)).tolist())
            self.state["counts"].append(1)
        return columns

    def better_rounds(self, task: Task, left: int) -> tuple[Columns | None, float]:
        """The best rounds of the last row at the present prices, and what the best one is better by than those known.

        They are remembered too.
        """
        mu, nu = self.least_prices(task, left)
        columns = cheapest_rounds(task, mu, nu)
        if columns is None:
            return None, 0.0
        known, objective = self.rows[-1], task.objective
        assert isinstance(objective, ForecastTangent)
        before = (_weights(objective) @ known[:3] + mu * known[3] + nu * known[4]).min()
        best = columns.cost[0] + mu * columns.energy[0] + nu * columns.deadline[0]
        self.add(-1, task, nearby_rounds(task, columns, mu, nu))
        every = self.rows[-1]
        kept = best_nearby(_weights(objective) @ every[:3], every[3], every[4], mu, nu)
        self.state["rows"][-1] = every[:, kept].tolist()
        return columns, float(before - best)

    def worth_waiting(self, task: Task, left: int) -> bool:
        """Whether it is better to pass the last row idle and hope for one like the others remembered.

        What a round's labels are worth is left out: the target may have changed since a row was seen.
        """
        mu, nu = self.least_prices(task, left)
        objective = task.objective
        assert isinstance(objective, ForecastTangent)
        weights = _weights(objective) * (1.0, 0.0, 1.0)
        values = np.array([(weights @ row[:3] + mu * row[3] + nu * row[4]).min() for row in self.rows])
        return bool(values[-1] > dearest_taken(values, self.shares, nu * self.start.step_s))

    def add(self, place: int, task: Task, columns: Columns) -> None:
        """Further rounds for a row that is remembered."""
        self.state["rows"][place] = np.hstack([self.rows[place], features_of(task, columns)]).tolist()

    @property
    def shares(self) -> Floats:
        """Which share of the remaining rounds is expected to be as each row."""
        counts = np.array(self.state["counts"], dtype=np.float64)
        return np.asarray(counts / counts.sum())

    def expected(self, left: int, energy_j: float, delay_s: float, done: DoneRounds | None = None) -> Expected:
        """What is expected of so many more rounds in rows like those remembered."""
        done = done or DoneRounds()
        rows, total = self.rows, done.rounds + left
        if not rows or energy_j <= 0.0 or delay_s <= 0.0:
            return Expected(np.inf)
        tangent = self.tangent(total, self.state["slowed"])
        fixed = tangent.fixed
        master = self.shared(tangent, energy_j / left, delay_s / left)
        if not np.isfinite(master.objective):
            return Expected(np.inf)
        used = np.array([row[:3] @ weight for row, weight in zip(rows, master.weights, strict=True)])
        few, divergence, pruning = used.sum(axis=0).tolist()
        sums = DoneRounds(total, done.few_clients + left * few, done.pruning + left * pruning,
                          done.divergence + left * divergence)
        z = (fixed.slowed_by_pruning * sums.pruning + fixed.slowed_by_divergence * sums.divergence) / total
        return Expected(sums.error(fixed), master.prices, z)

    def shared(self, tangent: ForecastTangent, energy: float, delay: float) -> Master:
        """The program, solved: joules and seconds of a mean round shared between the rows.

        Its objective is infinite where they do not suffice.
        """
        rows = self.rows
        weights = _weights(tangent)
        master = Master(self.shares, energy, delay, _no_pricing, 0.0)
        for kind, row in enumerate(rows):
            nobody = np.zeros((row.shape[1], 0), dtype=np.bool_)
            master.add(kind, Columns(nobody, weights @ row[:3], row[3], row[4]))
        master.shortfall = 0.0  # whether the budgets can be kept is found out with the prices
        master.program()
        return master

    def best_left(
        self, guess: int, most: int, energy_j: float, delay_s: float, done: DoneRounds | None = None, *, leap: int
    ) -> tuple[int, Expected]:
        """The number of remaining rounds with the least expected error, from a guess on.

        :param leap: by how much the guess is changed at first.
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
    """The largest value v* of a round that is taken, where those to come have these values, (K,), with these shares.

    Passing a row costs ``waiting``, so v* = waiting + Σ share·min(value, v*).
    """
    order = np.argsort(values, kind="stable")
    share = shares[order]
    return float(((waiting + np.cumsum(share * values[order])) / np.cumsum(share)).min())


def _weights(tangent: ForecastTangent) -> Floats:
    """What 1/k, KL and the mean pruning ratio cost."""
    return np.array([tangent.fixed.few_clients, tangent.label_weight, tangent.pruning_weight])


def features_of(task: Task, columns: Columns) -> Floats:
    """1/k, KL, mean pruning ratio, joules and seconds of rounds, (5, S)."""
    objective = task.objective
    assert isinstance(objective, ForecastTangent)
    weight = objective.pruning_weight
    unpruned = objective.selection_cost(columns.selected)
    pruning = (columns.cost - unpruned) / weight if weight > 0.0 else np.zeros(len(unpruned))
    return np.stack([1.0 / columns.selected.sum(axis=-1), objective.divergence(columns.selected),
                     np.maximum(pruning, 0.0), columns.energy, columns.deadline])


def _no_pricing(mu: float, nu: float, allowed: float) -> list[Any]:
    raise AssertionError("this linear program has all its columns from the start and must not ask for more")
