"""A quick lower bound on the cheapest round of a large fleet, for objectives with convex labels.

For a number of clients k, a deadline d and any vector g, which stands for a tangent plane
(:class:`fedgap.planning.objective.ConvexLabels`), a round costs at least

    few_clients/k − weight·ln Σ_c t_c·e^(g_c) + ν·d + μ·E_bc
    + the k least of [ v_n(d) + (weight·score_n(g) + costs_n)/k + scarcity_n/k² ].

v_n falls with d. Between two deadlines of a grid, v_n of the later one and ν·d of the earlier one are therefore lower
bounds.

One evaluation takes some milliseconds, and the bound is about a percent too low. That is good enough for a world with
many different rounds and many prices. :mod:`fedgap.planning.oracles.label_bound` computes a closer bound with more
time.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.objective import Objective
from fedgap.planning.oracles.threshold_rule import deadline_grid
from fedgap.planning.round_lagrangian import Worths
from fedgap.planning.task import Task

_GRID = 80
"""Number of deadlines on the grid."""
_PLANES = 2
"""Number of tangent planes that are tried. Each next one is half way to the plane at the labels of the selection that
is best for the one before."""
_LEAST_SHARE = 1e-6
"""Lower limit of a label's share, which keeps its logarithm finite."""


class PlaneBound:
    """Computes lower bounds on rounds with the clients and channels of a task, for several objectives in turn.

    The last tangent plane of one objective is the first one of the next.
    """

    def __init__(self, task: Task) -> None:
        self.problem, curves = task.problem, task.kinds[-1].curves
        need = curves.overhead + curves.keep_min * curves.u_min
        self.usable = bool(need.min() <= self.problem.delay_s)
        if self.usable:
            self.worths = Worths(curves, deadline_grid(need, self.problem.delay_s, _GRID))
        self._vector: Floats | None = None

    def least(self, objective: Objective, mu: float, nu: float) -> float:
        """Return a lower bound on the cost of any round at prices (μ, ν); infinite if no client can take part."""
        return self.price(objective, mu, nu)[0] if self.usable else np.inf

    def price(self, objective: Objective, mu: float, nu: float) -> tuple[float, Bools, float]:
        """Return the bound of :meth:`least`, and the clients, (N,), and deadline at which the best plane has it."""
        pooled = objective.pooled
        assert pooled is not None
        assert pooled.convex is not None
        labels, worths, size = pooled.convex, self.worths, self.problem.size
        grid, counts = worths.grid, np.arange(1, size + 1)
        before = np.concatenate([grid[:1], grid[:-1]])
        fixed = nu * before + mu * self.problem.broadcast_j
        shares = objective.pruning_weight / counts
        worths.expect(shares, mu)
        values = np.stack([np.where(worths.in_time, worths.values(share, mu, slice(None)), np.inf) for share in shares])
        vector = np.zeros(len(labels.target)) if self._vector is None else self._vector
        best, selected, deadline = -np.inf, np.zeros(size, dtype=np.bool_), 0.0
        for _ in range(_PLANES):
            scored = values + labels.own_costs(vector, counts[:, None, None])
            # For each k the sum of the k smallest values.
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
