"""A close lower bound on the cost of any round at given prices, for objectives with convex labels and any fleet size.

At prices (μ, ν) a round of k clients A with the deadline d costs

    L = ν·d + μ·E_bc + B/k + W·KL(A) + (mean of h_n over A) + Σ_{n∈A} (v_n(d) + b_n/k²)

with v_n(d) for γ/k (:mod:`fedgap.planning.round_lagrangian`), and h_n and b_n from ``costs`` and ``scarcity`` of
:class:`~fedgap.planning.objective.ConvexLabels`. Below, h_n/k is part of W·score_n(g)/k, and b_n/k² of v_n.

For every vector g, W·KL(A) is at least W·(mean of score_n(g) − ln Σ t·e^g)
(:class:`~fedgap.planning.objective.ConvexLabels`), which makes the cost additive over clients: for given k and d, L is
at least a constant plus the k smallest of W·score_n(g)/k + v_n(d). The best g is that of the relaxed problem, in which
clients may take part by fractions. It is approximated by the Frank–Wolfe method, each step of which gives a valid g.
The bound holds for all rounds in a *box* k₁ ≤ k ≤ k₂, d₁ ≤ d ≤ d₂ if

- B/k, b_n/k² and γ/k are taken at k₂, and the k₁ smallest of W·score_n(g)/k₁ + v_n are summed: as v_n ≥ 0, the mean
  over A of W·score_n + k·v_n is at least the mean of the k₁ smallest of W·score_n + k₁·v_n;
- v_n is replaced by its tangent at d₂: v_n is convex in d and falls, so that the tangent is nowhere above it and never
  negative. The bound of a selection is then linear in d, and least at an end of the interval.

Boxes are split into halves until the bounds of all boxes are high enough.
"""

from itertools import pairwise

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.objective import ConvexLabels
from fedgap.planning.round_lagrangian import Worths
from fedgap.planning.task import Task

_CHUNK = 2_000_000
"""Maximum number of boxes times clients in one batch, which limits the memory."""
_BOXES = 20_000
"""Maximum number of boxes per call; with more, a weaker bound is returned."""
_STEPS = 40
"""Maximum number of Frank–Wolfe steps for a box."""
_LINE = 10
"""Number of bisections by which the length of such a step is found."""
_FINER = 8
"""Number of parts into which an interval of the grid of deadlines is divided if its bound is too low."""
_REFINEMENTS = 2
"""How often intervals are divided like this."""
_RARE = 1e-9
"""Least share of a label, so that ln(m/t) stays finite if nobody draws it."""


class LabelBound:
    """Computes lower bounds on rounds of one kind."""

    def __init__(self, task: Task, curves: ClientCurves, labels: ConvexLabels, worths: Worths) -> None:
        self.task, self.curves, self.labels, self.worths = task, curves, labels, worths
        self.size = task.problem.size

    def at(self, mu: float, nu: float, goal: float) -> float:
        """Return a lower bound on the cost of any round at prices (μ, ν): ``goal``, or less if that cannot be proven.

        A box is a row (k₁, k₂, i₁, i₂) with indices i of deadlines on the grid.
        """
        worths, last = self.worths, len(self.worths.grid) - 1
        edges = np.unique(np.geomspace(1, self.size + 1, 20).round().astype(np.intp))
        marks = np.unique(np.linspace(0, last, 9).round().astype(np.intp))
        pairs = [*pairwise(marks)] or [(0, 0)]
        boxes = np.array([(a, b - 1, i, j) for a, b in pairwise(edges) for i, j in pairs], dtype=np.intp)
        reached, total = np.inf, 0
        for refinement in range(_REFINEMENTS + 1):
            left: list[Ints] = []
            weakest = np.inf
            while len(boxes):
                bounds = self._bounds(worths, boxes, mu, nu, goal)
                total += len(boxes)
                boxes, bounds = boxes[bounds < goal], bounds[bounds < goal]
                if total > _BOXES:
                    return min(reached, weakest, float(bounds.min(initial=np.inf)), goal)
                final = (boxes[:, 0] == boxes[:, 1]) & (boxes[:, 3] - boxes[:, 2] <= 1)
                left.append(boxes[final])
                weakest = min(weakest, float(bounds[final].min(initial=np.inf)))
                boxes = _split(boxes[~final], worths.grid)
            boxes = np.concatenate(left) if left else boxes
            if not len(boxes):
                break
            if refinement == _REFINEMENTS:
                reached = min(reached, weakest)
                break
            worths, boxes = self._finer(worths, boxes)
        return min(reached, goal)

    def _finer(self, worths: Worths, boxes: Ints) -> tuple[Worths, Ints]:
        """Return a finer grid of deadlines inside the boxes, and the boxes with indices on that grid."""
        cells = np.unique(boxes[:, 2:], axis=0)
        parts = [np.linspace(worths.grid[i], worths.grid[j], _FINER + 1) for i, j in cells]
        grid = np.unique(np.concatenate(parts))
        first, last = (np.searchsorted(grid, worths.grid[boxes[:, column]]) for column in (2, 3))
        return Worths(self.curves, grid), np.column_stack([boxes[:, 0], boxes[:, 1], first, last])

    def _bounds(self, worths: Worths, boxes: Ints, mu: float, nu: float, goal: float) -> Floats:
        """Return a lower bound on L over each box; ∞ if fewer than k₁ clients can meet its deadlines."""
        bounds = np.full(len(boxes), np.inf)
        possible = worths.in_time.sum(axis=-1)[boxes[:, 3]] >= boxes[:, 0]
        weight = self.task.objective.pruning_weight
        sizes = np.unique(boxes[possible, 1])
        worths.expect(weight / sizes, mu)
        broadcast, chunk = mu * self.task.problem.broadcast_j, max(1, _CHUNK // (2 * self.size))
        for most in sizes:
            members = np.flatnonzero(possible & (boxes[:, 1] == most))
            for start in range(0, len(members), chunk):
                rows = members[start : start + chunk]
                count, _, first, last = boxes[rows].T
                value = np.where(worths.in_time[last], worths.values(weight / most, mu, last), np.inf)
                slope = np.where(worths.in_time[last], worths.slopes(weight / most, mu, last), 0.0)
                width = worths.grid[last] - worths.grid[first]
                worth = np.concatenate([value - slope * width[:, None], value]) + self.labels.scarcity / most**2
                fixed = self.labels.few_clients / most + broadcast + nu * worths.grid[np.concatenate([first, last])]
                both = fixed + self._relaxed(worth, np.tile(count, 2), goal - fixed)
                bounds[rows] = both.reshape(2, -1).min(axis=0)
        return bounds

    def _relaxed(self, worth: Floats, count: Ints, goal: Floats) -> Floats:
        """Return for B problems a lower bound on the minimum of W·KL + Σ worth over k clients, by the Frank–Wolfe
        method.

        The variables of the relaxed problem are the fractions x of clients with Σx = k, and m = Σ x·q/k is their mean
        label distribution. A step moves m towards the mean of the k clients that are cheapest by the tangent plane at
        m. The value of that plane is a lower bound.

        :param worth: (B, N), ∞ for clients that may not take part; :param count: k, (B,);
        :param goal: a bound that is high enough, (B,).
        """
        labels, weight, target = self.labels, self.labels.weight, self.labels.target
        best = np.full(len(worth), -np.inf)
        open_ = np.arange(len(worth))
        mean = np.tile(target, (len(worth), 1))
        spent = np.zeros(len(worth))
        for step in range(_STEPS):
            m, k = mean[open_], count[open_]
            g = np.log(np.maximum(m, _RARE) / target)
            own = worth[open_] + labels.costs / k[:, None]
            score = weight / k[:, None] * labels.scores(g) + own
            chosen = _smallest(score, k)
            bound = np.where(chosen, score, 0.0).sum(axis=-1) - weight * np.log(np.exp(g) @ target)
            best[open_] = np.maximum(best[open_], bound)
            drawn = labels.total_drawn(g, chosen) / k[:, None]
            linear = np.where(chosen, own, 0.0).sum(axis=-1)
            length = np.ones(len(open_)) if step == 0 else _line_search(m, drawn, target, weight, linear - spent[open_])
            mean[open_] = m + length[:, None] * (drawn - m)
            spent[open_] += length * (linear - spent[open_])
            keep = (best[open_] < goal[open_]) & (length > 1e-6)
            open_ = open_[keep]
            if not len(open_):
                break
        return best


def _smallest(values: Floats, count: Ints) -> Bools:
    """Return True for the ``count`` smallest values of each row."""
    order = np.argsort(values, axis=-1, kind="stable")
    chosen = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, np.arange(values.shape[-1]) < count[:, None], axis=-1)
    return chosen


def _line_search(start: Floats, end: Floats, target: Floats, weight: float, rise: Floats) -> Floats:
    """Return for each row the step length η in [0, 1] that minimises W·KL(start + η·(end − start)‖t) + η·rise."""
    low, high = np.zeros(len(start)), np.ones(len(start))
    step = end - start
    for _ in range(_LINE):
        middle = 0.5 * (low + high)
        at = np.maximum(start + middle[:, None] * step, _RARE)
        falls = weight * (step * np.log(at / target)).sum(axis=-1) + rise < 0.0
        low, high = np.where(falls, middle, low), np.where(falls, high, middle)
    return low


def _split(boxes: Ints, grid: Floats) -> Ints:
    """Split each box into two halves along k or d, whichever has the larger relative width."""
    k1, k2, i1, i2 = boxes.T
    by_count = ((k2 - k1) / k2 > (grid[i2] - grid[i1]) / grid[i2]) & (k2 > k1) | (i2 - i1 <= 1)
    middle_k, middle_i = (k1 + k2) // 2, (i1 + i2) // 2
    first = np.column_stack([k1, np.where(by_count, middle_k, k2), i1, np.where(by_count, i2, middle_i)])
    second = np.column_stack([np.where(by_count, middle_k + 1, k1), k2, np.where(by_count, i1, middle_i), i2])
    return np.concatenate([first, second])
