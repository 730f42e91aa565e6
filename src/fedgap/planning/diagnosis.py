"""Which budgets would do: the least energy and delay of any plan, and what to say when they are not there.

Pruned to the most and selecting as few as it may, a round runs along a client's curve (d(π), e(π)); rounds that share
two budgets share one price of time π, so a composition's least delay for an energy is a scalar root, and so is the
converse. Where a scheme selects, rounds of single clients are cheapest; a plan mixes at most a fast and a frugal one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.units import Units

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_CANDIDATES = 8
"""Selections near the lower envelope that whole rounds are mixed from."""
_MARGIN = 1e-9
"""Relative allowance that makes a least budget feasible in floating point."""


@dataclass(frozen=True, eq=False)
class Mix:
    """A cheapest plan: selections (J, N) with their rounds, the price of time they share, and what it needs."""

    selected: Bools
    rounds: Array
    dense: Bools
    price: float
    energy_j: float
    delay_s: float

    def composition(self, kinds: int) -> tuple[tuple[int, bytes, int], ...]:
        """The mix as (kind of round, selection, rounds), for the solver to start from."""
        return tuple(
            (0 if dense else kinds - 1, row.tobytes(), int(r))
            for row, r, dense in zip(self.selected, self.rounds, self.dense, strict=True)
        )


class Cheapest:
    """The cheapest rounds of a problem under a scheme, ignoring θ."""

    def __init__(self, problem: Problem, scheme: Scheme) -> None:
        self.problem = problem
        self.units = Units.of(
            problem.fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency
        )
        size = problem.size
        self.selections = np.eye(size, dtype=np.bool_) if scheme.select else np.ones((1, size), dtype=np.bool_)
        usable = np.isfinite(problem.selection_cost(self.selections))
        self.selections = self.selections[usable]
        first_dense = problem.dense_first and scheme.prune
        self.kinds = [(1, self.units.dense())] if first_dense else []
        if problem.rounds > len(self.kinds):
            self.kinds.append((problem.rounds - len(self.kinds), self.units))

    def curve(self, units: Units, price: Array) -> tuple[Array, Array]:
        """(d, e) of one round of every selection at prices (P,): the deadline, s, and the joules, (P, S).

        In a selection of several clients the one that needs longest sets the deadline, the others slow down to it.
        """
        shape = (len(price), self.problem.size)
        point = units.at(np.broadcast_to(price[:, None], shape))
        alone = units.overhead + units.keep_min * point.time
        if self.selections.sum(axis=-1).max() == 1:
            who = self.selections.argmax(axis=-1)
            return alone[:, who], (units.keep_min * point.energy)[:, who] + self.problem.broadcast_j
        deadline = np.where(self.selections, alone[:, None, :], 0.0).max(axis=-1)
        time = np.maximum((deadline[..., None] - units.overhead) / units.keep_min, units.u_min)
        energy = units.keep_min * units.at(units.price_of_time(time)).energy
        return deadline, np.where(self.selections, energy, 0.0).sum(axis=-1) + self.problem.broadcast_j

    def least_delay(self, energy_j: float) -> Mix | None:
        """The plan of least delay within an energy budget; None if no delay would do."""
        return self._least(energy_j, lambda d, e: e, lambda mix: mix.delay_s)

    def least_energy(self, delay_s: float) -> Mix | None:
        """The plan of least energy within a delay budget; None if no energy would do."""
        return self._least(delay_s, lambda d, e: d, lambda mix: mix.energy_j)

    def _least(
        self, budget: float, used: Callable[[Array, Array], Array], wanted: Callable[[Mix], float]
    ) -> Mix | None:
        if not len(self.selections):
            return None
        # Along the price the envelope's best selections go from frugal to fast; find the price that uses the budget.
        full = float(np.max(self.units.full_price)) * 4.0
        prices = np.concatenate([np.geomspace(full * 1e-18, full, 721)])
        best: Mix | None = None
        total = np.zeros(len(prices))
        for rounds, units in self.kinds:
            d, e = self.curve(units, prices)
            chosen = (d * prices[:, None] + e).argmin(axis=-1)
            rows = np.arange(len(prices))
            total += rounds * used(d[rows, chosen], e[rows, chosen])
        falls = total[0] > total[-1]
        enough = total <= budget
        where = int(np.argmax(enough)) if falls else int(len(enough) - 1 - np.argmax(enough[::-1]))
        centre = float(prices[where if enough.any() else (-1 if falls else 0)])
        for candidates in self._mixes(centre):
            for mix in self._solve(candidates, budget, used):
                if best is None or wanted(mix) < wanted(best):
                    best = mix
        return best

    def _mixes(self, price: float) -> list[tuple[Bools, Array, Bools]]:
        """Whole-round mixes of the selections near the envelope at a price: (J, N) selections and (B, J) rounds."""
        near: list[list[int]] = []
        for _, units in self.kinds:
            ranks: list[int] = []
            for factor in (1.0, 0.5, 2.0, 0.1, 10.0, 1e-4, 1e4):
                d, e = self.curve(units, np.array([price * factor]))
                ranks += [int(i) for i in np.argsort(d[0] * price * factor + e[0])[:3]]
            near.append(list(dict.fromkeys(ranks))[:_CANDIDATES])
        answers = []
        rounds, last = self.kinds[-1][0], near[-1]
        firsts = near[0] if len(self.kinds) == 2 else [None]
        for first in firsts:
            for a in range(len(last)):
                for b in range(a, len(last)):
                    counts = np.unique(np.linspace(0, rounds, min(rounds, 64) + 1).astype(int))
                    split = np.column_stack([counts, rounds - counts]) if b > a else np.array([[rounds]])
                    chosen = self.selections[[last[a], last[b]]] if b > a else self.selections[[last[a]]]
                    dense = np.zeros(len(chosen), dtype=np.bool_)
                    if first is not None:
                        chosen = np.concatenate([self.selections[[first]], chosen])
                        split = np.column_stack([np.ones(len(split), dtype=int), split])
                        dense = np.concatenate([[True], dense])
                    answers.append((chosen, split.astype(np.float64), dense))
        return answers

    def _solve(
        self, candidates: tuple[Bools, Array, Bools], budget: float, used: Callable[[Array, Array], Array]
    ) -> list[Mix]:
        """The mixes that can keep ``budget``, each at the price of time that just does."""
        selected, rounds, dense = candidates
        rows = [int(np.flatnonzero((self.selections == row).all(axis=-1))[0]) for row in selected]

        def totals(price: Array) -> tuple[Array, Array]:
            both = [self.curve(self.kinds[0][1] if is_dense else self.kinds[-1][1], price) for is_dense in dense]
            d = np.column_stack([b[0][:, row] for b, row in zip(both, rows, strict=True)])
            e = np.column_stack([b[1][:, row] for b, row in zip(both, rows, strict=True)])
            return (rounds * d).sum(axis=-1), (rounds * e).sum(axis=-1)

        full = float(np.max(self.units.full_price)) * 4.0
        low = np.full(len(rounds), np.log(full * 1e-18))
        high = np.full(len(rounds), np.log(full))
        at_low, at_high = (used(*totals(np.exp(end))) for end in (low, high))
        falls = at_low > at_high  # seconds fall with their price, joules rise
        possible = np.minimum(at_low, at_high) <= budget
        if not possible.any():
            return []
        for _ in range(70):
            middle = 0.5 * (low + high)
            over = used(*totals(np.exp(middle))) > budget
            up = over == falls
            low, high = np.where(up, middle, low), np.where(up, high, middle)
        price = np.exp(np.where(falls, high, low))  # the side that keeps the budget
        d, e = totals(price)
        mixes = []
        for b in np.flatnonzero(possible):
            kept = rounds[b] > 0
            parts = (selected[kept], rounds[b][kept], dense[kept])
            mixes.append(Mix(*parts, float(price[b]), float(e[b]), float(d[b])))
        return mixes


def feasible(problem: Problem, scheme: Scheme) -> bool:
    """Whether any plan keeps the budgets."""
    mix = Cheapest(problem, scheme).least_delay(problem.energy_j)
    return mix is not None and mix.delay_s <= problem.delay_s * (1.0 + 1e-12)


def most_rounds(problem: Problem, scheme: Scheme) -> int:
    """The largest number of rounds, at most R, that the budgets carry under a scheme; 0 if not even one."""
    low, high = 0, problem.rounds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if feasible(problem.with_rounds(middle), scheme) else (low, middle - 1)
    return low


def least_budget(problem: Problem, scheme: Scheme) -> dict[str, float | None]:
    """For each budget alone, the other held, the least that would do; None where no amount does."""
    cheapest = Cheapest(problem, scheme)
    delay, energy = cheapest.least_delay(problem.energy_j), cheapest.least_energy(problem.delay_s)
    return {
        "energy_j": None if energy is None else energy.energy_j * (1.0 + _MARGIN),
        "delay_s": None if delay is None else delay.delay_s * (1.0 + _MARGIN),
    }


def reason(problem: Problem, scheme: Scheme, least: dict[str, float | None]) -> str:
    """One sentence: which constraint binds, whose it is, and what would be enough."""
    cheapest = Cheapest(problem, scheme)
    if not len(cheapest.selections):
        return "no selection has a generalization statement; give clients label_counts closer to target_counts"
    units = cheapest.kinds[-1][1]
    need = units.overhead + units.keep_min * units.u_min
    pruned = "pruned to its most" if scheme.prune else "unpruned"
    client = int(need.argmin()) if scheme.select else int(need.argmax())
    name, seconds = problem.names[client] if problem.names else f"client {client}", float(need[client])
    energy, delay = least["energy_j"], least["delay_s"]
    if energy is None:
        who = f"even {name}, the fastest," if scheme.select else f"{name}, the slowest,"
        ending = f"; raise budget.delay_s to {_up(delay)}" if delay is not None else ""
        return (
            f"delay_s: {who} needs {seconds:.4g} s a round at full power and frequency, {pruned}: "
            f"{problem.rounds} rounds do not fit in {problem.delay_s:g} s{ending}"
        )
    if delay is None:
        broadcast = problem.rounds * problem.broadcast_j
        what = (
            f"the server's broadcasts alone take {broadcast:.4g} J"
            if broadcast >= problem.energy_j
            else "computing and uploading take more than is left after the broadcasts, however slow"
        )
        return f"energy_j: {what} in {problem.rounds} rounds; raise budget.energy_j to {_up(energy)}"
    return (
        f"energy_j and delay_s together: within {problem.energy_j:g} J, {problem.rounds} rounds take at least "
        f"{delay:.6g} s ({name} the {'fastest' if scheme.select else 'slowest'}); "
        f"raise budget.delay_s to {_up(delay)} or budget.energy_j to {_up(energy)}"
    )


def _up(value: float | None) -> str:
    """A number of four digits, rounded up, so that following the advice is enough."""
    assert value is not None
    digits = 3 - int(np.floor(np.log10(value)))
    return f"{np.ceil(value * 10.0**digits) / 10.0**digits:.6g}"
