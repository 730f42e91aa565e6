"""Pricing for fleets too large to enumerate: threshold and swap search, with a bound by branching on (k, d).

For a number of clients k and a deadline d the best selection minimises C·(Σ_A φ_n)² + Σ_A v_n(d), with C = Rγ₁/k (sum)
or Rγ₁/k³ (mean). As S² = max_z 2zS − z², any z gives the lower bound −C·z² + the k least of v_n + 2C·z·φ_n: a threshold
rule, exact but for a fraction of one client. It stays valid over a box k₁ ≤ k ≤ k₂, d₁ ≤ d ≤ d₂ with

- β/k and γ/k taken at k₂, the count at k₁, and C = Rγ₁/k₂ (sum) or Rγ₁/(k₁²k₂) (mean: the average over a selection is
  at least that over the k₁ clients of least score), z at most twice the least Σφ of k₁ clients, so that 2zS − z² ≥ 0;
- v_n by its tangent at a deadline inside: v_n is convex in d, so a selection's bound is linear in d, least at an end.

Boxes are split, along whichever of k and d costs more, until none is below the best round found, less the tolerance.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgap.planning.energy_time_curve import Units
from fedgap.planning.oracles.enumerate import Columns, Priced, RoundCurve, Worths
from fedgap.planning.problem import Problem

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

_CHUNK = 2_000_000
"""Elements of a batch of boxes × clients, to bound the memory."""


class Searched:
    """Prices selections of a large fleet, with a valid bound: Φ is a sum or a mean over clients, or has no weight."""

    _GRID = 160
    _BOXES = 6_000
    _STARTS = 14
    _FINER = 16

    def __init__(self, problem: Problem, units: Units, longest_s: float, *, bounded: bool = True) -> None:
        """:param bounded: whether a bound is asked for, which takes most of the time."""
        self.problem, self.units, self.bounded = problem, units, bounded
        need = units.overhead + units.keep_min * units.u_min
        self.some = bool(need.min() <= longest_s)
        self.tolerance = 5e-4 if problem.size <= 200 else 4e-3
        if not self.some:
            return
        self.phi = problem.phi
        self.worths = Worths(units, deadlines(need, longest_s, self._GRID))
        self.grid = self.worths.grid
        self.able = self.worths.in_time  # (D, N)
        self.most = self.able.sum(axis=-1)

    def price(self, mu: float, nu: float, allowed: float) -> Priced:
        """The best rounds found, and the bound that no round can beat, ``allowed`` below them or closer."""
        best, columns = self._rounds(mu, nu)
        if not self.bounded:
            return Priced(-np.inf, columns)
        bound = self._bound(mu, nu, best - 0.5 * min(allowed, 0.3 * abs(best)))
        return Priced(min(bound, best), columns)

    # --- good rounds ----------------------------------------------------------------------------------------------

    def _rounds(self, mu: float, nu: float) -> tuple[float, Columns]:
        """Search over (k, d), coarse to fine, then swap; the deadlines of the best selections are refined exactly."""
        size = self.problem.size
        counts = np.unique(np.geomspace(1, size, self._STARTS).round().astype(np.intp))
        deadlines = np.unique(np.linspace(0, len(self.grid) - 1, self._STARTS).round().astype(np.intp))
        seen: dict[bytes, float] = {}
        k = d = 0
        step_k, step_d = 2.0, max(1, len(self.grid) // self._STARTS)
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
        base = self.problem.selection_cost(sets)
        sets, base = sets[np.isfinite(base)], base[np.isfinite(base)]
        curve = RoundCurve(self.problem, self.units, sets, base, mu, nu, self.worths.floor)
        refined = curve.minimise(self.units.shortest(sets), np.full(len(sets), self.grid[-1]))
        order = np.argsort(refined.value)[:6]
        return float(refined.value[order[0]]), refined.columns.take(list(order))

    def _evaluate(self, counts: Ints, deadlines: Ints, mu: float, nu: float) -> tuple[Array, Bools]:
        """L of the best selection by the threshold rule, at every (k, d): values (K, D) and selections (K, D, N)."""
        value = np.full((len(counts), len(deadlines)), np.inf)
        chosen = np.zeros((*value.shape, self.problem.size), dtype=np.bool_)
        chosen[..., 0] = True
        for row, k in enumerate(counts):
            worth, _ = self.worths.at(self.problem.pruning_weight / k, mu, deadlines)
            worth = np.where(self.able[deadlines], worth, np.inf)
            rows = np.flatnonzero(self.most[deadlines] >= k)
            if not len(rows):
                continue
            same = np.full(len(rows), k)
            order = threshold(worth[rows], self.phi, same, same, self._quadratic(same, same)).order
            picked = np.zeros((len(rows), self.problem.size), dtype=np.bool_)
            np.put_along_axis(picked, order[:, :k], values=True, axis=-1)
            fixed = nu * self.grid[deadlines[rows]] + mu * self.problem.broadcast_j
            shared = np.where(picked, worth[rows], 0.0).sum(axis=-1)
            value[row, rows] = self.problem.selection_cost(picked) + fixed + shared
            chosen[row, rows] = picked
        return value, chosen

    def _quadratic(self, least: Ints, most: Ints) -> Array:
        """C of a box of counts: the sum's, or the mean's; ``mixture`` only comes here with γ₁ = 0."""
        gamma = self.problem.rounds * self.problem.constants.gamma1
        k1, k2 = least.astype(np.float64), most.astype(np.float64)
        return np.asarray(gamma / k2 if self.problem.aggregation == "sum" else gamma / (k1 * k1 * k2))

    def _improve(self, selected: Bools, mu: float, nu: float, deadline: int) -> Bools:
        """Add, drop or swap one client at a time while that lowers L at a fixed deadline."""
        current, value = selected.copy(), np.inf
        able = self.able[deadline]
        for _ in range(60):
            moves = self._neighbours(current, able, mu, deadline)
            costs = self.problem.selection_cost(moves)
            for k in np.unique(moves.sum(axis=-1)):
                worth, _ = self.worths.at(self.problem.pruning_weight / k, mu, np.array([deadline]))
                rows = moves.sum(axis=-1) == k
                costs[rows] += moves[rows] @ np.where(able, worth[0], 0.0)
            best = int(costs.argmin())
            if not costs[best] < value * (1.0 - 1e-12):
                break
            current, value = moves[best], float(costs[best])
        return current

    def _neighbours(self, current: Bools, able: Bools, mu: float, deadline: int) -> Bools:
        """The selection itself, each client added or dropped, and swaps among the most promising of both."""
        inside, outside = np.flatnonzero(current), np.flatnonzero(~current & able)
        if self.problem.size > 200:
            worth, _ = self.worths.at(self.problem.pruning_weight / len(inside), mu, np.array([deadline]))
            count = np.array([len(inside)])
            pull = worth[0] + 2.0 * self._quadratic(count, count) * self.phi[inside].sum() * self.phi
            inside = inside[np.argsort(-pull[inside])[:30]]
            outside = outside[np.argsort(pull[outside])[:30]]
        rows = [current]
        flips = [[n] for n in outside] + [[n] for n in inside if current.sum() > 1]
        flips += [[a, b] for a in inside for b in outside]
        block = np.repeat(current[None], len(flips), axis=0)
        for i, flip in enumerate(flips):
            block[i, flip] = ~block[i, flip]
        return np.concatenate([np.stack(rows), block]) if flips else np.stack(rows)

    # --- the bound ------------------------------------------------------------------------------------------------

    def _bound(self, mu: float, nu: float, goal: float) -> float:
        """A lower bound on L over all counts and deadlines, ``goal`` or what can be had below it.

        Boxes (k₁, k₂, i₁, i₂) of counts and grid deadlines are split until they reach the goal; those of one count and
        two neighbouring deadlines that do not are looked at again on a finer grid.
        """
        worths, last = self.worths, len(self.grid) - 1
        edges = np.unique(np.geomspace(1, self.problem.size + 1, 24).round().astype(np.intp))
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
    ) -> tuple[Ints, Array, float]:
        """The smallest boxes whose bound is below ``goal``, their bounds, and that of boxes there was no time for."""
        left: list[tuple[Ints, Array]] = []
        total, others = 0, np.inf
        while len(boxes):
            bounds, by_count = self._box_bounds(worths, boxes, mu, nu, goal)
            total += len(boxes)
            open_ = bounds < goal
            boxes, bounds, by_count = boxes[open_], bounds[open_], by_count[open_]
            final = (boxes[:, 0] == boxes[:, 1]) & (boxes[:, 3] - boxes[:, 2] <= 1)
            left.append((boxes[final], bounds[final]))
            boxes, bounds, by_count = boxes[~final], bounds[~final], by_count[~final]
            if total >= self._BOXES:
                others = float(bounds.min(initial=np.inf))
                break
            boxes = _split(boxes, by_count)
        return np.concatenate([each[0] for each in left]), np.concatenate([each[1] for each in left]), others

    def _finer(self, worths: Worths, boxes: Ints) -> tuple[Worths, Ints]:
        """A grid of deadlines inside the boxes alone, and the boxes on it."""
        cells = np.unique(boxes[:, 2])
        parts = [np.linspace(worths.grid[i], worths.grid[i + 1], self._FINER + 1) for i in cells]
        grid = np.unique(np.concatenate(parts))
        first, last = (np.searchsorted(grid, worths.grid[boxes[:, 2] + end]) for end in (0, 1))
        return Worths(self.units, grid), np.column_stack([boxes[:, 0], boxes[:, 1], first, last])

    def _box_bounds(
        self, worths: Worths, boxes: Ints, mu: float, nu: float, goal: float
    ) -> tuple[Array, Bools]:
        """A lower bound on L over each box (∞ where too few meet its deadlines), and whether to split its counts."""
        problem = self.problem
        bounds, by_count = np.full(len(boxes), np.inf), np.zeros(len(boxes), dtype=np.bool_)
        possible = worths.in_time.sum(axis=-1)[boxes[:, 3]] >= boxes[:, 0]
        fixed = problem.rounds * problem.constants.beta / boxes[:, 1] + mu * problem.broadcast_j
        weight = self._quadratic(boxes[:, 0], boxes[:, 1])
        cheapest = np.concatenate([[0.0], np.cumsum(np.sort(self.phi))])
        chunk = max(1, _CHUNK // problem.size)
        for k2 in np.unique(boxes[possible, 1]):
            members = np.flatnonzero(possible & (boxes[:, 1] == k2))
            for start in range(0, len(members), chunk):
                rows = members[start : start + chunk]
                k1, _, i1, i2 = boxes[rows].T
                middle = (i1 + i2) // 2
                share = problem.pruning_weight / k2
                value, slope = worths.at(share, mu, middle)
                ends = [worths.at(share, mu, end)[0] for end in (i1, i2)]
                # In time only at the box's end: bounded by the value there, for v_n falls with d.
                late = ~worths.in_time[middle]
                value, slope = np.where(late, ends[1], value), np.where(late, 0.0, slope)
                least, loose_k, loose_d = np.full(len(rows), np.inf), np.zeros(len(rows)), np.zeros(len(rows))
                cap = np.where(k1 < k2, 2.0 * cheapest[k1], np.inf)
                for end, exact in zip((i1, i2), ends, strict=True):
                    extended = value + slope * (worths.grid[end] - worths.grid[middle])[:, None]
                    extended = np.where(worths.in_time[i2], extended, np.inf)
                    at_end = fixed[rows] + nu * worths.grid[end]
                    found = threshold(extended, self.phi, k1, np.full(len(rows), k2), weight[rows], cap, goal - at_end)
                    least = np.minimum(least, at_end + found.bound)
                    loose = np.where(worths.in_time[end], exact - extended, 0.0)
                    loose = np.take_along_axis(loose, found.order, axis=-1)
                    first = np.arange(problem.size) < k1[:, None]
                    loose_d = np.maximum(loose_d, np.where(first, np.nan_to_num(loose), 0.0).sum(axis=-1))
                    loose_k = np.maximum(loose_k, found.bound + fixed[rows])
                bounds[rows] = least
                loose_d += 0.5 * nu * (worths.grid[i2] - worths.grid[i1])
                by_count[rows] = (loose_k * (k2 - k1) / k2 > loose_d) & (k2 > k1) | (i2 - i1 <= 1)
        return bounds, by_count


def deadlines(need: Array, longest_s: float, size: int) -> Array:
    """A grid of deadlines from the least that anybody needs to the longest."""
    grid = np.geomspace(float(need.min()), max(longest_s, float(need.min())), size)
    # Where most clients can take part the deadlines matter most: a third of the grid goes there.
    reach = np.quantile(need[need <= longest_s], np.linspace(0.0, 1.0, size // 2))
    return np.unique(np.concatenate([grid, reach]))


class Threshold(NamedTuple):
    """The answer of :func:`threshold`."""

    bound: Array
    """(B,)"""
    order: Ints
    """The clients in order of preference at the best z, (B, N)."""


def threshold(
    worth: Array,
    phi: Array,
    least: Ints,
    most: Ints,
    weight: Array,
    cap: Array | None = None,
    goal: Array | None = None,
) -> Threshold:
    """max_z −C·z² + Σ of the ``least`` smallest of v + 2C·z·φ (and up to ``most`` if negative), a row a problem.

    Concave in z with slope 2C·(S(z) − z), S(z) the sum of φ picked, which falls with z: bisection.

    :param worth: v, (B, N), ∞ for those who may not be picked; :param weight: C, (B,); :param cap: the largest z, (B,).
    :param goal: a bound at which a row needs no better one, (B,).
    """
    rows = np.arange(len(worth))[:, None]
    place = np.arange(worth.shape[-1])
    low, high = np.zeros(len(worth)), np.full(len(worth), np.inf)
    best = np.full(len(worth), -np.inf)
    kept = np.zeros(worth.shape, dtype=np.intp)
    z = np.zeros(len(worth))
    for _ in range(24):
        score = worth + 2.0 * (weight * z)[:, None] * phi
        order = np.argsort(score, axis=-1)
        ranked = score[rows, order]
        picked = (place < least[:, None]) | ((place < most[:, None]) & (ranked < 0.0))
        value = np.where(picked, ranked, 0.0).sum(axis=-1) - weight * z * z
        better = value > best
        best, kept = np.where(better, value, best), np.where(better[:, None], order, kept)
        total = np.where(picked, phi[order], 0.0).sum(axis=-1)
        low, high = np.where(total > z, z, low), np.where(total > z, np.minimum(high, total), z)
        if cap is not None:
            high = np.minimum(high, cap)
        enough = high - low <= 1e-5 * high
        if np.all(enough if goal is None else enough | (best >= goal)) or not weight.any():
            break
        # S(z) is nearly flat where many clients score alike: its last value is a better guess than the middle.
        z = np.where((total > low) & (total < high), total, 0.5 * (low + high))
    return Threshold(best, kept)


def _split(boxes: Ints, by_count: Bools) -> Ints:
    """Each box halved, along its counts or its deadlines."""
    k1, k2, i1, i2 = boxes.T
    middle_k, middle_i = (k1 + k2) // 2, (i1 + i2) // 2
    first = np.column_stack([k1, np.where(by_count, middle_k, k2), i1, np.where(by_count, i2, middle_i)])
    second = np.column_stack([np.where(by_count, middle_k + 1, k1), k2, np.where(by_count, i1, middle_i), i2])
    return np.concatenate([first, second])
