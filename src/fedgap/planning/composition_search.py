"""Search for better compositions, exhaustively if there are few rounds, otherwise by local moves.

A composition with r_j rounds of the selection A_j has, at any prices (μ, ν), the lower bound

    θ − α ≥ Σ_j (r_j/R)·L_{A_j}(μ, ν) − μ·E₀/R − ν·T₀/R,

where L_A is the Lagrangian of a round. Compositions whose bound is not below the best plan's value need not be solved.
The exhaustive search first lists compositions as *multisets*: one selection per round, in any order, with repetitions.
"""

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.composition import Composition, Part
from fedgap.planning.incumbent import Incumbent
from fedgap.planning.master import Master
from fedgap.planning.oracles.enumerate import Enumeration
from fedgap.planning.tolerances import FINE_GAP, NO_GAIN, SOLVED

_MOST_COMPOSITIONS = 40_000
"""Maximum number of multisets that are kept, which limits the memory."""
_MOST_EXTENDED = 1_000_000
"""Maximum number of multisets that are looked at when one more round is added."""
_CHUNK = 20_000
"""Number of multisets that are extended at a time, which limits the memory."""
_MOST_SOLVED = 400
"""Maximum number of compositions that are solved; the others are only bounded."""
_BATCH = 8
"""Number of compositions that are solved before their prices are used to bound the remaining ones."""
_DUAL_POINTS = 24
"""Number of prices (μ, ν) that are used to bound compositions. They are those nearest to the program's last prices."""
_SPREAD = (0.0, 0.1, 0.5, 2.0, 8.0, 32.0, 1000.0)
"""Further prices that are used: what the whole energy or delay budget costs at them, in units of θ − α."""
_STEEP = 1000.0
"""What both budgets together cost at very high prices, which exclude compositions that cannot keep the budgets."""
_SHARES = 1.0 / (1.0 + np.exp(-np.linspace(-7.0, 7.0, 61)))
"""Shares of the energy budget in that cost."""
_MOVED = (2, 4, 8, 16, 32)
"""Numbers of rounds that a move takes from a selection, in addition to one round and all rounds."""
_CLIMBS = 20
"""Maximum number of improvements by local moves."""


class CompositionSearch:
    """Searches for compositions that are better than the incumbent, among given selections."""

    def __init__(self, incumbent: Incumbent, listed: list[Enumeration]) -> None:
        """:param listed: the selections for each kind of round."""
        self.incumbent, self.master, self.listed = incumbent, incumbent.master, listed

    def _tables(self, points: list[tuple[float, float]]) -> tuple[list[Floats], Floats]:
        """Return L_A/R of all selections at P prices (μ, ν), (P, selections) for each kind, and (μ·E₀ + ν·T₀)/R,
        (P,)."""
        rounds = self.incumbent.task.problem.rounds
        tables = [np.stack([table.bounds(mu, nu)[0] for mu, nu in points]) / rounds for table in self.listed]
        return tables, np.array([mu * self.master.energy + nu * self.master.delay for mu, nu in points])

    def _priced(self) -> list[tuple[float, float]]:
        """Return the prices at which columns were generated that are nearest to the program's last prices."""
        return sorted(set(self.master.dual_points), key=lambda p: _distance(p, self.master))[:_DUAL_POINTS]

    def _spread(self) -> list[tuple[float, float]]:
        """Return prices of all magnitudes. The program's prices give only poor bounds for expensive or infeasible
        compositions."""
        master, best = self.master, self.incumbent.best
        scale = abs(best.cost if best else master.lower_bound)
        pairs = [(a, b) for a in _SPREAD for b in _SPREAD]
        pairs += [(_STEEP * share, _STEEP * (1.0 - share)) for share in _SHARES]
        return [(a * scale / master.energy, b * scale / master.delay) for a, b in pairs]

    def enumerate(self) -> float:
        """Solve every composition that may be better according to its bound, best bound first; return a lower bound on
        all plans.

        The prices of each solved composition are used to improve the bounds of the others.
        """
        tables, back = self._tables([*self._priced(), *self._spread()])
        selections = [table.selections for table in self.listed]
        counts = [kind.rounds for kind in self.incumbent.task.kinds]
        kind_of = np.repeat(np.arange(len(counts)), counts)
        rows, bounds, dropped = _multisets(list(zip(counts, tables, strict=True)), back, self._limit)
        known: set[tuple[float, float]] = set()
        solved = 0
        while len(rows) and bounds.min() < self._limit and solved < _MOST_SOLVED:
            order = np.argsort(bounds)
            chosen, others = order[:_BATCH], order[_BATCH:]
            answers = self.incumbent.try_all(_compositions(rows[chosen], kind_of, selections))
            solved += len(chosen)
            rows, bounds = rows[others], bounds[others]
            fresh = list({prices for answer in answers if (prices := self.incumbent.prices_of(answer)) not in known})
            if fresh and len(rows):
                known.update(fresh)
                tables, back = self._tables(fresh)
                for p in range(len(fresh)):
                    value = sum(tables[k][p, rows[:, i]] for i, k in enumerate(kind_of)) - back[p]
                    bounds = np.maximum(bounds, value)
            kept = bounds < self._limit
            rows, bounds = rows[kept], bounds[kept]
            self.incumbent.report("enumerating", solved)
        if self.incumbent.best is None:
            return -np.inf
        # The bound is the least of the solved compositions, of those that were listed but not solved, and of those that
        # were dropped.
        return float(min(bounds.min(initial=np.inf), dropped, self.incumbent.best.cost * (1.0 - SOLVED)))

    @property
    def _limit(self) -> float:
        """Compositions with a lower bound above this cannot be better and are not solved."""
        return self.incumbent.best.cost * (1.0 - FINE_GAP) if self.incumbent.best else np.inf

    def climb(self, width: int) -> None:
        """Improve the best plan by moving rounds to other selections, as long as that helps.

        :param width: number of moves that are tried at a time.
        """
        tables, back = self._tables(self._priced())
        for step in range(_CLIMBS):
            if self.incumbent.best is None or self.incumbent.gap <= FINE_GAP:
                return
            before = self.incumbent.best.cost
            moves = [m for m in self._moves(tables, back) if m not in self.incumbent.tried][:width]
            if not moves:
                return
            self.incumbent.try_all(moves)
            self.incumbent.report("searching", step)
            if self.incumbent.best.cost >= before * (1.0 - NO_GAIN):
                return

    def _moves(self, tables: list[Floats], back: Floats) -> list[Composition]:
        """Return compositions that are one move away from the best and may be better, sorted by their lower bound."""
        assert self.incumbent.best is not None
        scored: list[tuple[float, Composition]] = []
        index = [{row.tobytes(): i for i, row in enumerate(table.selections)} for table in self.listed]
        parts = self.incumbent.best.composition.parts
        place = [index[part.kind][part.selected.tobytes()] for part in parts]
        total = sum(part.rounds * tables[part.kind][:, i] for part, i in zip(parts, place, strict=True)) - back
        for part, here in zip(parts, place, strict=True):
            table = tables[part.kind]
            for amount in {1, part.rounds} | {a for a in _MOVED if a < part.rounds}:
                bounds = (total[:, None] + amount * (table - table[:, [here]])).max(axis=0)
                for i in np.flatnonzero(bounds < self._limit):
                    if i != here:
                        moved = (Part(part.kind, part.selected, -amount),
                                 Part(part.kind, self.listed[part.kind].selections[i], amount))
                        scored.append((float(bounds[i]), Composition.of([*parts, *moved])))
        scored.sort(key=lambda item: item[0])
        return [composition for _, composition in scored]


def _distance(point: tuple[float, float], master: Master) -> float:
    """Return how far prices are from the program's, by what the budgets cost at both."""
    return abs(point[0] - master.prices[0]) * master.energy + abs(point[1] - master.prices[1]) * master.delay


def _multisets(kinds: list[tuple[int, Floats]], back: Floats, limit: float) -> tuple[Ints, Floats, float]:
    """List all multisets of R_g selections for each kind g whose lower bounds at all prices are below ``limit``.

    :param kinds: for each kind R_g, and L_A/R at P prices, (P, selections); :param back: (μ·E₀ + ν·T₀)/R, (P,).
    :returns: indices of selections, one row per multiset and one column per round; the best lower bound of each; and a
        lower bound on all multisets that were dropped because there are more than about ``_MOST_COMPOSITIONS``.
    """
    rest = sum((count * table.min(axis=1) for count, table in kinds), -back)
    lead = int(np.argmax(rest))
    rows, spent, bounds = np.zeros((1, 0), dtype=np.intp), np.zeros((len(back), 1)), rest.max(keepdims=True)
    dropped = np.inf
    for count, table in kinds:
        rest = rest - count * table.min(axis=1)
        # Selections are sorted by their cost at the best prices. Each is followed only by itself or later ones, so that
        # no multiset is listed twice.
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
                    dropped = min(dropped, float(bounds[start]))  # rows are sorted by their bounds
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


def _compositions(rows: Ints, kind_of: Ints, selections: list[Bools]) -> list[Composition]:
    """Turn rows of indices into selections, one per round, into compositions.

    :param kind_of: the kind of each round; :param selections: the selections of each kind.
    """
    return [
        Composition.of(Part(int(kind), selections[kind][i], 1) for kind, i in zip(kind_of, row, strict=True))
        for row in rows
    ]
