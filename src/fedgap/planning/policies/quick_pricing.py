"""Good rounds of a large fleet at given prices, within milliseconds and without a bound.

On a small grid of deadlines d and numbers of clients k the clients of least v_n(d) + weight·score_n(g)/k are taken
(:class:`fedgap.planning.objective.ConvexLabels`; g = 0 where labels do not count), with g from the labels of the best
selection so far. The best selection is then improved client by client.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.objective import ConvexLabels
from fedgap.planning.round_lagrangian import Columns, RoundCurve, Worths
from fedgap.planning.task import Task
from fedgap.planning.tolerances import LOCAL_SEARCH_MET

_DEADLINES = np.geomspace(0.35, 2.8, 11)
"""Multiples of the mean time of the remaining rounds."""
_SIZES = 12
"""Numbers of clients, in geometric steps."""
_PLANES = 3
"""Vectors g that are tried."""
_FLIPS = 6
"""Clients that are added or dropped at most to improve the best selection."""
_KEPT = 3
"""Selections whose deadlines are refined."""
_LEAST_SHARE = 1e-6
"""Keeps logarithms of label shares finite."""


def quick_rounds(task: Task, convex: ConvexLabels | None, mu: float, nu: float) -> Columns | None:
    """The best rounds found; None where nobody can meet the longest deadline."""
    return _QuickPricing(task, convex, mu, nu).columns()


class _QuickPricing:
    """One pricing of one row."""

    def __init__(self, task: Task, convex: ConvexLabels | None, mu: float, nu: float) -> None:
        self.task, self.convex, self.mu, self.nu = task, convex, mu, nu
        self.curves, size = task.kinds[-1].curves, task.problem.size
        need = self.curves.overhead + self.curves.keep_min * self.curves.u_min
        longest = task.problem.delay_s
        self.usable = bool(need.min() <= longest)
        if not self.usable:
            return
        mean = longest / task.problem.rounds
        grid = np.clip(_DEADLINES * mean, float(need.min()), longest)
        self.worths = Worths(self.curves, np.unique(grid))
        self.sizes = np.unique(np.geomspace(1, size, _SIZES).round().astype(np.intp))
        shares = task.objective.pruning_weight / self.sizes
        self.worths.expect(shares, mu)
        late = ~self.worths.in_time
        self.values = np.stack([np.where(late, np.inf, self.worths.at(share, mu, slice(None))[0]) for share in shares])
        """v_n(d) for each number of clients, (K, D, N)."""
        self.fixed = nu * self.worths.grid + mu * task.problem.broadcast_j

    def columns(self) -> Columns | None:
        """The best rounds, each at its best deadline, the best one first."""
        if not self.usable:
            return None
        selections, values, places = self._by_planes()
        order = np.argsort(values, kind="stable")
        best = self._improved(selections[order[0]], float(values[order[0]]), int(places[order[0]]))
        rows = np.concatenate([best[None], selections[order[: 4 * _KEPT]]])
        distinct = list(dict.fromkeys(row.tobytes() for row in rows))[:_KEPT]
        sets = np.stack([np.frombuffer(key, dtype=np.bool_) for key in distinct])
        base, shortest = self.task.objective.selection_cost(sets), self.curves.shortest(sets)
        curve = RoundCurve(self.task, self.curves, sets, base, self.mu, self.nu, self.worths.floor)
        grid, place = self.worths.grid, int(places[order[0]])
        low, high = grid[max(place - 2, 0)], grid[min(place + 2, len(grid) - 1)]
        refined = curve.minimise(np.maximum(low, shortest), np.maximum(high, shortest), 1e3 * LOCAL_SEARCH_MET)
        return refined.columns.take(np.argsort(refined.value, kind="stable").tolist())

    def _by_planes(self) -> tuple[Bools, Floats, np.ndarray]:
        """Selections, what their rounds cost, and the place of their deadline on the grid."""
        task, counts = self.task, self.sizes[:, None, None]
        kinds, places, size = self.values.shape
        vector = np.zeros(0 if self.convex is None else len(self.convex.target))
        parts = []
        for _ in range(1 if self.convex is None else _PLANES):
            scored = self.values
            if self.convex is not None:
                scored = scored + self.convex.weight * self.convex.scores(vector[None])[0] / counts
            rank = np.argsort(np.argsort(scored, axis=-1), axis=-1)
            chosen = rank < counts
            worth = np.where(chosen, self.values, 0.0).sum(axis=-1) + self.fixed
            sets = chosen.reshape(-1, size)
            possible = np.isfinite(worth.ravel())
            value = np.full(kinds * places, np.inf)
            value[possible] = worth.ravel()[possible] + task.objective.selection_cost(sets[possible])
            parts.append((sets, value, np.tile(np.arange(places), kinds)))
            if self.convex is not None:
                best = sets[int(value.argmin())]
                mean = self.convex.total_drawn(vector[None], best[None])[0] / best.sum()
                vector = np.log(np.maximum(mean, _LEAST_SHARE) / self.convex.target)
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]

    def _improved(self, selected: Bools, value: float, place: int) -> Bools:
        """The selection after the best additions and removals of single clients, its deadline held."""
        task, size = self.task, self.task.problem.size
        able = self.worths.in_time[place]
        for _ in range(_FLIPS):
            count = int(selected.sum())
            near = selected ^ np.eye(size, dtype=np.bool_)[able | selected]
            near = near[near.any(axis=-1)]
            shares = task.objective.pruning_weight / np.array([max(count - 1, 1), count + 1])
            self.worths.expect(shares, self.mu)
            fewer, more = (self.worths.at(share, self.mu, slice(place, place + 1))[0][0] for share in shares)
            worth = np.where(near.sum(axis=-1) < count, near @ fewer, near @ more)
            total = worth + self.fixed[place] + task.objective.selection_cost(near)
            best = int(total.argmin())
            if total[best] >= value:
                break
            selected, value = near[best], float(total[best])
        return selected
