"""From fractions of rounds to whole rounds.

All selections in the program's support cost the same at its prices, so whole numbers near its weights lose only to
second order; for the few rounds where that is coarse, compositions are enumerated under the pricing's bounds:

    θ − α ≥ Σ_j (r_j/R)·L_{A_j}(μ, ν) − μ·E₀/R − ν·T₀/R      at every (μ, ν) that was priced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedgap.planning.composition import Composed, Part, compose, compose_single, estimate
from fedgap.planning.master import Master, Progress
from fedgap.planning.plan import Segment
from fedgap.planning.pricing import Columns, Enumerated, Oracle
from fedgap.planning.problem import Problem
from fedgap.planning.units import Units

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

Composition = tuple[tuple[int, bytes, int], ...]
"""((group, selection as bytes, rounds), …), one entry a segment."""

_FINE = 1e-9
"""Relative gap below which nothing is searched any further."""
_COARSE = 1e-5
"""Relative gap above which other selections are tried where rounds are many."""
_FEW_ROUNDS = 6
_MOST_COMPOSITIONS = 200_000
_MOST_SOLVED = 400
_DUAL_POINTS = 24


def composition_of(segments: Sequence[Segment], groups: Sequence["_Group"]) -> Composition:
    """A plan's segments as a composition; with two kinds of rounds the first segment is the dense one."""
    last = len(groups) - 1
    return tuple(
        (min(i, last), segment.selected.tobytes(), segment.rounds) for i, segment in enumerate(segments)
    )


class _Group(Protocol):
    @property
    def rounds(self) -> int: ...
    @property
    def units(self) -> Units: ...
    @property
    def dense(self) -> bool: ...
    @property
    def oracle(self) -> Oracle: ...


@dataclass(frozen=True, eq=False)
class Best:
    """The best composition so far."""

    composition: Composition
    plan: Composed

    @property
    def rows(self) -> tuple[tuple[Segment, ...], Array]:
        """Its segments and their deadlines, as the composition lists them."""
        return self.plan.segments, self.plan.deadline

    @property
    def cost(self) -> float:
        """θ − α."""
        return self.plan.cost


class Rounder:
    """Searches whole-round compositions around a solved :class:`Master`."""

    def __init__(self, problem: Problem, groups: Sequence[_Group], master: Master) -> None:
        self.problem, self.groups, self.master = problem, groups, master
        self.best: Best | None = None
        self.proven = False
        self._tried: set[Composition] = set()

    def run(self, progress: Progress | None = None) -> None:
        """Round, then search around, or enumerate where rounds are few."""
        self._report(progress, "rounding")
        for shift in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256):
            self.try_all(self._near_program(shift))
            if self.best is not None:
                break
        self._polish()
        if self._gap() <= _FINE:
            self.proven = True
            return
        enumerable = all(isinstance(group.oracle, Enumerated) for group in self.groups)
        if enumerable and self.groups[-1].rounds <= _FEW_ROUNDS:
            self._enumerate(progress)
        elif enumerable and self._gap() > _COARSE:
            self._climb(progress)
        self.proven = self.proven or self._gap() <= _FINE

    def start(self, known: Iterable[Composition]) -> None:
        """A first plan: the best single selection where all can be tried, or a known one. It starts the program."""
        problem, last = self.problem, len(self.groups) - 1
        self.try_all(known)
        oracle = self.groups[last].oracle
        if isinstance(oracle, Enumerated):
            selections = oracle.selections
            cost, _ = compose_single(problem, self.groups[last].units, selections)
            for i in np.argsort(cost)[:2]:
                if np.isfinite(cost[i]):
                    key = selections[i].tobytes()
                    self.try_all([tuple((g, key, group.rounds) for g, group in enumerate(self.groups))])
        if self.best is not None:
            for (g, _, _), segment, deadline in zip(self.best.composition, *self.best.rows, strict=True):
                cost = problem.selection_cost(segment.selected[None])
                mean = segment.pruning_ratio[segment.selected].mean()
                energy = np.array([float(problem.cost(segment).energy_j)])
                column = Columns(segment.selected[None], cost + problem.pruning_weight * mean, energy, deadline[None])
                self.master.add(g, column)

    @property
    def best_prices(self) -> tuple[float, float] | None:
        """(μ, ν) of the best plan so far."""
        if self.best is None:
            return None
        return self.best.plan.energy_price * self.problem.rounds, self.best.plan.delay_price * self.problem.rounds

    def rescue(self) -> bool:
        """After an interruption: round whatever the program holds; whether that gave a plan."""
        if self.master.infeasible:
            return False
        self.try_all(self._near_program(0))
        return self.best is not None

    def _report(self, progress: Progress | None, what: str, step: int = 0) -> None:
        if progress is not None:
            progress(what, step, self.best.cost if self.best else np.inf, self.master.lower_bound)

    def _gap(self) -> float:
        if self.best is None:
            return np.inf
        return (self.best.cost - self.master.lower_bound) / max(abs(self.best.cost), 1e-300)

    # --- candidates ------------------------------------------------------------------------------------------------

    def _support(self, group: int) -> dict[bytes, float]:
        """Selections in the program's support with their rounds."""
        columns = self.master.column(group)
        weights = self.master.weights[group] * self.problem.rounds
        support: dict[bytes, float] = {}
        for i in np.flatnonzero(weights > 1e-9 * self.problem.rounds):
            key = columns.selected[i].tobytes()
            support[key] = support.get(key, 0.0) + float(weights[i])
        return dict(sorted(support.items(), key=lambda item: -item[1]))

    def _near_program(self, shift: int) -> list[Composition]:
        """Whole rounds near the program's weights, with ``shift`` rounds moved between each pair of selections."""
        choices = []
        for g, group in enumerate(self.groups):
            support = self._support(g)
            keys, weights = list(support), np.array(list(support.values()))
            floors = np.floor(weights + 1e-6).astype(int)
            missing = group.rounds - int(floors.sum())
            vectors = {tuple(_largest_remainder(weights, group.rounds))}
            if 0 <= missing <= len(keys):
                places = np.arange(len(keys))
                vectors |= {tuple(floors + np.isin(places, up)) for up in combinations(places, missing)}
            if shift:
                vectors |= {
                    _moved(vector, i, j, shift)
                    for vector in list(vectors)
                    for i in range(len(keys))
                    for j in range(len(keys))
                    if i != j and vector[i] >= shift
                }
            choices.append([tuple((g, key, int(r)) for key, r in zip(keys, v, strict=True) if r > 0) for v in vectors])
        return [tuple(part for parts in combination for part in parts) for combination in product(*choices)]

    def _polish(self) -> None:
        """Move rounds between the best composition's own segments while that helps."""
        for _ in range(10):
            if self.best is None or self._gap() <= 1e-7 or len(self.best.composition) < 2:
                return
            best = self.best
            current = np.array([r for _, _, r in best.composition], dtype=np.float64)
            kinds = np.array([g for g, _, _ in best.composition])
            moves = [
                amount * (np.eye(len(current))[j] - np.eye(len(current))[i])
                for i in range(len(current))
                for j in range(len(current))
                for amount in (1, 2, 4, 8)
                if i != j and kinds[i] == kinds[j] and current[i] > amount
            ]
            if not moves:
                return
            cost = estimate(self.problem, self._parts(best.composition), current + np.array(moves), best.plan.deadline)
            order = [i for i in np.argsort(cost)[:3] if cost[i] < best.cost]
            self.try_all(
                tuple((g, key, int(r)) for (g, key, _), r in zip(best.composition, current + moves[i], strict=True))
                for i in order
            )
            if self.best.cost >= best.cost * (1.0 - 1e-12):
                return

    def _parts(self, composition: Composition) -> list[Part]:
        return [Part(self.groups[g].units, np.frombuffer(key, dtype=np.bool_), r) for g, key, r in composition]

    def try_all(self, candidates: Iterable[Composition]) -> None:
        """Solve compositions not tried before; keep the best."""
        fresh = [c for c in dict.fromkeys(candidates) if c not in self._tried]
        self._tried.update(fresh)
        single = [c for c in fresh if len(c) == 1]
        if len(single) > 1:  # one selection in all rounds: one vectorised call finds the best
            selected = np.stack([np.frombuffer(c[0][1], dtype=np.bool_) for c in single])
            cost, _ = compose_single(self.problem, self.groups[-1].units, selected)
            fresh = [single[int(cost.argmin())], *(c for c in fresh if len(c) > 1)]
        for composition in fresh:
            answer = compose(self.problem, self._parts(composition), self.master.prices)
            if answer is not None and (self.best is None or answer.cost < self.best.cost):
                self.best = Best(composition, answer)

    # --- searching -------------------------------------------------------------------------------------------------

    def _tables(self) -> tuple[list[Array], Array]:
        """L_A at the priced (μ, ν) that matter most, (P, selections) a group, and what the budgets give back, (P,)."""
        points = sorted(set(self.master.dual_points), key=lambda p: _distance(p, self.master))[:_DUAL_POINTS]
        tables = []
        for group in self.groups:
            assert isinstance(group.oracle, Enumerated)
            tables.append(np.stack([group.oracle.bounds(mu, nu)[0] for mu, nu in points]) / self.problem.rounds)
        back = np.array([mu * self.master.energy + nu * self.master.delay for mu, nu in points])
        return tables, back

    def _enumerate(self, progress: Progress | None) -> None:
        """Every composition that the bounds allow to be better, best first; ``proven`` when all were ruled out."""
        tables, back = self._tables()
        selections = [group.oracle.selections for group in self.groups]  # type: ignore[attr-defined]
        best = int(np.argmax(sum(g.rounds * t.min(axis=1) for g, t in zip(self.groups, tables, strict=True)) - back))
        start = sum(g.rounds * t[best].min() for g, t in zip(self.groups, tables, strict=True)) - back[best]
        allowed = (self.best.cost if self.best else np.inf) - start
        reduced = [(g.rounds, t[best] - t[best].min()) for g, t in zip(self.groups, tables, strict=True)]
        found, complete = _multisets(reduced, allowed)
        bounds = np.full(len(found), -np.inf)
        columns = np.repeat(np.arange(len(self.groups)), [g.rounds for g in self.groups])
        for p in range(len(back)):
            value = sum(tables[g][p, found[:, i]] for i, g in enumerate(columns)) - back[p]
            bounds = np.maximum(bounds, value)
        order = np.argsort(bounds)
        solved = 0
        while solved < len(order):
            limit = self.best.cost * (1.0 - _FINE) if self.best else np.inf
            if bounds[order[solved]] >= limit:
                break
            if solved >= _MOST_SOLVED:
                complete = False
                break
            chosen = order[solved : solved + 32]
            solved += len(chosen)
            self.try_all(_compositions(found[chosen], columns, selections))
            self._report(progress, "enumerating", solved)
        self.proven = complete

    def _climb(self, progress: Progress | None) -> None:
        """Move single rounds to other promising selections while that helps."""
        tables, back = self._tables()
        for step in range(20):
            if self.best is None or self._gap() <= _FINE:
                return
            before = self.best.cost
            moves = [m for m in self._moves(tables, back) if m not in self._tried][:24]
            if not moves:
                return
            self.try_all(moves)
            self._report(progress, "searching", step)
            if self.best.cost >= before * (1.0 - 1e-12):
                return

    def _moves(self, tables: list[Array], back: Array) -> list[Composition]:
        """Compositions one move from the best, whose bound leaves room to be better, best bound first."""
        assert self.best is not None
        scored: list[tuple[float, Composition]] = []
        index = [
            {row.tobytes(): i for i, row in enumerate(group.oracle.selections)}  # type: ignore[attr-defined]
            for group in self.groups
        ]
        current = {(g, key): r for g, key, r in self.best.composition}
        total = sum(r * tables[g][:, index[g][key]] for (g, key), r in current.items()) - back
        for (g, key), r in current.items():
            amounts = {1, r} | {a for a in (2, 4, 8, 16, 32) if a < r}
            for amount in amounts:
                reach = total[:, None] + amount * (tables[g] - tables[g][:, [index[g][key]]])
                bounds = reach.max(axis=0)
                for i in np.flatnonzero(bounds < self.best.cost * (1.0 - _FINE)):
                    other = (g, self.groups[g].oracle.selections[i].tobytes())  # type: ignore[attr-defined]
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


def _moved(vector: tuple[int, ...], i: int, j: int, amount: int) -> tuple[int, ...]:
    return tuple(r - amount * (n == i) + amount * (n == j) for n, r in enumerate(vector))


def _largest_remainder(weights: Array, total: int) -> Ints:
    scaled = weights * total / weights.sum()
    floors = np.floor(scaled).astype(np.intp)
    order = np.argsort(-(scaled - floors), kind="stable")
    floors[order[: total - int(floors.sum())]] += 1
    return np.asarray(floors)


def _multisets(kinds: list[tuple[int, Array]], allowed: float) -> tuple[Ints, bool]:
    """Index rows of all multisets (R_g selections of kind g) whose reduced costs add up to at most ``allowed``.

    Returns at most about ``_MOST_COMPOSITIONS`` rows, cheapest first, and whether that is all of them.
    """
    complete = True
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
                complete = False
                limit = max(1, _MOST_COMPOSITIONS // max(len(rows), 1))
                width = np.minimum(width, limit)
            parent = np.repeat(np.arange(len(rows)), width)
            offset = np.arange(len(parent)) - np.repeat(np.cumsum(width) - width, width)
            chosen = last[parent] + offset
            rows = np.column_stack([rows[parent], order[chosen]])
            spent, last = spent[parent] + cheap[chosen], chosen
            if len(rows) > _MOST_COMPOSITIONS:
                complete = False
                kept = np.argsort(spent)[:_MOST_COMPOSITIONS]
                rows, spent, last = rows[kept], spent[kept], last[kept]
    return rows, complete


def _compositions(rows: Ints, columns: Ints, selections: list[Bools]) -> list[Composition]:
    answers = []
    for row in rows:
        counts: dict[tuple[int, bytes], int] = {}
        for g, i in zip(columns, row, strict=True):
            key = (int(g), selections[g][i].tobytes())
            counts[key] = counts.get(key, 0) + 1
        answers.append(tuple(sorted((g, key, r) for (g, key), r in counts.items())))
    return answers
