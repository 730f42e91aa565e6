"""The oracle that prices every selection of an explicit list, exactly."""

from copy import copy
from dataclasses import replace

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.objective import Objective
from fedgap.planning.round_lagrangian import Columns, Priced, Refined, RoundCurve, Worths
from fedgap.planning.task import Task
from fedgap.planning.tolerances import FINE_GAP, KEPT, NO_GAIN


def all_selections(size: int) -> Bools:
    """Return every non-empty selection of ``size`` clients, (2^size − 1, size)."""
    codes = np.arange(1, 2**size)
    return np.asarray((codes[:, None] >> np.arange(size)) % 2 == 1)


class Enumeration:
    """Prices a list of selections, such as all 2^N − 1 of a small fleet or the only one that a scheme allows."""

    proves_bound = True
    tolerance = FINE_GAP
    _GRID = 96
    """Number of deadlines at which every selection is bounded before the best are solved exactly."""

    def __init__(self, task: Task, curves: ClientCurves, selections: Bools, longest_s: float) -> None:
        self.task, self.curves, self.longest_s = task, curves, longest_s
        shortest = curves.shortest(selections)
        base = task.objective.selection_cost(selections)
        usable = (shortest <= longest_s) & np.isfinite(base)
        order = np.argsort(selections[usable].sum(axis=-1), kind="stable")
        self.selections = selections[usable][order]
        self.base = base[usable][order]
        self.shortest = shortest[usable][order]
        self.count = self.selections.sum(axis=-1)
        if not len(self.selections):
            return
        first = float(self.shortest.min())
        spaced = np.geomspace(first, max(longest_s, first), self._GRID)
        starts = curves.overhead + curves.keep_min * curves.u_min
        self.worths = Worths(curves, np.unique(np.concatenate([spaced, starts[starts <= longest_s]])))
        self.grid = self.worths.grid
        self._first = np.searchsorted(self.grid, self.shortest * (1.0 - KEPT))

    def with_objective(self, objective: Objective) -> "Enumeration":
        """Return an oracle for the same selections and clients with another objective."""
        other = copy(self)
        other.task = replace(self.task, objective=objective)
        other.base = objective.selection_cost(self.selections) if self.usable else self.base
        return other

    @property
    def usable(self) -> bool:
        """Whether any selection can meet the longest deadline."""
        return bool(len(self.selections))

    @property
    def enumeration(self) -> "Enumeration":
        """This object, because it lists every selection."""
        return self

    def learn(self, selections: Bools) -> None:
        """Do nothing, because every selection is listed already."""

    def prove(self, mu: float, nu: float, allowed: float) -> float:
        """Return only the lower bound of :meth:`price`."""
        return self.price(mu, nu).lower_bound

    def search_harder(self, mu: float, nu: float) -> None:
        """Return None, because :meth:`price` is exact."""

    def price(self, mu: float, nu: float, allowed: float = 0.0) -> Priced:
        """Bound every selection from below on a grid of deadlines, then solve those exactly that may be the best."""
        bounds, left = self.bounds(mu, nu)
        order = np.argsort(bounds)
        best, taken = np.inf, 0
        refinements: list[Columns] = []
        floor = np.inf
        while taken < len(order) and bounds[order[taken]] < best * (1.0 - NO_GAIN):
            chosen = order[taken : taken + 8]
            chosen = chosen[bounds[chosen] < best]
            taken += max(len(chosen), 1)
            refined = self._refine(chosen, left[chosen], mu, nu)
            floor = min(floor, float(refined.bound.min()))
            best = min(best, float(refined.value.min()))
            refinements.append(refined.columns)
        rest = bounds[order[taken]] if taken < len(order) else np.inf
        return Priced(min(floor, float(rest)), Columns.join(refinements))

    def least(self, mu: float, nu: float) -> tuple[float, Columns]:
        """Return a rough lower bound on all selections, and two rounds of the selection that has it.

        The rounds have the two deadlines of the grid between which the selection's minimum is.
        """
        bounds, left = self.bounds(mu, nu)
        best = np.repeat(bounds.argmin(), 2)
        near = np.minimum(left[best] + (0, 1), len(self.grid) - 1)
        curve = RoundCurve(self.task, self.curves, self.selections[best], self.base[best], mu, nu, self.worths.floor)
        return float(bounds[best[0]]), curve.at(np.maximum(self.grid[near], self.shortest[best]))[2]

    def bounds(self, mu: float, nu: float) -> tuple[Floats, Ints]:
        """Return a lower bound on L_A of every selection, (S,), and the index ``left`` of its deadline, (S,).

        The minimum of L_A is between the deadlines ``left`` and ``left + 1`` of the grid.
        """
        gamma = self.task.objective.pruning_weight
        bounds = np.empty(len(self.selections))
        left = np.empty(len(self.selections), dtype=np.intp)
        fixed = nu * self.grid + mu * self.task.problem.broadcast_j
        sizes = np.unique(self.count)
        self.worths.expect(gamma / sizes, mu)
        for k in sizes:
            members = np.flatnonzero(self.count == k)
            sets = self.selections[members].astype(np.float64)
            # Value and slope of all selections of one size at every grid point, as matrix products.
            total = sets @ self.worths.values(gamma / k, mu, slice(None)).T + fixed
            rise = sets @ self.worths.slopes(gamma / k, mu, slice(None)).T + nu
            first = self._first[members]
            rows = np.arange(len(members))
            outside = np.arange(len(self.grid)) < first[:, None]
            rising = (rise >= 0.0) & ~outside
            right = np.where(rising.any(axis=-1), rising.argmax(axis=-1), len(self.grid) - 1)
            start = np.maximum(right - 1, first)
            interior = rising[rows, right] & (right > first)
            low = total[rows, right]
            d_left, d_right = self.grid[start], self.grid[right]
            f_left, f_right = total[rows, start], total[rows, right]
            g_left, g_right = rise[rows, start], rise[rows, right]
            with np.errstate(divide="ignore", invalid="ignore"):
                where = (f_right - f_left + g_left * d_left - g_right * d_right) / (g_left - g_right)
                meeting = f_left + g_left * (where - d_left)
            meeting = np.where(np.isfinite(meeting), np.minimum(meeting, np.minimum(f_left, f_right)), low)
            bounds[members] = self.base[members] + np.where(interior, meeting, low)
            left[members] = start
        return bounds, left

    def _refine(self, chosen: Ints, left: Ints, mu: float, nu: float) -> Refined:
        """Minimise L_A over the deadline for the selections ``chosen``, between the grid points left and left + 1."""
        some = self.selections[chosen], self.base[chosen]
        curve = RoundCurve(self.task, self.curves, *some, mu, nu, self.worths.floor)
        low, high = self.grid[left], self.grid[np.minimum(left + 1, len(self.grid) - 1)]
        low = np.maximum(low, self.shortest[chosen])
        high = np.maximum(high, low)
        return curve.minimise(low, high)
