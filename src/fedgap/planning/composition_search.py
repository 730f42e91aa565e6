"""Searching compositions under the pricing's bounds: exhaustively where rounds are few, move by move where many.

    θ − α ≥ Σ_j (r_j/R)·L_{A_j}(μ, ν) − μ·E₀/R − ν·T₀/R      at every (μ, ν) that was priced.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedgap.planning.master import Master, Progress
from fedgap.planning.oracles.enumerate import Enumerated

if TYPE_CHECKING:
    from fedgap.planning.whole_rounds import Rounder

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

Composition = tuple[tuple[int, bytes, int], ...]
"""((group, selection as bytes, rounds), …), one entry a segment."""

FINE = 1e-9
"""Relative gap below which nothing is searched any further."""
SOLVED = 1e-6
"""Relative allowance for how exactly a composition is solved, where one that was solved bounds others."""
_MOST_COMPOSITIONS = 40_000
_MOST_EXTENDED = 1_000_000
"""Multisets looked at, with so many selections, before the rest is given up."""
_CHUNK = 20_000
_MOST_SOLVED = 400
_BATCH = 8
"""Compositions solved before their own prices bound those left."""
_DUAL_POINTS = 24
_SPREAD = (0.0, 0.1, 0.5, 2.0, 8.0, 32.0, 1000.0)
"""What all energy and all delay cost at the prices that compositions are bounded at, in units of θ − α."""
_STEEP = 1000.0
_SHARES = 1.0 / (1.0 + np.exp(-np.linspace(-7.0, 7.0, 61)))
"""Prices so steep rule out what cannot keep the budgets, if energy has the right share in them."""


class Search:
    """Looks for better compositions than a :class:`~fedgap.planning.whole_rounds.Rounder` has found so far."""

    def __init__(self, rounder: "Rounder", oracles: list[Enumerated]) -> None:
        self.rounder, self.oracles = rounder, oracles

    def _tables(self, points: list[tuple[float, float]]) -> tuple[list[Array], Array]:
        """L_A at some (μ, ν), (P, selections) a group, and what the budgets give back, (P,)."""
        master = self.rounder.master
        tables = [
            np.stack([oracle.bounds(mu, nu)[0] for mu, nu in points]) / self.rounder.problem.rounds
            for oracle in self.oracles
        ]
        back = np.array([mu * master.energy + nu * master.delay for mu, nu in points])
        return tables, back

    def _priced(self) -> list[tuple[float, float]]:
        """The priced (μ, ν) that matter most."""
        master = self.rounder.master
        return sorted(set(master.dual_points), key=lambda p: _distance(p, master))[:_DUAL_POINTS]

    def _spread(self) -> list[tuple[float, float]]:
        """(μ, ν) of all magnitudes: the program's own say little of compositions that must pay far more, or cannot."""
        master = self.rounder.master
        scale = abs(self.rounder.best.cost if self.rounder.best else master.lower_bound)
        pairs = [(a, b) for a in _SPREAD for b in _SPREAD]
        pairs += [(_STEEP * share, _STEEP * (1.0 - share)) for share in _SHARES]
        return [(a * scale / master.energy, b * scale / master.delay) for a, b in pairs]

    def enumerate(self, progress: Progress | None) -> float:
        """Try every composition that the bounds allow to be better, best first; what no plan's θ − α is below.

        Each that is solved has prices of its own, which bound the others as well.
        """
        tables, back = self._tables([*self._priced(), *self._spread()])
        selections = [oracle.selections for oracle in self.oracles]
        counts = [group.rounds for group in self.rounder.groups]
        columns = np.repeat(np.arange(len(counts)), counts)
        found, bounds, dropped = _multisets(list(zip(counts, tables, strict=True)), back, self._limit)
        known: set[tuple[float, float]] = set()
        solved = 0
        while len(found) and bounds.min() < self._limit and solved < _MOST_SOLVED:
            order = np.argsort(bounds)
            chosen, others = order[:_BATCH], order[_BATCH:]
            answers = self.rounder.try_all(_compositions(found[chosen], columns, selections))
            solved += len(chosen)
            found, bounds = found[others], bounds[others]
            fresh = list({prices for answer in answers if (prices := self.rounder.prices_of(answer)) not in known})
            if fresh and len(found):
                known.update(fresh)
                tables, back = self._tables(fresh)
                for p in range(len(fresh)):
                    value = sum(tables[g][p, found[:, i]] for i, g in enumerate(columns)) - back[p]
                    bounds = np.maximum(bounds, value)
            kept = bounds < self._limit
            found, bounds = found[kept], bounds[kept]
            self.rounder.report(progress, "enumerating", solved)
        if self.rounder.best is None:
            return -np.inf
        # Of the compositions that were listed some are left, others were not even listed, all others are solved.
        return float(min(bounds.min(initial=np.inf), dropped, self.rounder.best.cost * (1.0 - SOLVED)))

    @property
    def _limit(self) -> float:
        """A composition bounded by this is not worth solving."""
        return self.rounder.best.cost * (1.0 - FINE) if self.rounder.best else np.inf

    def climb(self, progress: Progress | None, width: int) -> None:
        """Move rounds to other promising selections while that helps.

        :param width: moves tried at a time.
        """
        tables, back = self._tables(self._priced())
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


def _multisets(kinds: list[tuple[int, Array]], back: Array, limit: float) -> tuple[Ints, Array, float]:
    """Index rows of all multisets (R_g selections of kind g) that no (μ, ν) bounds by ``limit``, and their bounds.

    :param kinds: R_g and L_A, (P, selections); :param back: (P,), what the budgets give back.

    Returns about ``_MOST_COMPOSITIONS`` rows at most, and what any multiset that was left out for that costs at least.
    """
    rest = sum((count * table.min(axis=1) for count, table in kinds), -back)
    lead = int(np.argmax(rest))
    rows, spent, bounds = np.zeros((1, 0), dtype=np.intp), np.zeros((len(back), 1)), rest.max(keepdims=True)
    dropped = np.inf
    for count, table in kinds:
        rest = rest - count * table.min(axis=1)
        # Selections come in order of what they cost at the best (μ, ν); each is followed by itself or later ones.
        order = np.argsort(table[lead], kind="stable")
        cost = table[:, order]
        least = np.minimum.accumulate(cost[:, ::-1], axis=1)[:, ::-1]
        last = np.zeros(len(rows), dtype=np.intp)
        for left in range(count, 0, -1):
            reach = np.searchsorted(cost[lead], (limit - rest[lead] - spent[lead]) / left, side="right")
            width = np.maximum(reach - last, 0)
            parts, work, size = [], 0, 0
            start = 0
            while start < len(rows):
                if work > _MOST_EXTENDED or size > _MOST_COMPOSITIONS:
                    dropped = min(dropped, float(bounds[start]))  # rows come in order of their bounds
                    break
                stop = start + max(1, int(np.searchsorted(np.cumsum(width[start:]), _CHUNK)))
                parent = np.repeat(np.arange(start, min(stop, len(rows))), width[start:stop])
                first = np.cumsum(width[start:stop]) - width[start:stop]
                chosen = last[parent] + np.arange(len(parent)) - np.repeat(first, width[start:stop])
                work, start = work + len(parent), stop
                paid = spent[:, parent] + cost[:, chosen]
                bound = (paid + (left - 1) * least[:, chosen] + rest[:, None]).max(axis=0)
                kept = np.flatnonzero(bound < limit)
                size += len(kept)
                parts.append((parent[kept], chosen[kept], paid[:, kept], bound[kept]))
            parent, last, bounds = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 3))
            spent = np.concatenate([part[2] for part in parts], axis=1)
            ranked = np.argsort(bounds, kind="stable")
            rows = np.column_stack([rows[parent], order[last]])[ranked]
            spent, last, bounds = spent[:, ranked], last[ranked], bounds[ranked]
            if not len(rows):
                return np.zeros((0, sum(count for count, _ in kinds)), dtype=np.intp), np.zeros(0), dropped
    return rows, bounds, dropped


def _compositions(rows: Ints, columns: Ints, selections: list[Bools]) -> list[Composition]:
    answers = []
    for row in rows:
        counts: dict[tuple[int, bytes], int] = {}
        for g, i in zip(columns, row, strict=True):
            key = (int(g), selections[g][i].tobytes())
            counts[key] = counts.get(key, 0) + 1
        answers.append(tuple(sorted((g, key, r) for (g, key), r in counts.items())))
    return answers
