"""The linear program of a world whose rows are all known: in which rows to train, and with which rounds.

y is how much of each known round is trained, and q_row whether a row is reached: 1 in the first R rows, and then never
rising from row to row. The program for R rounds is

    min Σ y·cost   s.t.   Σ y·joules ≤ E₀,   Σ y·seconds + step_s·(Σ q − R) ≤ T₀,   Σ y = R,   Σ_{row} y ≤ q_{row}.
"""

from collections.abc import Sequence

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.policies.row_program import Shared, shared_rounds

_SAME = 1e-3
"""Two rounds whose features differ by at most this share count as equal."""

_REACH = 2
"""The program uses the first rows of the world, this many times as many as rounds."""


class KnownRows:
    """The known rounds of each row. A round is given by 1/k, KL, mean pruning ratio, joules and seconds, (5, S)."""

    def __init__(self, first: Sequence[int], budgets: tuple[float, float], step_s: float) -> None:
        """:param first: for each row of the world, the number of the first row that is equal to it."""
        self.first, self.budgets, self.step_s = first, budgets, step_s
        self.known = {row: np.zeros((5, 0)) for row in first}

    def add(self, row: int, features: Floats) -> None:
        """Add rounds of a row that are not known yet, (5, S)."""
        known = self.known[row]
        apart = np.abs(known[:, :, None] - features[:, None]) > _SAME * np.abs(features[:, None])
        self.known[row] = np.hstack([known, features[:, apart.any(axis=0).all(axis=0)]])

    def shared(self, weights: Floats, rounds: int) -> Shared:
        """Solve the program for a number of rounds. Objective and features of the result are those of a mean round.

        :param weights: what 1/k, KL and the mean pruning ratio cost, (3,).
        """
        rows = [self.known[row] for row in self.first[: _REACH * rounds]]
        every, count = np.hstack(rows), len(rows)
        width = every.shape[1]
        if rounds > count or not width:
            return Shared(np.inf)
        energy, delay = (budget / rounds for budget in self.budgets)
        step, further = self.step_s / delay, count - rounds
        table = np.zeros((3 + count + further, width + further))
        table[:3, :width] = every[3] / energy, every[4] / delay, np.ones(width)
        table[1, width:] = step
        table[3 : 3 + count, :width] = np.repeat(np.eye(count), [row.shape[1] for row in rows], axis=1)
        table[3 + rounds : 3 + count, width:] = -np.eye(further)
        table[3 + count :, width:] = np.eye(further) - np.eye(further, k=-1)
        lower, upper = np.full(len(table), -np.inf), np.zeros(len(table))
        lower[2], upper[: 3 + rounds], upper[:3] = rounds, 1.0, rounds
        upper[3 + count : 4 + count] = 1.0
        return shared_rounds(weights, every, table, (lower, upper), (energy, delay), rounds=rounds)
