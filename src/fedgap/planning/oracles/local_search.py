"""Pricing by ``mixture`` for fleets too large to enumerate: local search, for Φ of pooled labels is a set function.

No bound comes with it. At prices (μ, ν) a round is a selection and a deadline from a grid. A climb takes the best move
as long as one helps: a client added or dropped, else one swapped for another, else up to three for up to three. All
moves of a kind are evaluated at once, at deadlines near and far: the pooled histogram after a move is the one before,
plus or minus some rows, and the clients' worths v_n(d) depend on the selection through the number of clients alone.

A climb starts from the best selections known at these prices, and, where asked for, from the best ones with a few
clients changed at random (from a fixed seed: the same problem has the same plan). What it finds joins the known ones,
so that later prices start close to their answer. The first ones are

- clients added one by one so that their pooled labels come as close to the target's as possible, from the whole fleet
  and from its faster parts, for several numbers of clients;
- all clients that meet a deadline, for several deadlines;
- the selections of the plan by ``mean``.
"""

from functools import partial
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgap.planning.energy_time_curve import Units
from fedgap.planning.oracles.bounded_search import deadlines
from fedgap.planning.oracles.enumerate import Priced, RoundCurve, Worths
from fedgap.planning.problem import Problem
from fedgap.theory import divergence, smoothed

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

_REACH = np.array([-64, -24, -9, -3, -1, 0, 1, 3, 9, 24, 64])
"""Steps on the grid of deadlines that a move may take."""
_CLIMBS = 3
"""Of the selections known, so many start a climb at every pricing."""
_KICKED = (1, 5)
"""How many of those inside and of those outside are changed at random before a further climb: from 1 to 4."""
_SWAPPED = 120
"""Of a large fleet, so many clients inside and outside of a selection are tried for swaps, drawn at random."""
_SOME, _MANY = 240, 1200
"""Groups of up to three clients that may leave, and as many that may come: all pairs of them are estimated."""
_TRIED = 96
"""Of those, so many are evaluated: the best by an estimate."""
_COLUMNS = 6
"""Rounds that a pricing returns."""
_REFINED = 1e-7
"""How exactly their deadlines are found, by L: those of the plan are solved for afterwards."""
_KNOWN = 240
"""Selections kept from earlier prices."""
_CHAIN = 24
"""Numbers of clients at which a chain of additions becomes a start."""


class _Move(NamedTuple):
    """Some clients flipped, at a deadline; no clients: only the deadline changes."""

    value: float
    place: int
    flips: Ints


class Climbed:
    """Prices selections of a large fleet by ``mixture``: good rounds, and no bound."""

    _GRID = 160
    tolerance = 1e-6

    def __init__(self, problem: Problem, units: Units, longest_s: float, *, thorough: bool = True) -> None:
        """:param thorough: whether these rounds are enough of all to be worth looking for the best."""
        assert problem.label_counts is not None
        assert problem.target_counts is not None
        self.problem, self.units, self.counts = problem, units, problem.label_counts
        self.target = smoothed(problem.target_counts)
        self.known: dict[bytes, None] = {}
        self.some = False
        self.thorough = thorough
        self._climbs = _CLIMBS if thorough else 1
        need = units.overhead + units.keep_min * units.u_min
        if need.min() > longest_s:
            return
        self.worths = Worths(units, deadlines(need, longest_s, self._GRID))
        self.grid, self.able = self.worths.grid, self.worths.in_time
        self._coarse = np.unique(np.linspace(0, len(self.grid) - 1, 48).round().astype(np.intp))
        self._random = np.random.default_rng(12)
        self.learn(self._starts(need, longest_s))
        self.some = bool(self.known)

    def learn(self, selections: Bools) -> None:
        """Take selections from elsewhere as starts, those that have a statement and meet the longest deadline."""
        usable = np.isfinite(self.problem.selection_cost(selections)) & ~(selections & ~self.able[-1]).any(axis=-1)
        self.known |= {row.tobytes(): None for row in selections[usable]}

    @property
    def selections(self) -> Bools:
        """Those known so far, (S, N)."""
        return np.stack([np.frombuffer(key, dtype=np.bool_) for key in self.known])

    def price(self, mu: float, nu: float, allowed: float = np.inf, *, kicks: int = 0) -> Priced:
        """The best rounds found; ``allowed`` does not matter, for there is no bound.

        :param kicks: further climbs from good selections with a few clients changed, with all kinds of moves.
        """
        sets = self.selections
        value, place = self._rank(sets, mu, nu, self._coarse)
        order = np.argsort(value, kind="stable")
        thorough = kicks > 0
        climbs = [self._climb(sets[i], int(place[i]), mu, nu, thorough) for i in order[: self._climbs]]
        for _ in range(kicks):
            climbs.sort(key=lambda climb: climb[2])
            selected, at, _ = climbs[min(int(self._random.geometric(0.5)) - 1, len(climbs) - 1)]
            climb = self._climb(self._kicked(selected, at), at, mu, nu, thorough)
            if np.isfinite(climb[2]):  # else nothing near the changed selection has a statement
                climbs.append(climb)
        found = np.unique(np.stack([climb[0] for climb in climbs]), axis=0)
        self.known |= {row.tobytes(): None for row in found}
        if len(self.known) > _KNOWN:
            for i in order[_KNOWN // 2 :]:
                self.known.pop(sets[i].tobytes(), None)
        sets = np.unique(np.concatenate([found, sets[order[:2]]]), axis=0)
        value, place = self._rank(sets, mu, nu, np.arange(len(self.grid)))
        kept = np.argsort(value, kind="stable")[:_COLUMNS]
        sets, place = sets[kept], place[kept]
        base, shortest = self.problem.selection_cost(sets), self.units.shortest(sets)
        curve = RoundCurve(self.problem, self.units, sets, base, mu, nu, self.worths.floor)
        low, high = (self.grid[np.clip(place + side, 0, len(self.grid) - 1)] for side in (-1, 1))
        refined = curve.minimise(np.maximum(low, shortest), np.maximum(high, shortest), _REFINED)
        return Priced(-np.inf, refined.columns.take(list(np.argsort(refined.value, kind="stable"))))

    # --- where to start -------------------------------------------------------------------------------------------

    def _starts(self, need: Array, longest_s: float) -> Bools:
        """See the module's own words."""
        fastest = np.argsort(need, kind="stable")
        fastest = fastest[need[fastest] <= longest_s]
        sizes = np.unique(np.geomspace(1, len(fastest), _CHAIN).round().astype(np.intp))
        rows = [fastest[:size] for size in sizes]
        for share in (1.0, 0.7, 0.4, 0.2):
            chain = self._chain(fastest[: max(1, round(share * len(fastest)))])
            rows += [chain[:size] for size in sizes if size <= len(chain)]
        starts = np.zeros((len(rows), self.problem.size), dtype=np.bool_)
        for start, row in zip(starts, rows, strict=True):
            start[row] = True
        return np.unique(starts, axis=0)

    def _chain(self, clients: Ints) -> Ints:
        """The clients in the order in which each next one brings the pooled labels closest to the target's."""
        left, held = clients.copy(), np.zeros(self.counts.shape[-1])
        chain = np.empty_like(clients)
        for i in range(len(clients)):
            best = int(divergence(smoothed(held + self.counts[left]), self.target).argmin())
            chain[i], held = left[best], held + self.counts[left[best]]
            left = np.delete(left, best)
        return chain

    def _rank(self, sets: Bools, mu: float, nu: float, rows: Ints) -> tuple[Array, Ints]:
        """L of selections at the best of some of the grid's deadlines, and which one that is."""
        value, place = np.empty(len(sets)), np.empty(len(sets), dtype=np.intp)
        base, count = self.problem.selection_cost(sets), sets.sum(axis=-1)
        sizes = np.unique(count)
        self.worths.expect(self.problem.pruning_weight / sizes, mu)
        fixed = nu * self.grid[rows] + mu * self.problem.broadcast_j
        late = (~self.able[rows]).astype(np.float64)
        for k in sizes:
            members = np.flatnonzero(count == k)
            worth, _ = self.worths.at(self.problem.pruning_weight / k, mu, rows)
            some = sets[members].astype(np.float64)
            total = np.where(some @ late.T > 0.5, np.inf, some @ worth.T + fixed)
            best = total.argmin(axis=-1)
            value[members], place[members] = base[members] + total[np.arange(len(members)), best], rows[best]
        return value, place

    def _kicked(self, selected: Bools, place: int) -> Bools:
        """The selection with a few clients that meet the deadline changed at random."""
        inside, outside = np.flatnonzero(selected), np.flatnonzero(~selected & self.able[place])
        changed = selected.copy()
        for members in (inside, outside):
            number = min(len(members), int(self._random.integers(*_KICKED)))
            changed[self._random.choice(members, number, replace=False)] ^= True
        return changed if changed.any() else selected

    def some_of(self, clients: Ints, number: int) -> Ints:
        """So many of them at most, drawn at random."""
        if len(clients) <= number:
            return clients
        return np.asarray(self._random.choice(clients, number, replace=False))

    def groups_of_three(self, clients: Ints, number: int) -> Ints:
        """Nobody, single clients, twos and threes of them, rows of three; N stands for nobody. Drawn where too many."""
        nobody = self.problem.size
        rows = np.full((1, 3), nobody, dtype=np.intp)
        for size in range(1, min(3, len(clients)) + 1):
            left = number - len(rows)
            if left <= 0:
                break
            if comb(len(clients), size) <= left:
                drawn = np.array(list(combinations(clients, size)), dtype=np.intp)
            else:
                drawn = self._random.choice(clients, (left, size))
                drawn = np.sort(drawn[(np.diff(np.sort(drawn, axis=-1), axis=-1) > 0).all(axis=-1)], axis=-1)
            rows = np.concatenate([rows, np.pad(drawn, ((0, 0), (0, 3 - size)), constant_values=nobody)])
        return rows

    # --- climbing ---------------------------------------------------------------------------------------------------

    def _climb(self, selected: Bools, place: int, mu: float, nu: float, thorough: bool) -> tuple[Bools, int, float]:
        """Take the best move as long as one lowers L: the selection, the place of its deadline on the grid, and L."""
        current, value = selected.copy(), np.inf
        for _ in range(2 * self.problem.size):
            best = self._best_move(current, place, mu, nu, value, thorough)
            if not best.value < value - 1e-10 * abs(value if np.isfinite(value) else 0.0):
                break
            value, place = best.value, best.place
            current[best.flips] ^= True
        return current, place, value

    def _best_move(
        self, selected: Bools, place: int, mu: float, nu: float, value: float, thorough: bool
    ) -> _Move:
        """A client added or dropped; where none is better than ``value``, a swap; then up to three for up to three."""
        here = _Here(self, selected, place, mu, nu)
        best = here.stay() if not np.isfinite(value) else _Move(np.inf, place, here.inside[:0])
        for moves in (here.flips, here.swaps, partial(here.exchanges, _MANY if thorough else _SOME)):
            best = min(best, moves(), key=lambda move: move.value)
            if best.value < value:
                break
        return best


class _Here:
    """The moves from one selection, at deadlines around a place on the grid."""

    def __init__(self, oracle: Climbed, selected: Bools, place: int, mu: float, nu: float) -> None:
        self.oracle, self.problem, self.counts, self.mu, self.place = oracle, oracle.problem, oracle.counts, mu, place
        self.inside, self.outside = np.flatnonzero(selected), np.flatnonzero(~selected & oracle.able[-1])
        self.size = len(self.inside)
        self.rows = np.unique(np.clip(place + _REACH, 0, len(oracle.grid) - 1))
        self.fixed = nu * oracle.grid[self.rows] + mu * self.problem.broadcast_j
        self.late = ~oracle.able[self.rows]
        self.overdue = self.late[:, self.inside].sum(axis=-1)
        self.held = self.counts[self.inside].sum(axis=0)
        self._none = _Move(np.inf, place, self.inside[:0])
        sizes = np.arange(max(self.size - 1, 1), self.size + 2)
        oracle.worths.expect(self.problem.pruning_weight / sizes, mu)
        self.same, self.total = self._worths(self.size)

    def _worths(self, number: int) -> tuple[Array, Array]:
        """v_n at the deadlines for this number of clients, and what a round of those inside adds up to."""
        worth, _ = self.oracle.worths.at(self.problem.pruning_weight / number, self.mu, self.rows)
        return worth, worth[:, self.inside].sum(axis=-1) + self.fixed

    def stay(self) -> _Move:
        """Only the deadline changes."""
        value = np.where(self.overdue == 0, float(self.problem.pooled_cost(self.held, self.size)) + self.total, np.inf)
        return _Move(float(value.min()), int(self.rows[value.argmin()]), self.inside[:0])

    def flips(self) -> _Move:
        """One client more or less."""
        best, counts, inside, outside = self._none, self.counts, self.inside, self.outside
        if len(outside):
            worth, more = self._worths(self.size + 1)
            in_time = (self.overdue == 0)[:, None] & ~self.late[:, outside]
            after = self.problem.pooled_cost(self.held + counts[outside], self.size + 1) + worth[:, outside]
            best = self._best(best, np.where(in_time, after + more[:, None], np.inf), outside)
        if self.size > 1:
            worth, less = self._worths(self.size - 1)
            in_time = self.overdue[:, None] == self.late[:, inside]
            after = self.problem.pooled_cost(self.held - counts[inside], self.size - 1) - worth[:, inside]
            best = self._best(best, np.where(in_time, after + less[:, None], np.inf), inside)
        return best

    def _best(self, best: _Move, values: Array, clients: Ints) -> _Move:
        """The best so far, or the best of these flips of one client each."""
        row, i = np.unravel_index(int(values.argmin()), values.shape)
        found = float(values[row, i])
        return _Move(found, int(self.rows[row]), clients[[i]]) if found < best.value else best

    def swaps(self) -> _Move:
        """One client for another."""
        inside, outside = self.inside, self.outside
        if not len(outside):
            return self._none
        if len(inside) * len(outside) > _SWAPPED**2:
            inside, outside = (self.oracle.some_of(each, _SWAPPED) for each in (inside, outside))
        after = self.problem.pooled_cost((self.held - self.counts[inside])[:, None] + self.counts[outside], self.size)
        in_time = (self.overdue[:, None] == self.late[:, inside])[..., None] & ~self.late[:, None, outside]
        change = (self.total[:, None] - self.same[:, inside])[..., None] + self.same[:, None, outside]
        values = np.where(in_time, after + change, np.inf)
        row, i, j = np.unravel_index(int(values.argmin()), values.shape)
        return _Move(float(values[row, i, j]), int(self.rows[row]), np.array([inside[i], outside[j]]))

    def exchanges(self, options: int) -> _Move:
        """Up to three clients for up to three others: the best of those that an estimate finds better than to stay.

        The estimate takes Φ²/k in proportion to the χ² distance of the pooled labels from the target's, which for all
        pairs of those to leave and those to come is one matrix product, and the worths at this deadline and number of
        clients.

        :param options: how many groups to leave, and how many to come, are tried.
        """
        oracle, nobody, (at,) = self.oracle, self.problem.size, np.flatnonzero(self.rows == self.place)
        able = self.outside[~self.late[at, self.outside]]
        out, into = (oracle.groups_of_three(each, options) for each in (self.inside, able))
        counts = np.append(self.counts, np.zeros((1, self.counts.shape[-1])), axis=0)  # nobody has no labels
        root = np.sqrt(oracle.target)
        left = (self.held + 1.0 - counts[out].sum(axis=1)) / root
        come = counts[into].sum(axis=1) / root
        scale = float(left[0] @ root)
        left, come = (left / scale).astype(np.float32), (come / scale).astype(np.float32)
        root = root.astype(np.float32)
        apart = (2.0 * left) @ come.T
        apart += (left * left).sum(axis=-1)[:, None]
        apart += (come * come).sum(axis=-1)
        whole = (left @ root)[:, None] + come @ root
        apart /= whole * whole
        base = float(self.problem.pooled_cost(self.held, self.size))
        worth = np.append(self.same[at], 0.0)
        unit = base / max(float(apart[0, 0]) - 1.0, 1e-7)
        apart += (worth[into].sum(axis=-1) / unit).astype(np.float32)
        apart -= (worth[out].sum(axis=-1) / unit).astype(np.float32)[:, None]
        few = np.flatnonzero(apart < apart[0, 0])
        if len(few) > _TRIED:
            few = few[np.argpartition(apart.ravel()[few], _TRIED)[:_TRIED]]
        i, j = np.unravel_index(few, apart.shape)
        size = self.size + (into[j] < nobody).sum(axis=-1) - (out[i] < nobody).sum(axis=-1)
        return self._tried(out[i], into[j], size)

    def _tried(self, out: Ints, into: Ints, size: Ints) -> _Move:
        """The best of such moves, each evaluated at all the deadlines."""
        counts = np.append(self.counts, np.zeros((1, self.counts.shape[-1])), axis=0)
        late = np.append(self.late, np.zeros((len(self.rows), 1), dtype=np.bool_), axis=1)
        pooled = self.held - counts[out].sum(axis=1) + counts[into].sum(axis=1)
        best = self._none
        sizes = np.unique(size[size > 0])
        self.oracle.worths.expect(self.problem.pruning_weight / sizes, self.mu)
        for k in sizes:
            own = np.flatnonzero(size == k)
            worth, total = self._worths(int(k))
            worth = np.append(worth, np.zeros((len(self.rows), 1)), axis=1)
            on_time = (self.overdue[:, None] == late[:, out[own]].sum(axis=-1)) & ~late[:, into[own]].any(axis=-1)
            change = worth[:, into[own]].sum(axis=-1) - worth[:, out[own]].sum(axis=-1)
            values = self.problem.pooled_cost(pooled[own], int(k)) + total[:, None] + change
            values = np.where(on_time, values, np.inf)
            row, i = np.unravel_index(int(values.argmin()), values.shape)
            if values[row, i] < best.value:
                flips = np.concatenate([out[own[i]], into[own[i]]])
                best = _Move(float(values[row, i]), int(self.rows[row]), flips[flips < self.problem.size])
        return best
