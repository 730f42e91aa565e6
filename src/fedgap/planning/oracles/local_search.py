"""The oracle for fleets too large to enumerate whose objective is not additive, such as one with summed labels.

It is a local search and proves no bound itself. If the cost of the labels is convex (``PooledLabels.convex``),
:mod:`fedgap.planning.oracles.label_bound` proves one afterwards. The search looks for the selection, and the deadline
on a grid, with the least L at prices (μ, ν); L is the Lagrangian of :mod:`fedgap.planning.round_lagrangian`. A *climb*
takes the best move as long as one helps: it adds or drops a client; if that does not help, it swaps one client for
another; if that does not help either, it exchanges up to three clients for up to three others. All moves of one type
are evaluated at once, at several deadlines. This is fast, because the summed histogram after a move differs by a few
rows, and the clients' terms v_n(d) depend on the selection only through the number of clients.

A climb starts from the best selections known at these prices and, in a harder search, from good selections with a few
clients changed at random. The random numbers come from the stream ``planning``, so that the same problem has the same
plan. Selections that are found become known, so that searches at later prices start close to the best. The first known
selections are

- clients added one by one such that their summed labels come as close to the target's as possible, from the whole fleet
  and from its faster parts, for several numbers of clients;
- all clients that meet a deadline, for several deadlines;
- the selections of the plan for the similar additive objective (``PooledLabels.start``).
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
"""Number of known selections from which a climb starts at each call of ``price``."""
_KICKS = 24
"""Number of additional climbs, from good selections with a few clients changed, in a harder search."""
_KICKED = (1, 5)
"""Range of the number of clients that are dropped, and of those that are added, before such a climb: 1 to 4."""
_COLUMNS = 6
"""Maximum number of rounds that ``price`` returns."""
_KNOWN = 240
"""Maximum number of selections that are kept from earlier prices."""
_CHAIN = 24
"""How many numbers of clients become first selections when clients are added one by one."""
_BETTER = 1e-10
"""Least relative gain of a move. With less, rounding could make a climb cycle."""


class LocalSearch:
    """Finds good rounds of a large fleet for any objective, but proves no bound."""

    proves_bound = False
    tolerance = 1e-6

    def __init__(self, task: Task, curves: ClientCurves, longest_s: float, *, thorough: bool = True) -> None:
        """:param thorough: whether there are enough rounds of this kind to justify a thorough search."""
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
        """Whether a selection is known that meets the longest deadline."""
        return bool(self.known)

    @property
    def enumeration(self) -> None:
        """None, because not every selection is listed."""

    def learn(self, selections: Bools) -> None:
        """Add those selections to the known ones that are allowed and meet the longest deadline."""
        allowed = np.isfinite(self.task.objective.selection_cost(selections))
        usable = allowed & ~(selections & ~self.able[-1]).any(axis=-1)
        self.known |= {row.tobytes(): None for row in selections[usable]}

    def prove(self, mu: float, nu: float, allowed: float) -> float:
        """Return a lower bound by a convex relaxation if the labels are convex, otherwise −∞."""
        if self.labels.convex is None:
            return -np.inf
        columns = self.price(mu, nu).columns
        best = float((columns.cost + mu * columns.energy + nu * columns.deadline).min())
        return LabelBound(self.task, self.curves, self.labels.convex, self.worths).at(mu, nu, best - allowed)

    def search_harder(self, mu: float, nu: float) -> Columns:
        """Return the best rounds after further climbs from good selections with a few clients changed."""
        return self.price(mu, nu, kicks=_KICKS if self.thorough else 0).columns

    @property
    def selections(self) -> Bools:
        """The selections known so far, (S, N)."""
        return np.stack([np.frombuffer(key, dtype=np.bool_) for key in self.known])

    def price(self, mu: float, nu: float, allowed: float = np.inf, *, kicks: int = 0) -> Priced:
        """Return the best rounds found, with the bound −∞; ``allowed`` is not used.

        :param kicks: number of further climbs from good selections with a few clients changed.
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
            if np.isfinite(climb[2]):  # otherwise no selection near the changed one is allowed
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
        """Return the first selections, (S, N); see the module docstring."""
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
        """Return the clients in an order in which each next one brings the summed labels closest to the target's.

        Without a target, each next one is the one with which the selection costs least.
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
        """Return the least L of each selection over the deadlines ``rows`` of the grid, and the index of that
        deadline."""
        value, place = np.empty(len(sets)), np.empty(len(sets), dtype=np.intp)
        base, count = self.task.objective.selection_cost(sets), sets.sum(axis=-1)
        sizes = np.unique(count)
        self.worths.expect(self.task.objective.pruning_weight / sizes, mu)
        fixed = nu * self.grid[rows] + mu * self.task.problem.broadcast_j
        late = (~self.able[rows]).astype(np.float64)
        for k in sizes:
            members = np.flatnonzero(count == k)
            worth = self.worths.values(self.task.objective.pruning_weight / k, mu, rows)
            some = sets[members].astype(np.float64)
            total = np.where(some @ late.T > 0.5, np.inf, some @ worth.T + fixed)
            best = total.argmin(axis=-1)
            value[members], place[members] = base[members] + total[np.arange(len(members)), best], rows[best]
        return value, place

    def _kicked(self, selected: Bools, place: int) -> Bools:
        """Return the selection with a few clients dropped and others, which meet the deadline, added at random."""
        inside, outside = np.flatnonzero(selected), np.flatnonzero(~selected & self.able[place])
        changed = selected.copy()
        for members in (inside, outside):
            number = min(len(members), int(self._random.integers(*_KICKED)))
            changed[self._random.choice(members, number, replace=False)] ^= True
        return changed if changed.any() else selected

    # --- climbing ---------------------------------------------------------------------------------------------------

    def _climb(self, selected: Bools, place: int, mu: float, nu: float, thorough: bool) -> tuple[Bools, int, float]:
        """Take the best move as long as one lowers L; return the selection, the index of its deadline, and L.

        :param place: index on the grid of the deadline to start with; :param thorough: see :meth:`_best_move`.
        """
        current, value = selected.copy(), np.inf
        for _ in range(2 * self.task.problem.size):
            best = self._best_move(current, place, mu, nu, value, thorough)
            if not best.value < value - _BETTER * abs(value if np.isfinite(value) else 0.0):
                break
            value, place = best.value, best.place
            current[best.flips] ^= True
        return current, place, value

    def _best_move(self, selected: Bools, place: int, mu: float, nu: float, value: float, thorough: bool) -> Move:
        """Return the best addition or removal of a client or, if none is better than ``value``, swap or exchange.

        :param thorough: whether to try many exchanges of up to three clients.
        """
        near = Neighbourhood(self.task, self.labels, self.worths, self._random, selected, place, mu, nu)
        best = near.stay() if not np.isfinite(value) else Move(np.inf, place, near.inside[:0])
        for moves in (near.flips, near.swaps, partial(near.exchanges, thorough=thorough)):
            best = min(best, moves(), key=lambda move: move.value)
            if best.value < value:
                break
        return best


def _clients_as_labels(task: Task) -> PooledLabels:
    """Bring any objective into the form of summed labels, which the search needs: every client becomes a label."""
    cost = task.objective.selection_cost
    return PooledLabels(np.eye(task.problem.size), None, lambda histogram, _: cost(histogram > 0.5), None)
