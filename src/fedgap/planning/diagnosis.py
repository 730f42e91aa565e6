"""The least energy and delay that any plan needs, and an explanation if the budgets are smaller.

The cheapest round prunes as much as allowed and selects as few clients as allowed. Its deadline d(π) and energy e(π)
are functions of the price of time π (:mod:`fedgap.planning.client_curves`). In the best plan all rounds have the same
π, so that the least delay for a given energy, and the least energy for a given delay, follow from an equation in π
alone. If the planner selects the clients, rounds with a single client are cheapest, and the best plan mixes at most two
of them, a fast one and a frugal one. If the selection is fixed, the prices of its clients add up to that of the round
(:meth:`fedgap.planning.client_curves.ClientCurves.share`).
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.task import Task
from fedgap.planning.tolerances import BUDGET_MARGIN, CHEAPEST_PRICE, KEPT

_CANDIDATES = 8
"""Number of clients that are tried in mixes of two; they are the cheapest at and around the best price."""
_COUNTS = 64
"""Number of ways to divide the rounds between two clients that are tried first. Then all ways around the best are
tried."""
_NEAR = np.array([1.0, 0.5, 2.0, 0.1, 10.0, 1e-4, 1e4])
"""Multiples of the best price of time at which clients for mixes are searched."""
_PRICES = 721
"""Number of prices of time at which the cheapest rounds are searched; forty per factor of ten."""
_BISECTIONS, _FEWER_BISECTIONS = 60, 30
"""Number of times that the interval of a price's logarithm is halved, in the last search and in the one before it."""
_SLOWER = 1.25
"""The advised delay budget, as a multiple of the least, if both budgets must be raised."""


@dataclass(frozen=True, eq=False)
class Mix:
    """A plan with the least energy or delay: J selections, and what they need together."""

    selected: Bools
    """The selections, (J, N)."""
    rounds: Floats
    """The number of rounds of each, (J,)."""
    dense: Bools
    """Whether these rounds are unpruned, (J,)."""
    price: float
    """The price of time π that all rounds have, W."""
    energy_j: float
    delay_s: float


class Cheapest:
    """The plans of a task with the least energy or delay, without regard to the objective."""

    def __init__(self, task: Task) -> None:
        self.problem = task.problem
        self.kinds = [(kind.rounds, kind.curves) for kind in task.kinds]
        self.curves = self.kinds[-1][1]
        self.single = task.selected is None
        selections = np.eye(self.problem.size, dtype=np.bool_) if task.selected is None else task.selected[None]
        self.selections = selections[np.isfinite(task.objective.selection_cost(selections))]
        self.who = self.selections.argmax(axis=-1)
        self.broadcast_j = self.problem.broadcast_j
        self.dearest = float(np.max(self.curves.full_price)) * 4.0

    def curve(self, curves: ClientCurves, price: Floats) -> tuple[Floats, Floats]:
        """Return deadline, s, and energy, J, of a round with each single client alone, at P prices of time, (P, S)."""
        # One more second also costs idle energy, so that a client works at a higher price than the round has.
        point = curves.at(price[:, None] + curves.idle)
        alone = curves.overhead + curves.keep_min * point.time
        energy = curves.keep_min * point.energy + curves.idle * alone
        return alone[:, self.who], energy[:, self.who] + self.broadcast_j

    def impossible(self) -> bool:
        """Return whether it can be proven, by some price of time π, that no plan keeps both budgets.

        The point of a client's curve at π minimises e + π·d, and a round of several clients costs no less than that of
        one of them. π·T + E of any plan is therefore at least the sum over its rounds of the least e + π·d.
        """
        if not (self.single and len(self.selections)):
            return False
        prices = np.concatenate([[0.0], np.geomspace(self.dearest * CHEAPEST_PRICE, self.dearest, _PRICES)])
        least = np.zeros(len(prices))
        for rounds, curves in self.kinds:
            d, e = self.curve(curves, np.maximum(prices, prices[1]))
            # As the price goes to 0, the delay grows without limit. At price 0 only the broadcast is counted, which is
            # a lower bound on the energy.
            least += rounds * (d * prices[:, None] + np.where(prices[:, None] > 0.0, e, self.broadcast_j)).min(axis=-1)
        room = prices * self.problem.delay_s + self.problem.energy_j
        fastest = sum(rounds * float(curves.shortest(self.selections).min()) for rounds, curves in self.kinds)
        beyond = 1.0 + BUDGET_MARGIN
        return bool((least > room * beyond).any()) or fastest > self.problem.delay_s * beyond

    def fitting(self) -> Mix | None:
        """Return a plan that keeps both budgets, or None if none is found."""
        problem = self.problem
        quick = self.least_delay(problem.energy_j)
        if quick is not None and quick.delay_s <= problem.delay_s * (1.0 + KEPT):
            return quick
        if self.impossible():
            return None
        frugal = self.least_energy(problem.delay_s)
        return frugal if frugal is not None and frugal.energy_j <= problem.energy_j * (1.0 + KEPT) else None

    def least_delay(self, energy_j: float) -> Mix | None:
        """Return the plan of least delay within an energy budget; None if the energy does not suffice."""
        return self._least(energy_j, of_energy=True)

    def least_energy(self, delay_s: float) -> Mix | None:
        """Return the plan of least energy within a delay budget; None if the delay does not suffice."""
        return self._least(delay_s, of_energy=False)

    def _least(self, budget: float, *, of_energy: bool) -> Mix | None:
        """Return the plan that keeps one budget, of energy or of delay, and needs least of the other."""
        if not len(self.selections):
            return None
        if not self.single:
            return self._together(budget, of_energy=of_energy)
        # With a rising price of time the cheapest client changes from frugal to fast. Find the price that uses up the
        # budget.
        prices = np.geomspace(self.dearest * CHEAPEST_PRICE, self.dearest, _PRICES)
        total = np.zeros(len(prices))
        for rounds, curves in self.kinds:
            both = self.curve(curves, prices)
            chosen = (both[0] * prices[:, None] + both[1]).argmin(axis=-1)
            total += rounds * both[of_energy][np.arange(len(prices)), chosen]
        enough = total <= budget
        if of_energy:  # joules rise with the price of time, seconds fall
            where = int(len(enough) - 1 - np.argmax(enough[::-1])) if enough.any() else 0
        else:
            where = int(np.argmax(enough)) if enough.any() else -1
        rows, rounds_of = self._mixes(float(prices[where]))
        rounds = self.kinds[-1][0]
        steps = _BISECTIONS if rounds <= _COUNTS else _FEWER_BISECTIONS
        best = self._best(rows, rounds_of, budget, of_energy=of_energy, steps=steps)
        if best is None or rounds <= _COUNTS:
            return best and best[0]
        # Only some ways to divide the rounds were tried. Now try all of those around the best.
        _, row, parts = best
        step = -(-rounds // _COUNTS)
        counts = np.arange(max(0.0, parts[-2] - step), min(parts[-2] + step, rounds) + 1.0)
        nearby = np.tile(parts, (len(counts), 1))
        nearby[:, -2], nearby[:, -1] = counts, rounds - counts
        finer = self._best(np.tile(row, (len(counts), 1)), nearby, budget, of_energy=of_energy)
        return finer and finer[0]

    def _together(self, budget: float, *, of_energy: bool) -> Mix | None:
        """Return the same plan for a fixed selection. Nothing is mixed, but the kinds of rounds share the budget."""
        rounds = np.array([count for count, _ in self.kinds])
        curves = ClientCurves.stack([curves for _, curves in self.kinds])
        selected = np.repeat(self.selections, len(rounds), axis=0)
        broadcasts = self.problem.rounds * self.broadcast_j
        shared = curves.share(selected, rounds, budget - of_energy * broadcasts, of_energy=of_energy)
        if shared is None:
            return None
        price, deadline = shared
        energy = float(rounds @ curves.within(selected, deadline)[0]) + broadcasts
        dense = np.arange(len(rounds)) < len(rounds) - 1
        return Mix(selected, rounds.astype(np.float64), dense, price, energy, float(rounds @ deadline))

    def _mixes(self, price: float) -> tuple[Ints, Floats]:
        """Return B mixes of clients that are cheap at and around a price: indices of ``selections``, and rounds, (B,
        J).

        The first column is the unpruned round, if there must be one; the other two share the remaining rounds.
        """
        near: list[list[int]] = []
        for _, curves in self.kinds:
            d, e = self.curve(curves, price * _NEAR)
            ranks = np.argsort(d * (price * _NEAR)[:, None] + e, axis=-1)[:, :3]
            near.append(list(dict.fromkeys(ranks.ravel().tolist()))[:_CANDIDATES])
        rounds, last = self.kinds[-1][0], near[-1]
        counts = np.unique(np.linspace(0, rounds, min(rounds, _COUNTS) + 1).astype(int))
        pairs = list(combinations(last, 2)) or [(last[0], last[0])]
        rows = np.repeat(np.array(pairs), len(counts), axis=0)
        parts = np.tile(np.column_stack([counts, rounds - counts]), (len(pairs), 1))
        if len(self.kinds) == 2:
            first = np.repeat(near[0], len(rows))[:, None]
            rows = np.hstack([first, np.tile(rows, (len(near[0]), 1))])
            parts = np.hstack([np.ones_like(first), np.tile(parts, (len(near[0]), 1))])
        return rows, parts.astype(np.float64)

    def _best(
        self, rows: Ints, rounds: Floats, budget: float, *, of_energy: bool, steps: int = _BISECTIONS
    ) -> tuple[Mix, Ints, Floats] | None:
        """Return the best mix that keeps ``budget``, with its indices and rounds; None if no mix keeps it.

        Each mix is taken at the price of time at which it uses up the budget.
        """
        kinds = [self.kinds[0][1]] * (len(self.kinds) - 1) + [self.kinds[-1][1]] * 2
        ends = [self._total(kinds, rows, rounds, np.full(len(rows), price))
                for price in (CHEAPEST_PRICE * self.dearest, self.dearest)]
        possible = np.minimum(*(end[of_energy] for end in ends)) <= budget
        if not possible.any():
            return None
        rows, rounds = rows[possible], rounds[possible]
        low, high = np.full((2, len(rows)), np.log(self.dearest))
        low = low + np.log(CHEAPEST_PRICE)
        for step in range(steps):
            middle = 0.5 * (low + high)
            up = (self._total(kinds, rows, rounds, np.exp(middle))[of_energy] > budget) != of_energy
            low, high = np.where(up, middle, low), np.where(up, high, middle)
            if step % 10 == 9:  # drop mixes that cannot become the best
                at_low, at_high = (self._total(kinds, rows, rounds, np.exp(end))[not of_energy] for end in (low, high))
                hopeful = np.minimum(at_low, at_high) <= np.maximum(at_low, at_high).min()
                rows, rounds, low, high = rows[hopeful], rounds[hopeful], low[hopeful], high[hopeful]
        price = np.exp(low if of_energy else high)  # the end of the interval at which the budget is kept
        d, e = self._total(kinds, rows, rounds, price)
        best = int((d if of_energy else e).argmin())
        kept = rounds[best] > 0
        dense = np.arange(rows.shape[1]) < len(self.kinds) - 1
        mix = Mix(self.selections[rows[best]][kept], rounds[best][kept], dense[kept], float(price[best]),
                  float(e[best]), float(d[best]))
        return mix, rows[best], rounds[best]

    def _total(self, kinds: list[ClientCurves], rows: Ints, rounds: Floats, price: Floats) -> tuple[Floats, Floats]:
        """Return the seconds and joules of each mix, (B,), each at its own price of time."""
        delay, energy = np.zeros((2, len(rows)))
        for curves, row, count in zip(kinds, rows.T, rounds.T, strict=True):
            own = curves.take(self.who[row])
            point = own.at(price + own.idle)
            alone = own.overhead + own.keep_min * point.time
            delay += count * alone
            energy += count * (own.keep_min * point.energy + own.idle * alone + self.broadcast_j)
        return delay, energy


def feasible(task: Task) -> bool:
    """Return whether a plan that keeps the budgets was found."""
    return Cheapest(task).fitting() is not None


def most_rounds(task: Task) -> int:
    """Return the largest number of rounds, at most R, that fits the budgets; 0 if not even one fits."""
    low, high = 0, task.problem.rounds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if feasible(task.with_rounds(middle)) else (low, middle - 1)
    return low


def least_budget(task: Task) -> dict[str, float | None]:
    """Return for each budget the least that suffices while the other stays as it is; None if no amount suffices."""
    cheapest, problem = Cheapest(task), task.problem
    delay, energy = cheapest.least_delay(problem.energy_j), cheapest.least_energy(problem.delay_s)
    return {
        "energy_j": None if energy is None else energy.energy_j * (1.0 + BUDGET_MARGIN),
        "delay_s": None if delay is None else delay.delay_s * (1.0 + BUDGET_MARGIN),
    }


def reason(task: Task, least: dict[str, float | None]) -> str:
    """Return a sentence that names the constraint that cannot be kept, the client, and what would suffice.

    :param least: the result of :func:`least_budget`.
    """
    cheapest, problem = Cheapest(task), task.problem
    if np.isfinite(problem.fleet.battery_j).any() and cheapest.fitting() is not None:
        weakest = int(np.argmin(problem.fleet.battery_j))
        who = problem.names[weakest] if problem.names else f"client {weakest}"
        return ("clients.battery_j: the budgets suffice, but no plan was found that keeps every battery; raise the "
                f"batteries, of which that of {who} is the smallest, {problem.fleet.battery_j[weakest]:g} J")
    if not len(cheapest.selections):
        return ("clients.label_counts: no selection has a generalization statement φ; give clients label_counts that "
                "are closer to target_counts")
    curves = cheapest.kinds[-1][1]
    need = curves.overhead + curves.keep_min * curves.u_min
    pruned = "with the most pruning" if task.scheme.prune else "without pruning"
    client = int(need.argmin() if task.selected is None else np.where(task.selected, need, 0.0).argmax())
    name, seconds = problem.names[client] if problem.names else f"client {client}", float(need[client])
    energy, delay = least["energy_j"], least["delay_s"]
    if energy is None:
        who = f"even {name}, the fastest," if task.selected is None else f"{name}, the slowest,"
        ending = f"; raise budget.delay_s to {_up(delay)}" if delay is not None else _both(cheapest)
        return (
            f"budget.delay_s: {who} needs {seconds:.4g} s per round at full power and frequency {pruned}, so "
            f"{problem.rounds} rounds do not fit in {problem.delay_s:g} s{ending}"
        )
    if delay is None:
        broadcast = problem.rounds * problem.broadcast_j
        what = (
            f"the server's broadcasts alone need {broadcast:.4g} J"
            if broadcast >= problem.energy_j
            else "computing and uploading need more than the broadcasts leave, however slow they are,"
        )
        return f"budget.energy_j: {what} in {problem.rounds} rounds; raise budget.energy_j to {_up(energy)}"
    return (
        f"budget.energy_j and budget.delay_s together: within {problem.energy_j:g} J, {problem.rounds} rounds take at "
        f"least {delay:.6g} s ({name} is the {'fastest' if task.selected is None else 'slowest'} client); "
        f"raise budget.delay_s to {_up(delay)} or budget.energy_j to {_up(energy)}"
    )


def _both(cheapest: Cheapest) -> str:
    """Return the advice if raising one budget is not enough: raise both, the delay to a quarter above its least."""
    problem, selections = cheapest.problem, cheapest.selections
    delay = _SLOWER * sum(rounds * float(curves.shortest(selections).min()) for rounds, curves in cheapest.kinds)
    mix = cheapest.least_energy(delay)
    if mix is None:
        return ""
    floor = cheapest.least_energy(np.inf)
    few = "" if floor is None else (f", and they need at least {floor.energy_j:.4g} J, however slow they are, but the "
                                    f"budget has {problem.energy_j:g} J")
    energy = mix.energy_j * (1.0 + BUDGET_MARGIN)
    return f"{few}; raise budget.delay_s to {_up(delay)} and budget.energy_j to {_up(energy)}"


def _up(value: float | None) -> str:
    """Format a number with four digits, rounded up, so that a budget of this size suffices."""
    assert value is not None
    digits = 3 - int(np.floor(np.log10(value)))
    return f"{np.ceil(value * 10.0**digits) / 10.0**digits:.6g}"
