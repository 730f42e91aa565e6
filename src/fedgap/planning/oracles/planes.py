"""A lower bound on the cheapest round of a large fleet whose labels count, by planes.

For a number of clients k, a deadline d and any vector g (:class:`fedgap.planning.objective.ConvexLabels`) a round costs
at least

    few_clients/k − weight·ln Σ_c t_c·e^(g_c) + ν·d + μ·E_bc + the k least of [ v_n(d) + weight·score_n(g)/k ].

v_n falls with d, so between two deadlines of a grid the later one's v_n and the earlier one's ν·d bound the rest.

One evaluation takes some milliseconds, and its bound is a percent or so low, which suits a world of many rows at many
prices. Where one bound must come close, :mod:`fedgap.planning.oracles.label_bound` splits boxes of k and d for it.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.objective import Objective
from fedgap.planning.oracles.threshold_rule import deadline_grid
from fedgap.planning.round_lagrangian import Worths
from fedgap.planning.task import Task

_GRID = 80
"""Deadlines."""
_PLANES = 2
"""Planes that are tried, each where the best selection of the one before has its labels, half way from it."""
_LEAST_SHARE = 1e-6
"""Keeps logarithms of label shares finite."""


class PlaneBound:
    """Bounds the rounds of one row, for one objective after the other; the last plane is the next one's first."""

    def __init__(self, task: Task) -> None:
        self.problem, curves = task.problem, task.kinds[-1].curves
        need = curves.overhead + curves.keep_min * curves.u_min
        self.usable = bool(need.min() <= self.problem.delay_s)
        if self.usable:
            self.worths = Worths(curves, deadline_grid(need, self.problem.delay_s, _GRID))
        self._vector: Floats | None = None

    def least(self, objective: Objective, mu: float, nu: float) -> float:
        """No round costs less; infinite where nobody can take part."""
        return self.price(objective, mu, nu)[0] if self.usable else np.inf

    def price(self, objective: Objective, mu: float, nu: float) -> tuple[float, Bools, float]:
        """The bound of :meth:`least`, and the clients, (N,), and deadline at which the best plane has it."""
        pooled = objective.pooled
        assert pooled is not None
        assert pooled.convex is not None
        labels, worths, size = pooled.convex, self.worths, self.problem.size
        grid, counts = worths.grid, np.arange(1, size + 1)
        before = np.concatenate([grid[:1], grid[:-1]])
        fixed = nu * before + mu * self.problem.broadcast_j
        shares = objective.pruning_weight / counts
        worths.expect(shares, mu)
        values = np.stack([np.where(worths.in_time, worths.at(share, mu, slice(None))[0], np.inf) for share in shares])
        vector = np.zeros(len(labels.target)) if self._vector is None else self._vector
        best, selected, deadline = -np.inf, np.zeros(size, dtype=np.bool_), 0.0
        for _ in range(_PLANES):
            scored = values + labels.weight * labels.scores(vector[None])[None] / counts[:, None, None]
            # The k least of the row for k clients.
            sums = np.stack([np.partition(scored[k - 1], k - 1, axis=-1)[:, :k].sum(axis=-1) for k in counts])
            total = labels.few_clients / counts[:, None] + fixed + sums
            place = np.unravel_index(int(total.argmin()), total.shape)
            height = labels.weight * float(np.log(labels.target @ np.exp(vector)))
            chosen = np.argsort(scored[place])[: place[0] + 1]
            members = np.isin(np.arange(size), chosen)
            if float(total[place]) - height > best:
                best, selected, deadline = float(total[place]) - height, members, float(grid[place[1]])
            mean = labels.total_drawn(vector[None], members[None])[0] / len(chosen)
            vector = 0.5 * (vector + np.log(np.maximum(mean, _LEAST_SHARE) / labels.target))
        self._vector = vector
        return best, selected, deadline
