"""Local search for fleets too large to enumerate whose objective has no additive statements, such as pooled labels.

No bound comes with it, but where the labels are convex :mod:`fedgap.planning.oracles.label_bound` proves one
afterwards. At prices (μ, ν) a round is a selection and a deadline from a grid. A climb takes the best move
as long as one helps: a client added or dropped, else one swapped for another, else up to three for up to three. All
moves of a kind are evaluated at once, at deadlines near and far: the pooled histogram after a move is the one before,
plus or minus some rows, and the clients' worths v_n(d) depend on the selection through the number of clients alone.

A climb starts from the best selections known at these prices, and, where asked for, from the best ones with a few
clients changed at random (from the random stream ``planning``: the same problem has the same plan). What it finds joins
the known ones, so that later prices start close to their answer. The first ones are

- clients added one by one so that their pooled labels come as close to the target's as possible, from the whole fleet
  and from its faster parts, for several numbers of clients;
- all clients that meet a deadline, for several deadlines;
- the selections of the plan by the additive objective that stands in for this one.
"""

from functools import partial

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.objective import PooledLabels
from fedgap.planning.oracles.label_bound import LabelBound
from fedgap.planning.oracles.neighbourhood import Move, Neighbourhood
from fedgap.planning.oracles.threshold_rule import deadline_grid
from fedgap.planning.round_lagrangian import Columns, Priced, RoundCurve, Worths
from fedgap.planning.task import Task
from fedgap.planning.tolerances import LOCAL_SEARCH_MET
from fedgap.streams import stream
from fedgap.theory import divergence, smoothed

_GRID = 160
"""Number of deadlines on the grid."""
_COARSE = 48
"""Number of deadlines of the grid that are used to rank the known selections."""
_CLIMBS = 3
"""Number of known selections that start a climb at every pricing."""
_KICKS = 24
"""Number of additional climbs, from good selections with a few clients changed, in a harder search."""
_KICKED = (1, 5)
"""How many of those inside and of those outside are changed at random before such a climb: from 1 to 4."""
_COLUMNS = 6
"""Rounds that a pricing returns."""
_KNOWN = 240
"""Selections kept from earlier prices."""
_CHAIN = 24
"""Numbers of clients at which a chain of additions becomes a start."""
_BETTER = 1e-10
"""Least relative gain of a move: with less, rounding could make a climb run in circles."""


class LocalSearch:
    """Prices selections of a large fleet under any objective: good rounds, and no bound."""

    proves_bound = False
    tolerance = 1e-6

    def __init__(self, task: Task, curves: ClientCurves, longest_s: float, *, thorough: bool = True) -> None:
        """:param thorough: whether there are enough of these rounds to justify a thorough search."""
        self.task, self.curves, self.longest_s, self.thorough = task, curves, longest_s, thorough
        self.labels = task.objective.pooled or _clients_as_labels(task)
        self.known: dict[bytes, None] = {}
        self._climbs = _CLIMBS if thorough else 1
        need = curves.overhead + curves.keep_min * curves.u_min
        if need.min() > longest_s:
            return
        self.worths = Worths(curves, deadline_grid(need, longest_s, _GRID))
        self.grid, self.able = self.worths.grid, self.worths.in_time
        self._coarse = np.unique(np.linspace(0, len(self.grid) - 1, _COARSE).round().astype(np.intp))
        self._random = stream(0, "planning")
        self.learn(self._starts(need, longest_s))

    @property
    def usable(self) -> bool:
        """Whether any selection is known that meets the longest deadline."""
        return bool(self.known)

    @property
    def enumeration(self) -> None:
        """Not every selection is listed."""

    def learn(self, selections: Bools) -> None:
        """Take selections from elsewhere as starts: those that are allowed and meet the longest deadline."""
        allowed = np.isfinite(self.task.objective.selection_cost(selections))
        usable = allowed & ~(selections & ~self.able[-1]).any(axis=-1)
        self.known |= {row.tobytes(): None for row in selections[usable]}

    def prove(self, mu: float, nu: float, allowed: float) -> float:
        """A bound by the convex relaxation, where the labels are convex."""
        if self.labels.convex is None:
            return -np.inf
        columns = self.price(mu, nu).columns
        best = float((columns.cost + mu * columns.energy + nu * columns.deadline).min())
        return LabelBound(self.task, self.curves, self.labels.convex, self.worths).at(mu, nu, best - allowed)

    def search_harder(self, mu: float, nu: float) -> Columns:
        """The best rounds after further climbs from good selections with a few clients changed."""
        return self.price(mu, nu, kicks=_KICKS if self.thorough else 0).columns

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
        reached = np.unique(np.stack([climb[0] for climb in climbs]), axis=0)
        self.known |= {row.tobytes(): None for row in reached}
        if len(self.known) > _KNOWN:
            for i in order[_KNOWN // 2 :]:
                self.known.pop(sets[i].tobytes(), None)
        sets = np.unique(np.concatenate([reached, sets[order[:2]]]), axis=0)
        value, place = self._rank(sets, mu, nu, np.arange(len(self.grid)))
        kept = np.argsort(value, kind="stable")[:_COLUMNS]
        sets, place = sets[kept], place[kept]
        base, shortest = self.task.objective.selection_cost(sets), self.curves.shortest(sets)
        curve = RoundCurve(self.task, self.curves, sets, base, mu, nu, self.worths.floor)
        low, high = (self.grid[np.clip(place + side, 0, len(self.grid) - 1)] for side in (-1, 1))
        refined = curve.minimise(np.maximum(low, shortest), np.maximum(high, shortest), LOCAL_SEARCH_MET)
        return Priced(-np.inf, refined.columns.take(list(np.argsort(refined.value, kind="stable"))))

    # --- where to start -------------------------------------------------------------------------------------------

    def _starts(self, need: Floats, longest_s: float) -> Bools:
        """The first selections; see the module docstring."""
        fastest = np.argsort(need, kind="stable")
        fastest = fastest[need[fastest] <= longest_s]
        sizes = np.unique(np.geomspace(1, len(fastest), _CHAIN).round().astype(np.intp))
        rows = [fastest[:size] for size in sizes]
        for share in (1.0, 0.7, 0.4, 0.2):
            chain = self._chain(fastest[: max(1, round(share * len(fastest)))])
            rows += [chain[:size] for size in sizes if size <= len(chain)]
        starts = np.zeros((len(rows), self.task.problem.size), dtype=np.bool_)
        for start, row in zip(starts, rows, strict=True):
            start[row] = True
        return np.unique(starts, axis=0)

    def _chain(self, clients: Ints) -> Ints:
        """The clients in the order in which each next one brings the pooled labels closest to the target's.

        Without a target, each next one makes the selection cost least.
        """
        counts, target = self.labels.counts, self.labels.target
        left, held = clients.copy(), np.zeros(counts.shape[-1])
        chain = np.empty_like(clients)
        for i in range(len(clients)):
            pooled = held + counts[left]
            cost = self.labels.cost(pooled, i + 1) if target is None else divergence(smoothed(pooled), smoothed(target))
            best = int(cost.argmin())
            chain[i], held = left[best], held + counts[left[best]]
            left = np.delete(left, best)
        return chain

    def _rank(self, sets: Bools, mu: float, nu: float, rows: Ints) -> tuple[Floats, Ints]:
        """L of selections at the best of some of the grid's deadlines, and which one that is."""
        value, place = np.empty(len(sets)), np.empty(len(sets), dtype=np.intp)
        base, count = self.task.objective.selection_cost(sets), sets.sum(axis=-1)
        sizes = np.unique(count)
        self.worths.expect(self.task.objective.pruning_weight / sizes, mu)
        fixed = nu * self.grid[rows] + mu * self.task.problem.broadcast_j
        late = (~self.able[rows]).astype(np.float64)
        for k in sizes:
            members = np.flatnonzero(count == k)
            worth, _ = self.worths.at(self.task.objective.pruning_weight / k, mu, rows)
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

    # --- climbing ---------------------------------------------------------------------------------------------------

    def _climb(self, selected: Bools, place: int, mu: float, nu: float, thorough: bool) -> tuple[Bools, int, float]:
        """Take the best move as long as one lowers L: the selection, the place of its deadline on the grid, and L."""
        current, value = selected.copy(), np.inf
        for _ in range(2 * self.task.problem.size):
            best = self._best_move(current, place, mu, nu, value, thorough)
            if not best.value < value - _BETTER * abs(value if np.isfinite(value) else 0.0):
                break
            value, place = best.value, best.place
            current[best.flips] ^= True
        return current, place, value

    def _best_move(self, selected: Bools, place: int, mu: float, nu: float, value: float, thorough: bool) -> Move:
        """A client added or dropped; where none is better than ``value``, a swap; then up to three for up to three."""
        near = Neighbourhood(self.task, self.labels, self.worths, self._random, selected, place, mu, nu)
        best = near.stay() if not np.isfinite(value) else Move(np.inf, place, near.inside[:0])
        for moves in (near.flips, near.swaps, partial(near.exchanges, thorough=thorough)):
            best = min(best, moves(), key=lambda move: move.value)
            if best.value < value:
                break
        return best


def _clients_as_labels(task: Task) -> PooledLabels:
    """Bring any objective into the form that the search needs: every client becomes a label."""
    cost = task.objective.selection_cost
    return PooledLabels(np.eye(task.problem.size), None, lambda histogram, _: cost(histogram > 0.5), None)
