"""The oracle for fleets too large to enumerate whose objective is additive; it proves a lower bound.

For a number of clients k and a deadline d the best selection A minimises C·(Σ_A φ_n)² + Σ_A v_n(d), with C = Rγ₁/k
(sum) or Rγ₁/k³ (mean) for θ. As S² ≥ 2zS − z² for every z, with equality at z = S, every z gives the lower bound −C·z²
plus the k smallest of v_n + 2C·z·φ_n. This threshold rule also gives a good selection: with the best z it is exact
except for a fraction of one client. The bound holds for all rounds in a *box* k₁ ≤ k ≤ k₂, d₁ ≤ d ≤ d₂ if

- β/k and γ/k are taken at k₂, the number of clients at k₁, and C = Rγ₁/k₂ (sum) or Rγ₁/(k₁²k₂) (mean, because the mean
  over a selection is at least that over the k₁ clients with the smallest scores), and z is at most twice the least Σφ
  of k₁ clients, so that 2zS − z² ≥ 0;
- v_n is replaced by its tangent at a deadline in the box: v_n is convex in d, so that the bound of a selection is
  linear in d, and least at an end of the interval.

Boxes are split along k or d, whichever loses more, until none has a bound below the best round found minus the
tolerance.
"""

from itertools import pairwise

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.oracles.threshold_rule import deadline_grid, threshold
from fedgap.planning.round_lagrangian import Columns, Priced, RoundCurve, Worths
from fedgap.planning.task import Task
from fedgap.planning.tolerances import NO_GAIN

_CHUNK = 2_000_000
"""Maximum number of boxes times clients in one batch, which limits the memory."""
_GRID = 160
"""Number of deadlines on the grid."""
_BOXES = 6_000
"""Maximum number of boxes per call; with more, a weaker bound is returned."""
_STARTS = 14
"""How many values of k and of d the first, coarsest search for a good round tries."""
_FINER = 16
"""Number of parts into which an interval of the grid of deadlines is divided if its bound is too low."""
_LARGE = 200
"""With more clients than this, a weaker bound is proven and only the most promising swaps are tried, to save time."""
_SWAPPED = 30
"""In such a fleet, how many clients inside and outside a selection are tried for swaps."""


class BoundedSearch:
    """Finds cheap rounds of a large fleet and proves a lower bound; the objective must be additive."""

    def __init__(self, task: Task, curves: ClientCurves, longest_s: float, *, bounded: bool = True) -> None:
        """:param bounded: whether a lower bound is needed, which takes most of the time."""
        statements = task.objective.additive
        assert statements is not None
        self.task, self.curves, self.longest_s, self.bounded = task, curves, longest_s, bounded
        self.statements, self.phi, self.size = statements, statements.phi, task.problem.size
        self.proves_bound = bounded
        self.tolerance = 5e-4 if self.size <= _LARGE else 4e-3
        need = curves.least_s
        self.usable = bool(need.min() <= longest_s)
        if not self.usable:
            return
        self.worths = Worths(curves, deadline_grid(need, longest_s, _GRID))
        self.grid = self.worths.grid
        self.able = self.worths.in_time  # (D, N)
        self.most = self.able.sum(axis=-1)

    @property
    def selections(self) -> Bools:
        """No selections, because none are kept."""
        return np.zeros((0, self.size), dtype=np.bool_)

    @property
    def enumeration(self) -> None:
        """None, because there is no list of all selections."""

    def learn(self, selections: Bools) -> None:
        """Do nothing, because every call of :meth:`price` starts a new search."""

    def prove(self, mu: float, nu: float, allowed: float) -> float:
        """Return only the lower bound of :meth:`price`."""
        return self.price(mu, nu, allowed).lower_bound

    def search_harder(self, mu: float, nu: float) -> None:
        """Return None, because the bound shows that little can be gained."""

    def price(self, mu: float, nu: float, allowed: float) -> Priced:
        """Return the best rounds found, and a lower bound on all rounds that is below them by at most ``allowed``.

        If that takes too many boxes, the bound is lower.
        """
        best, columns = self._rounds(mu, nu)
        if not self.bounded:
            return Priced(-np.inf, columns)
        bound = self._bound(mu, nu, best - 0.5 * min(allowed, 0.3 * abs(best)))
        return Priced(min(bound, best), columns)

    # --- good rounds ----------------------------------------------------------------------------------------------

    def _rounds(self, mu: float, nu: float) -> tuple[float, Columns]:
        """Return the least L found, and the best rounds.

        The search goes over k and d, from coarse to fine, then swaps clients. The deadlines of the best selections are
        finally solved exactly.
        """
        size = self.size
        counts = np.unique(np.geomspace(1, size, _STARTS).round().astype(np.intp))
        deadlines = np.unique(np.linspace(0, len(self.grid) - 1, _STARTS).round().astype(np.intp))
        seen: dict[bytes, float] = {}
        k = d = 0
        step_k, step_d = 2.0, max(1, len(self.grid) // _STARTS)
        for _ in range(7):
            value, selected = self._evaluate(counts, deadlines, mu, nu)
            flat = np.argsort(value, axis=None)[:3]
            for i in flat:
                a, b = np.unravel_index(int(i), value.shape)
                if np.isfinite(value[a, b]):
                    seen[selected[a, b].tobytes()] = float(value[a, b])
            a, b = np.unravel_index(int(flat[0]), value.shape)
            k, d = int(counts[a]), int(deadlines[b])
            step_k, step_d = step_k**0.5, max(1, step_d // 2)
            span = max(1, int(k * (step_k - 1.0)))
            counts = np.unique(np.clip(k + np.linspace(-span, span, 7).round().astype(np.intp), 1, size))
            deadlines = np.unique(np.clip(d + step_d * np.arange(-3, 4), 0, len(self.grid) - 1))
        chosen = [np.frombuffer(key, dtype=np.bool_) for key, _ in sorted(seen.items(), key=lambda item: item[1])[:4]]
        improved = [self._improve(selected, mu, nu, d) for selected in chosen[:2]]
        sets = np.unique(np.stack([*chosen, *improved]), axis=0)
        base = self.task.objective.selection_cost(sets)
        sets, base = sets[np.isfinite(base)], base[np.isfinite(base)]
        curve = RoundCurve(self.task, self.curves, sets, base, mu, nu, self.worths.floor)
        refined = curve.minimise(self.curves.shortest(sets), np.full(len(sets), self.grid[-1]))
        order = np.argsort(refined.value)[:6]
        return float(refined.value[order[0]]), refined.columns.take(list(order))

    def _evaluate(self, counts: Ints, deadlines: Ints, mu: float, nu: float) -> tuple[Floats, Bools]:
        """Return L of the best selection by the threshold rule at every k and d, (K, D), and the selections, (K, D,
        N)."""
        value = np.full((len(counts), len(deadlines)), np.inf)
        chosen = np.zeros((*value.shape, self.size), dtype=np.bool_)
        chosen[..., 0] = True
        for row, k in enumerate(counts):
            worth = self.worths.values(self.task.objective.pruning_weight / k, mu, deadlines)
            worth = np.where(self.able[deadlines], worth, np.inf)
            rows = np.flatnonzero(self.most[deadlines] >= k)
            if not len(rows):
                continue
            same = np.full(len(rows), k)
            order = threshold(worth[rows], self.phi, same, same, self._quadratic(same, same)).order
            picked = np.zeros((len(rows), self.size), dtype=np.bool_)
            np.put_along_axis(picked, order[:, :k], values=True, axis=-1)
            fixed = nu * self.grid[deadlines[rows]] + mu * self.task.problem.broadcast_j
            shared = np.where(picked, worth[rows], 0.0).sum(axis=-1)
            value[row, rows] = self.task.objective.selection_cost(picked) + fixed + shared
            chosen[row, rows] = picked
        return value, chosen

    def _quadratic(self, least: Ints, most: Ints) -> Floats:
        """Return C for boxes with k from ``least`` to ``most``; see the module docstring."""
        k1, k2 = least.astype(np.float64), most.astype(np.float64)
        return np.asarray(self.statements.weight / (k1 * k1 * k2 if self.statements.mean else k2))

    def _improve(self, selected: Bools, mu: float, nu: float, deadline: int) -> Bools:
        """Return the selection after clients are added, dropped or swapped, as long as that lowers L at a deadline."""
        current, value = selected.copy(), np.inf
        able = self.able[deadline]
        for _ in range(60):
            moves = self._neighbours(current, able, mu, deadline)
            costs = self.task.objective.selection_cost(moves)
            for k in np.unique(moves.sum(axis=-1)):
                worth = self.worths.values(self.task.objective.pruning_weight / k, mu, np.array([deadline]))
                rows = moves.sum(axis=-1) == k
                costs[rows] += moves[rows] @ np.where(able, worth[0], 0.0)
            best = int(costs.argmin())
            if not costs[best] < value * (1.0 - NO_GAIN):
                break
            current, value = moves[best], float(costs[best])
        return current

    def _neighbours(self, current: Bools, able: Bools, mu: float, deadline: int) -> Bools:
        """Return the selection itself, those with one client added or dropped, and those with two clients swapped."""
        inside, outside = np.flatnonzero(current), np.flatnonzero(~current & able)
        if self.size > _LARGE:
            worth = self.worths.values(self.task.objective.pruning_weight / len(inside), mu, np.array([deadline]))
            count = np.array([len(inside)])
            pull = worth[0] + 2.0 * self._quadratic(count, count) * self.phi[inside].sum() * self.phi
            inside = inside[np.argsort(-pull[inside])[:_SWAPPED]]
            outside = outside[np.argsort(pull[outside])[:_SWAPPED]]
        flips = [[], *([n] for n in outside), *([n] for n in inside if current.sum() > 1)]
        flips += [[a, b] for a in inside for b in outside]
        moves = np.repeat(current[None], len(flips), axis=0)
        for move, flip in zip(moves, flips, strict=True):
            move[flip] ^= True
        return moves

    # --- the bound ------------------------------------------------------------------------------------------------

    def _bound(self, mu: float, nu: float, goal: float) -> float:
        """Return a lower bound on L over all k and d: ``goal``, or less if that cannot be proven.

        Boxes (k₁, k₂, i₁, i₂), with indices i of deadlines on the grid, are split until their bounds reach the goal.
        Boxes with one k and two neighbouring deadlines that do not reach it are tried again on a finer grid.
        """
        worths, last = self.worths, len(self.grid) - 1
        edges = np.unique(np.geomspace(1, self.size + 1, 24).round().astype(np.intp))
        marks = np.unique(np.linspace(0, last, 5).round().astype(np.intp))
        boxes = np.array([(a, b - 1, i, j) for a, b in pairwise(edges) for i, j in pairwise(marks)], dtype=np.intp)
        reached = np.inf
        for finer in (True, True, False):
            left, bounds, others = self._split_boxes(worths, boxes, mu, nu, goal)
            reached = min(reached, others)
            if not len(left):
                break
            if not finer or others < goal:
                return min(reached, float(bounds.min()))
            worths, boxes = self._finer(worths, left)
        return min(reached, goal)

    def _split_boxes(
        self, worths: Worths, boxes: Ints, mu: float, nu: float, goal: float
    ) -> tuple[Ints, Floats, float]:
        """Split boxes until their bounds reach ``goal``.

        Returns the smallest boxes whose bounds do not reach it, their bounds, and the least bound of boxes that were
        not split because there were too many.
        """
        left: list[tuple[Ints, Floats]] = []
        total, others = 0, np.inf
        while len(boxes):
            bounds, by_count = self._box_bounds(worths, boxes, mu, nu, goal)
            total += len(boxes)
            open_ = bounds < goal
            boxes, bounds, by_count = boxes[open_], bounds[open_], by_count[open_]
            final = (boxes[:, 0] == boxes[:, 1]) & (boxes[:, 3] - boxes[:, 2] <= 1)
            left.append((boxes[final], bounds[final]))
            boxes, bounds, by_count = boxes[~final], bounds[~final], by_count[~final]
            if total >= _BOXES:
                others = float(bounds.min(initial=np.inf))
                break
            boxes = _split(boxes, by_count)
        return np.concatenate([cells for cells, _ in left]), np.concatenate([values for _, values in left]), others

    def _finer(self, worths: Worths, boxes: Ints) -> tuple[Worths, Ints]:
        """Return a finer grid of deadlines inside the boxes, and the boxes with indices on that grid."""
        cells = np.unique(boxes[:, 2])
        parts = [np.linspace(worths.grid[i], worths.grid[i + 1], _FINER + 1) for i in cells]
        grid = np.unique(np.concatenate(parts))
        first, last = (np.searchsorted(grid, worths.grid[boxes[:, 2] + end]) for end in (0, 1))
        return Worths(self.curves, grid), np.column_stack([boxes[:, 0], boxes[:, 1], first, last])

    def _box_bounds(self, worths: Worths, boxes: Ints, mu: float, nu: float, goal: float) -> tuple[Floats, Bools]:
        """Return a lower bound on L over each box, and whether to split it along k.

        The bound is ∞ if fewer than k₁ clients can meet the deadlines of the box.
        """
        bounds, by_count = np.full(len(boxes), np.inf), np.zeros(len(boxes), dtype=np.bool_)
        possible = worths.in_time.sum(axis=-1)[boxes[:, 3]] >= boxes[:, 0]
        fixed = self.statements.few_clients / boxes[:, 1] + mu * self.task.problem.broadcast_j
        weight = self._quadratic(boxes[:, 0], boxes[:, 1])
        cheapest = np.concatenate([[0.0], np.cumsum(np.sort(self.phi))])
        chunk = max(1, _CHUNK // self.size)
        for k2 in np.unique(boxes[possible, 1]):
            members = np.flatnonzero(possible & (boxes[:, 1] == k2))
            for start in range(0, len(members), chunk):
                rows = members[start : start + chunk]
                k1, _, i1, i2 = boxes[rows].T
                middle = (i1 + i2) // 2
                share = self.task.objective.pruning_weight / k2
                value, slope = worths.values(share, mu, middle), worths.slopes(share, mu, middle)
                first_end, last_end = (worths.values(share, mu, end) for end in (i1, i2))
                ends = [first_end, last_end]
                # Clients that can meet only the last deadline are bounded by their value there, or by their tangent
                # there if v_n rises with d.
                late = ~worths.in_time[middle]
                rising = np.maximum(worths.slopes(share, mu, i2), 0.0)
                back = rising * (worths.grid[middle] - worths.grid[i2])[:, None]
                value, slope = np.where(late, last_end + back, value), np.where(late, rising, slope)
                least, loose_k, loose_d = np.full(len(rows), np.inf), np.zeros(len(rows)), np.zeros(len(rows))
                cap = np.where(k1 < k2, 2.0 * cheapest[k1], np.inf)
                for end, exact in zip((i1, i2), ends, strict=True):
                    extended = value + slope * (worths.grid[end] - worths.grid[middle])[:, None]
                    extended = np.where(worths.in_time[i2], extended, np.inf)
                    at_end = fixed[rows] + nu * worths.grid[end]
                    answer = threshold(extended, self.phi, k1, np.full(len(rows), k2), weight[rows], cap, goal - at_end)
                    least = np.minimum(least, at_end + answer.bound)
                    loose = np.where(worths.in_time[end], exact - extended, 0.0)
                    loose = np.take_along_axis(loose, answer.order, axis=-1)
                    first = np.arange(self.size) < k1[:, None]
                    loose_d = np.maximum(loose_d, np.where(first, np.nan_to_num(loose), 0.0).sum(axis=-1))
                    loose_k = np.maximum(loose_k, answer.bound + fixed[rows])
                bounds[rows] = least
                loose_d += 0.5 * nu * (worths.grid[i2] - worths.grid[i1])
                by_count[rows] = (loose_k * (k2 - k1) / k2 > loose_d) & (k2 > k1) | (i2 - i1 <= 1)
        return bounds, by_count


def _split(boxes: Ints, by_count: Bools) -> Ints:
    """Split each box into two halves, along k if ``by_count``, otherwise along d."""
    k1, k2, i1, i2 = boxes.T
    middle_k, middle_i = (k1 + k2) // 2, (i1 + i2) // 2
    first = np.column_stack([k1, np.where(by_count, middle_k, k2), i1, np.where(by_count, i2, middle_i)])
    second = np.column_stack([np.where(by_count, middle_k + 1, k1), k2, np.where(by_count, i1, middle_i), i2])
    return np.concatenate([first, second])
