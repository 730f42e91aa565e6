"""The moves of a local search from one selection: clients added, dropped, swapped, or exchanged in groups."""

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.objective import PooledLabels
from fedgap.planning.round_lagrangian import Worths
from fedgap.planning.task import Task
from fedgap.theory import smoothed

_REACH = np.array([-64, -24, -9, -3, -1, 0, 1, 3, 9, 24, 64])
"""By how many steps on the grid of deadlines a move may change the deadline."""
_SWAPPED = 120
"""In a large fleet, how many clients inside and outside a selection are drawn at random and tried for swaps."""
_SOME, _MANY = 240, 1200
"""Maximum number of groups of up to three clients that may leave, and of those that may join, in a usual and in a
thorough search. All pairs of groups are estimated."""
_TRIED = 96
"""Number of exchanges that are evaluated exactly; they are those with the best estimates."""


class Move(NamedTuple):
    """A move to another selection and deadline."""

    value: float
    """L after the move."""
    place: int
    """Index of the new deadline on the grid."""
    flips: Ints
    """The clients that join or leave the selection; empty if only the deadline changes."""


class Neighbourhood:
    """Finds the best move of each type from one selection.

    A move may also change the deadline, which is ``place`` on the grid before the move, by the steps in ``_REACH``.
    """

    def __init__(
        self, task: Task, labels: PooledLabels, worths: Worths, random: np.random.Generator, selected: Bools,
        place: int, mu: float, nu: float,
    ) -> None:
        self.task, self.labels, self.worths, self.random = task, labels, worths, random
        self.counts, self.mu, self.place = labels.counts, mu, place
        self.inside, self.outside = np.flatnonzero(selected), np.flatnonzero(~selected & worths.in_time[-1])
        self.size = len(self.inside)
        self.rows = np.unique(np.clip(place + _REACH, 0, len(worths.grid) - 1))
        self.fixed = nu * worths.grid[self.rows] + mu * task.problem.broadcast_j
        self.late = ~worths.in_time[self.rows]
        self.overdue = self.late[:, self.inside].sum(axis=-1)
        self.held = self.counts[self.inside].sum(axis=0)
        self._none = Move(np.inf, place, self.inside[:0])
        sizes = np.arange(max(self.size - 1, 1), self.size + 2)
        worths.expect(task.objective.pruning_weight / sizes, mu)
        self.same, self.total = self._worths(self.size)

    def _worths(self, number: int) -> tuple[Floats, Floats]:
        """Return v_n at the deadlines if this number of clients is selected, (deadlines, N), and L without the cost of
        the labels, (deadlines,): the selected clients' v_n, ν·d and the broadcast."""
        worth = self.worths.values(self.task.objective.pruning_weight / number, self.mu, self.rows)
        return worth, worth[:, self.inside].sum(axis=-1) + self.fixed

    def stay(self) -> Move:
        """Return the best move that changes only the deadline."""
        value = np.where(self.overdue == 0, float(self.labels.cost(self.held, self.size)) + self.total, np.inf)
        return Move(float(value.min()), int(self.rows[value.argmin()]), self.inside[:0])

    def flips(self) -> Move:
        """Return the best move that adds or drops one client."""
        best, counts, inside, outside = self._none, self.counts, self.inside, self.outside
        if len(outside):
            worth, more = self._worths(self.size + 1)
            in_time = (self.overdue == 0)[:, None] & ~self.late[:, outside]
            after = self.labels.cost(self.held + counts[outside], self.size + 1) + worth[:, outside]
            best = self._best(best, np.where(in_time, after + more[:, None], np.inf), outside)
        if self.size > 1:
            worth, less = self._worths(self.size - 1)
            in_time = self.overdue[:, None] == self.late[:, inside]
            after = self.labels.cost(self.held - counts[inside], self.size - 1) - worth[:, inside]
            best = self._best(best, np.where(in_time, after + less[:, None], np.inf), inside)
        return best

    def _best(self, best: Move, values: Floats, clients: Ints) -> Move:
        """Return the better of ``best`` and the best of these moves of one client each.

        :param values: L after each move, (deadlines, clients).
        """
        row, i = np.unravel_index(int(values.argmin()), values.shape)
        least = float(values[row, i])
        return Move(least, int(self.rows[row]), clients[[i]]) if least < best.value else best

    def swaps(self) -> Move:
        """Return the best move that swaps one client for another."""
        inside, outside = self.inside, self.outside
        if not len(outside):
            return self._none
        if len(inside) * len(outside) > _SWAPPED**2:
            inside, outside = (self._some_of(clients, _SWAPPED) for clients in (inside, outside))
        after = self.labels.cost((self.held - self.counts[inside])[:, None] + self.counts[outside], self.size)
        in_time = (self.overdue[:, None] == self.late[:, inside])[..., None] & ~self.late[:, None, outside]
        change = (self.total[:, None] - self.same[:, inside])[..., None] + self.same[:, None, outside]
        values = np.where(in_time, after + change, np.inf)
        row, i, j = np.unravel_index(int(values.argmin()), values.shape)
        return Move(float(values[row, i, j]), int(self.rows[row]), np.array([inside[i], outside[j]]))

    def exchanges(self, *, thorough: bool) -> Move:
        """Return the best exchange of up to three clients for up to three others.

        All exchanges are estimated, and the most promising ones are evaluated. The estimate assumes that the selection
        cost is proportional to the χ² distance of the summed labels from the target's, which is one matrix product for
        all pairs of leaving and joining groups, and uses v_n at the present deadline and number of clients.

        :param thorough: whether to try more groups.
        """
        if self.labels.target is None:  # without a target there is no estimate
            return self._none
        nobody, (at,) = self.task.problem.size, np.flatnonzero(self.rows == self.place)
        able = self.outside[~self.late[at, self.outside]]
        out, into = (self._groups_of_three(clients, _MANY if thorough else _SOME) for clients in (self.inside, able))
        # The index N stands for nobody, who has no labels.
        counts = np.append(self.counts, np.zeros((1, self.counts.shape[-1])), axis=0)
        root = np.sqrt(smoothed(self.labels.target))
        left = (self.held + 1.0 - counts[out].sum(axis=1)) / root
        come = counts[into].sum(axis=1) / root
        scale = float(left[0] @ root)
        left, come = (left / scale).astype(np.float32), (come / scale).astype(np.float32)
        root = root.astype(np.float32)
        apart = (2.0 * left) @ come.T
        apart += (left * left).sum(axis=-1)[:, None]
        apart += (come * come).sum(axis=-1)
        whole = (left @ root)[:, None] + come @ root
        apart /= whole * whole
        base = float(self.labels.cost(self.held, self.size))
        worth = np.append(self.same[at], 0.0)
        unit = base / max(float(apart[0, 0]) - 1.0, 1e-7)
        apart += (worth[into].sum(axis=-1) / unit).astype(np.float32)
        apart -= (worth[out].sum(axis=-1) / unit).astype(np.float32)[:, None]
        few = np.flatnonzero(apart < apart[0, 0])
        if len(few) > _TRIED:
            few = few[np.argpartition(apart.ravel()[few], _TRIED)[:_TRIED]]
        i, j = np.unravel_index(few, apart.shape)
        size = self.size + (into[j] < nobody).sum(axis=-1) - (out[i] < nobody).sum(axis=-1)
        return self._tried(out[i], into[j], size)

    def _tried(self, out: Ints, into: Ints, size: Ints) -> Move:
        """Return the best of these exchanges, each evaluated at all deadlines.

        :param out: clients that leave, and :param into: clients that join, in rows of three, with N for nobody;
        :param size: number of clients after each exchange.
        """
        counts = np.append(self.counts, np.zeros((1, self.counts.shape[-1])), axis=0)
        late = np.append(self.late, np.zeros((len(self.rows), 1), dtype=np.bool_), axis=1)
        pooled = self.held - counts[out].sum(axis=1) + counts[into].sum(axis=1)
        best = self._none
        sizes = np.unique(size[size > 0])
        self.worths.expect(self.task.objective.pruning_weight / sizes, self.mu)
        for k in sizes:
            members = np.flatnonzero(size == k)
            worth, total = self._worths(int(k))
            worth = np.append(worth, np.zeros((len(self.rows), 1)), axis=1)
            leaving, coming = out[members], into[members]
            on_time = (self.overdue[:, None] == late[:, leaving].sum(axis=-1)) & ~late[:, coming].any(axis=-1)
            change = worth[:, coming].sum(axis=-1) - worth[:, leaving].sum(axis=-1)
            values = self.labels.cost(pooled[members], int(k)) + total[:, None] + change
            values = np.where(on_time, values, np.inf)
            row, i = np.unravel_index(int(values.argmin()), values.shape)
            if values[row, i] < best.value:
                flips = np.concatenate([out[members[i]], into[members[i]]])
                best = Move(float(values[row, i]), int(self.rows[row]), flips[flips < self.task.problem.size])
        return best

    # --- random choices in large fleets -----------------------------------------------------------------------------

    def _some_of(self, clients: Ints, number: int) -> Ints:
        """Return at most ``number`` of the clients, drawn at random."""
        if len(clients) <= number:
            return clients
        return np.asarray(self.random.choice(clients, number, replace=False))

    def _groups_of_three(self, clients: Ints, number: int) -> Ints:
        """Return groups of zero to three clients as rows of three indices, in which N stands for nobody.

        If there are more than about ``number`` groups, they are drawn at random.
        """
        nobody = self.task.problem.size
        rows = np.full((1, 3), nobody, dtype=np.intp)
        for size in range(1, min(3, len(clients)) + 1):
            left = number - len(rows)
            if left <= 0:
                break
            if comb(len(clients), size) <= left:
                drawn = np.array(list(combinations(clients, size)), dtype=np.intp)
            else:
                drawn = self.random.choice(clients, (left, size))
                drawn = np.sort(drawn[(np.diff(np.sort(drawn, axis=-1), axis=-1) > 0).all(axis=-1)], axis=-1)
            rows = np.concatenate([rows, np.pad(drawn, ((0, 0), (0, 3 - size)), constant_values=nobody)])
        return rows
