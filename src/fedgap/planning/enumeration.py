"""Searching compositions under the pricing's bounds: exhaustively where rounds are few, move by move where many.

    θ − α ≥ Σ_j (r_j/R)·L_{A_j}(μ, ν) − μ·E₀/R − ν·T₀/R      at every (μ, ν) that was priced.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedgap.planning.master import Master, Progress
from fedgap.planning.pricing import Enumerated

if TYPE_CHECKING:
    from fedgap.planning.rounding import Rounder

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

Composition = tuple[tuple[int, bytes, int], ...]
"""((group, selection as bytes, rounds), …), one entry a segment."""

FINE = 1e-9
"""Relative gap below which nothing is searched any further."""
SOLVED = 1e-6
"""Relative allowance for how exactly a composition is solved, where one that was solved bounds others."""
_MOST_COMPOSITIONS = 200_000
_MOST_SOLVED = 400
_DUAL_POINTS = 24


class Search:
    """Looks for better compositions than a :class:`~fedgap.planning.rounding.Rounder` has found so far."""

    def __init__(self, rounder: "Rounder", oracles: list[Enumerated]) -> None:
        self.rounder, self.oracles = rounder, oracles

    def _tables(self) -> tuple[list[Array], Array]:
        """L_A at the priced (μ, ν) that matter most, (P, selections) a group, and what the budgets give back, (P,)."""
        master = self.rounder.master
        points = sorted(set(master.dual_points), key=lambda p: _distance(p, master))[:_DUAL_POINTS]
        tables = [
            np.stack([oracle.bounds(mu, nu)[0] for mu, nu in points]) / self.rounder.problem.rounds
            for oracle in self.oracles
        ]
        back = np.array([mu * master.energy + nu * master.delay for mu, nu in points])
        return tables, back

    def enumerate(self, progress: Progress | None) -> float:
        """Try every composition that the bounds allow to be better, best first; what no plan's θ − α is below."""
        tables, back = self._tables()
        selections = [oracle.selections for oracle in self.oracles]
        kinds = list(zip(self.rounder.groups, tables, strict=True))
        lowest = sum(group.rounds * table.min(axis=1) for group, table in kinds) - back
        best = int(np.argmax(lowest))
        allowed = (self.rounder.best.cost if self.rounder.best else np.inf) - lowest[best]
        reduced = [(group.rounds, table[best] - table[best].min()) for group, table in kinds]
        found, dropped = _multisets(reduced, allowed)
        bounds = np.full(len(found), -np.inf)
        columns = np.repeat(np.arange(len(self.rounder.groups)), [g.rounds for g in self.rounder.groups])
        for p in range(len(back)):
            value = sum(tables[g][p, found[:, i]] for i, g in enumerate(columns)) - back[p]
            bounds = np.maximum(bounds, value)
        order = np.argsort(bounds)
        solved = 0
        while solved < len(order):
            limit = self.rounder.best.cost * (1.0 - FINE) if self.rounder.best else np.inf
            if bounds[order[solved]] >= limit or solved >= _MOST_SOLVED:
                break
            chosen = order[solved : solved + 32]
            solved += len(chosen)
            self.rounder.try_all(_compositions(found[chosen], columns, selections))
            self.rounder.report(progress, "enumerating", solved)
        if self.rounder.best is None:
            return -np.inf
        # Of the compositions that were listed some are left, others were not even listed, all others are solved.
        left = bounds[order[solved]] if solved < len(order) else np.inf
        return float(min(left, lowest[best] + dropped, self.rounder.best.cost * (1.0 - SOLVED)))

    def climb(self, progress: Progress | None, width: int = 24) -> None:
        """Move rounds to other promising selections while that helps.

        :param width: moves tried at a time.
        """
        tables, back = self._tables()
        for step in range(20):
            if self.rounder.best is None or self.rounder.gap <= FINE:
                return
            before = self.rounder.best.cost
            moves = [m for m in self._moves(tables, back) if m not in self.rounder.tried][:width]
            if not moves:
                return
            self.rounder.try_all(moves)
            self.rounder.report(progress, "searching", step)
            if self.rounder.best.cost >= before * (1.0 - 1e-12):
                return

    def _moves(self, tables: list[Array], back: Array) -> list[Composition]:
        """Compositions one move from the best, whose bound leaves room to be better, best bound first."""
        assert self.rounder.best is not None
        scored: list[tuple[float, Composition]] = []
        index = [{row.tobytes(): i for i, row in enumerate(oracle.selections)} for oracle in self.oracles]
        current = {(g, key): r for g, key, r in self.rounder.best.composition}
        total = sum(r * tables[g][:, index[g][key]] for (g, key), r in current.items()) - back
        for (g, key), r in current.items():
            amounts = {1, r} | {a for a in (2, 4, 8, 16, 32) if a < r}
            for amount in amounts:
                reach = total[:, None] + amount * (tables[g] - tables[g][:, [index[g][key]]])
                bounds = reach.max(axis=0)
                for i in np.flatnonzero(bounds < self.rounder.best.cost * (1.0 - FINE)):
                    other = (g, self.oracles[g].selections[i].tobytes())
                    if other != (g, key):
                        moved = dict(current)
                        moved[(g, key)] -= amount
                        moved[other] = moved.get(other, 0) + amount
                        parts = sorted((a, b, c) for (a, b), c in moved.items() if c)
                        scored.append((float(bounds[i]), tuple(parts)))
        scored.sort(key=lambda item: item[0])
        return [composition for _, composition in scored]


def _distance(point: tuple[float, float], master: Master) -> float:
    return abs(point[0] - master.prices[0]) * master.energy + abs(point[1] - master.prices[1]) * master.delay


def _multisets(kinds: list[tuple[int, Array]], allowed: float) -> tuple[Ints, float]:
    """Index rows of all multisets (R_g selections of kind g) whose reduced costs add up to at most ``allowed``.

    Returns at most about ``_MOST_COMPOSITIONS`` rows, and what any multiset that was left out costs at least.
    """
    dropped = allowed
    rows, spent = np.zeros((1, 0), dtype=np.intp), np.zeros(1)
    for count, reduced in kinds:
        order = np.argsort(reduced, kind="stable")
        cheap = reduced[order]
        last = np.zeros(len(rows), dtype=np.intp)
        for left in range(count, 0, -1):
            # Selections come in order of reduced cost, so all that follow cost at least as much.
            reach = np.searchsorted(cheap, (allowed - spent) / left, side="right")
            width = np.maximum(reach - last, 0)
            if width.sum() > _MOST_COMPOSITIONS:
                limit = max(1, _MOST_COMPOSITIONS // max(len(rows), 1))
                cut = np.flatnonzero(width > limit)
                dropped = min(dropped, float((spent[cut] + left * cheap[last[cut] + limit]).min(initial=np.inf)))
                width = np.minimum(width, limit)
            parent = np.repeat(np.arange(len(rows)), width)
            offset = np.arange(len(parent)) - np.repeat(np.cumsum(width) - width, width)
            chosen = last[parent] + offset
            rows = np.column_stack([rows[parent], order[chosen]])
            spent, last = spent[parent] + cheap[chosen], chosen
            if len(rows) > _MOST_COMPOSITIONS:
                # Whatever is added to a row costs at least as much as its last selection.
                least = spent + (left - 1) * cheap[last]
                order_of = np.argsort(least)
                dropped = min(dropped, float(least[order_of[_MOST_COMPOSITIONS]]))
                kept = order_of[:_MOST_COMPOSITIONS]
                rows, spent, last = rows[kept], spent[kept], last[kept]
    return rows, dropped


def _compositions(rows: Ints, columns: Ints, selections: list[Bools]) -> list[Composition]:
    answers = []
    for row in rows:
        counts: dict[tuple[int, bytes], int] = {}
        for g, i in zip(columns, row, strict=True):
            key = (int(g), selections[g][i].tobytes())
            counts[key] = counts.get(key, 0) + 1
        answers.append(tuple(sorted((g, key, r) for (g, key), r in counts.items())))
    return answers
