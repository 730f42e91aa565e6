"""Find good rounds of a large fleet at given prices within milliseconds, without a bound.

For deadlines d and numbers of clients k on a grid, the k clients with the smallest v_n(d) + weight·score_n(g)/k (and
what else they cost, see :class:`fedgap.planning.objective.ConvexLabels`) are selected. The vector g, which stands for a
tangent plane, comes from the labels of the best selection so far; it is 0 if labels have no effect. The best selections
are then improved by the moves of the local search (:mod:`fedgap.planning.oracles.neighbourhood`): a client is added,
dropped or swapped, and the deadline may change.
"""

from dataclasses import replace

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.objective import ConvexLabels, PooledLabels
from fedgap.planning.oracles.neighbourhood import Neighbourhood
from fedgap.planning.oracles.threshold_rule import deadline_grid
from fedgap.planning.round_lagrangian import Columns, RoundCurve, Worths
from fedgap.planning.task import Task
from fedgap.planning.tolerances import LOCAL_SEARCH_MET
from fedgap.streams import stream

_DEADLINES = 18
"""Number of deadlines on the grid, in geometric steps; half as many are added at which further clients can take
part."""
_SIZES = 12
"""How many numbers of clients are tried, in geometric steps."""
_PLANES = 3
"""How many vectors g are tried."""
_CLIMBS = 1
"""Number of selections that are improved by moves."""
_MOVES = 24
"""Maximum number of moves for one selection."""
_AHEAD = 3
"""By how many clients the number of clients may change before quantities must be computed for further numbers."""
_KEPT = 3
"""Number of selections whose deadlines are solved exactly."""
_LEAST_SHARE = 1e-6
"""Lower limit of a label's share, which keeps its logarithm finite."""
_BETTER = 1e-6
"""A move is taken if it lowers the cost by more than this share."""


def quick_rounds(task: Task, mu: float, nu: float) -> Columns | None:
    """Return the best rounds found at prices (μ, ν), the best one first; None if no client can meet the longest
    deadline.

    The objective must have convex labels, or must be additive with all φ_n = 0.
    """
    if task.kinds[-1].curves.least_s.min() > task.problem.delay_s:
        return None
    return _QuickPricing(task, _worths(task), mu, nu).columns()


def _worths(task: Task) -> Worths:
    """Return the clients' worths on the grid of deadlines, which are computed once for all prices."""
    kind, longest_s = task.kinds[-1], task.problem.delay_s
    key = "quick rounds", longest_s
    if key not in kind.remembered:
        grid = deadline_grid(kind.curves.least_s, longest_s, _DEADLINES)
        kind.remembered[key] = Worths(kind.curves, grid)
    worths: Worths = kind.remembered[key]
    return worths.for_other_prices()


class _QuickPricing:
    """The search for good rounds of one task at one pair of prices."""

    def __init__(self, task: Task, worths: Worths, mu: float, nu: float) -> None:
        self.task, self.worths, self.mu, self.nu = task, worths, mu, nu
        self.labels = task.objective.pooled or _no_labels(task)
        self.fixed = nu * self.worths.grid + mu * task.problem.broadcast_j

    def columns(self) -> Columns:
        """Return the best rounds, each at its best deadline, the best one first."""
        selections, values, places = self._by_planes()
        order = _distinct(selections, np.argsort(values, kind="stable")[: 8 * _KEPT])[:_KEPT]
        rounds = [(selections[i], int(places[i])) for i in order]
        rounds = [self._improved(*start) for start in rounds[:_CLIMBS]] + rounds
        kept = _distinct(np.stack([selected for selected, _ in rounds]), np.arange(len(rounds)))[:_KEPT]
        sets, place = np.stack([rounds[i][0] for i in kept]), np.array([rounds[i][1] for i in kept])
        curves, grid = self.worths.curves, self.worths.grid
        base, shortest = self.task.objective.selection_cost(sets), curves.shortest(sets)
        someone = np.flatnonzero(sets.any(axis=0))
        curve = RoundCurve(self.task, curves.take(someone), sets[:, someone], base, self.mu, self.nu,
                           self.worths.floor[someone])
        low, high = (grid[np.clip(place + side, 0, len(grid) - 1)] for side in (-1, 1))
        refined = curve.minimise(np.maximum(low, shortest), np.maximum(high, shortest), 1e3 * LOCAL_SEARCH_MET)
        return replace(refined.columns, selected=sets).take(np.argsort(refined.value, kind="stable").tolist())

    def _by_planes(self) -> tuple[Bools, Floats, Ints]:
        """Return selections, what their rounds cost, and the indices of their deadlines on the grid."""
        convex = self.labels.convex
        vector = np.zeros(0 if convex is None else len(convex.target))
        sizes = np.unique(np.geomspace(1, self.task.problem.size, _SIZES).round().astype(np.intp))
        rows = np.arange(len(self.worths.grid))
        parts = []
        for _ in range(_PLANES):
            sets, value, places = self._along_plane(vector, sizes, rows)
            parts.append((sets, value, places))
            best = int(value.argmin())
            if convex is not None:
                vector = _plane_at(convex, vector, sets[best])
            # For the next plane, the grid is finer around the best round.
            count, reach = int(sets[best].sum()), max(1, len(rows) // 6)
            at = int(np.searchsorted(sizes, count))
            low, high = sizes[max(at - 1, 0)], sizes[min(at + 1, len(sizes) - 1)]
            sizes = np.unique(np.linspace(low, high, _SIZES // 2 + 1).round().astype(np.intp))
            rows = rows[max(0, int(np.searchsorted(rows, places[best])) - reach):][: 2 * reach + 1]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]

    def _along_plane(self, vector: Floats, sizes: Ints, rows: Ints) -> tuple[Bools, Floats, Ints]:
        """Return, for every number of clients and deadline, the clients that are cheapest by the tangent plane.

        The result has the selections, the cost of their rounds, and the indices of their deadlines.
        """
        task, convex, counts = self.task, self.labels.convex, sizes[:, None, None]
        shares = task.objective.pruning_weight / sizes
        self.worths.expect(shares, self.mu)
        worths = np.stack([self.worths.values(share, self.mu, rows) for share in shares])
        worths = np.where(self.worths.in_time[rows], worths, np.inf)
        scored = worths
        if convex is not None:
            scored = scored + convex.own_costs(vector, counts)
        rank = np.empty(scored.shape, dtype=np.intp)
        np.put_along_axis(rank, np.argsort(scored, axis=-1), np.arange(scored.shape[-1]), axis=-1)
        chosen = rank < counts
        worth = (np.where(chosen, worths, 0.0).sum(axis=-1) + self.fixed[rows]).ravel()
        sets, possible = chosen.reshape(-1, chosen.shape[-1]), np.isfinite(worth)
        value = np.full(len(sets), np.inf)
        value[possible] = worth[possible] + task.objective.selection_cost(sets[possible])
        return sets, value, np.tile(rows, len(sizes))

    def _improved(self, selected: Bools, place: int) -> tuple[Bools, int]:
        """Return the selection after the best additions, removals and swaps of clients, and the index of its
        deadline."""
        random, value, current = stream(0, "planning"), np.inf, selected.copy()
        count, weight = int(selected.sum()), self.task.objective.pruning_weight
        self.worths.expect(weight / np.arange(max(count - _AHEAD, 1), count + _AHEAD + 1), self.mu)
        for _ in range(_MOVES):
            near = Neighbourhood(self.task, self.labels, self.worths, random, current, place, self.mu, self.nu)
            best = near.stay()
            for moves in (near.flips, near.swaps):
                best = min(best, moves(), key=lambda move: move.value)
                if best.value < value:
                    break
            if not best.value < value - _BETTER * abs(value if np.isfinite(value) else 0.0):
                break
            value, place = best.value, best.place
            current[best.flips] ^= True
        return current, place


def _plane_at(convex: ConvexLabels, vector: Floats, selected: Bools) -> Floats:
    """Return the g of the tangent plane at the labels that this selection draws.

    :param vector: the g of the plane before, by which the selection's labels are determined.
    """
    mean = convex.total_drawn(vector[None], selected[None])[0] / selected.sum()
    return np.asarray(np.log(np.maximum(mean, _LEAST_SHARE) / convex.target))


def _no_labels(task: Task) -> PooledLabels:
    """Return a cost that depends only on the number of clients, in the form that the local search needs."""
    additive = task.objective.additive
    assert additive is not None
    few_clients = additive.few_clients

    def cost(histogram: Floats, count: int) -> Floats:
        return np.full(histogram.shape[:-1], few_clients / count)

    return PooledLabels(np.zeros((task.problem.size, 1)), None, cost, None)


def _distinct(selections: Bools, order: Ints) -> list[int]:
    """Return the indices ``order`` without those of selections that occurred before."""
    first: dict[bytes, int] = {}
    for i in order.tolist():
        first.setdefault(selections[i].tobytes(), i)
    return list(first.values())
