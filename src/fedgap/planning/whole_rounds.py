"""From fractions of rounds to whole rounds.

All selections in the program's support cost the same at its prices, so whole numbers near its weights lose only to
second order. For the few rounds where that is coarse, :mod:`fedgap.planning.composition_search` goes on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from fedgap.planning.composition_search import FINE, SOLVED, Composition, Search
from fedgap.planning.fixed_composition import Composed, Part, compose, compose_single, estimate
from fedgap.planning.master import Master, Progress
from fedgap.planning.oracles.bounded_search import Searched
from fedgap.planning.oracles.enumerate import Columns, Enumerated, Priced
from fedgap.planning.oracles.local_search import Climbed
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.round_kinds import Group

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

_COARSE = 1e-5
"""Relative gap above which other selections are tried where rounds are many."""
_ROUGH = 1e-3
"""The same, above the program's value, where selections are only searched by climbing; and a gap worth more proof."""
_LOST = 2e-3
"""The same above the program's value, where selections are only searched under a bound."""
_WIDTH, _NARROW = 24, 6
"""Compositions tried at a time in that search, and by ``mixture`` where selections are only searched."""
_FIRST = 64
"""Selections tried for all rounds before those that they make hopeless are dropped."""
_FEW_ROUNDS = 6
"""Up to here compositions are enumerated."""


def composition_of(segments: Sequence[Segment], groups: Sequence[Group]) -> Composition:
    """A plan's segments as a composition; with two kinds of rounds the first segment is the dense one."""
    last = len(groups) - 1
    return tuple(
        (min(i, last), segment.selected.tobytes(), segment.rounds) for i, segment in enumerate(segments)
    )


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

    def __init__(self, problem: Problem, groups: Sequence[Group], master: Master) -> None:
        self.problem, self.groups, self.master = problem, groups, master
        self.best: Best | None = None
        self.proven = -np.inf
        """What enumerating found that no plan's θ − α is below."""
        self.tried: set[Composition] = set()

    def run(self, progress: Progress | None = None) -> None:
        """Round, then search around, or enumerate where rounds are few."""
        self.report(progress, "rounding")
        for shift in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256):
            self.try_all(self._near_program(shift))
            if self.best is not None:
                break
        self._polish()
        if self.gap <= FINE:
            return
        oracles = [group.oracle for group in self.groups if isinstance(group.oracle, Enumerated)]
        whole, few = len(oracles) == len(self.groups), self.groups[-1].rounds <= _FEW_ROUNDS
        climbed = any(isinstance(group.oracle, Climbed) for group in self.groups)
        if not (whole or few or self._above_program > (_ROUGH if climbed else _LOST)):
            return
        search = Search(self, oracles if whole else self._listed())
        if few:
            proven = search.enumerate(progress)
            self.proven = proven if whole else self.proven
        elif self.gap > _COARSE:
            search.climb(progress, _NARROW if climbed else _WIDTH)
            if whole and self.gap > _ROUGH:
                self.proven = max(self.proven, self._unmixed(oracles))

    def _unmixed(self, oracles: Sequence[Enumerated]) -> float:
        """Where the best plan has one selection a kind of round: what no plan's θ − α is below, its own or another's.

        Any other has a whole round of another selection, where the program may have a part of one that the budgets do
        not carry as a whole: with that round as a kind of its own, the program's bound holds for all others.
        """
        problem, best = self.problem, self.best
        if best is None or len(best.composition) > len(self.groups):
            return -np.inf
        bound = best.cost * (1.0 - SOLVED)
        for g, key, _ in best.composition:
            own = oracles[g]
            others = own.selections[[row.tobytes() != key for row in own.selections]]
            other = Enumerated(problem, self.groups[g].units, others, float(own.grid[-1]))
            if not other.some:
                continue
            shares = np.array([*(group.rounds - (i == g) for i, group in enumerate(self.groups)), 1]) / problem.rounds
            pricing = partial(_prices, [*oracles, other])
            program = Master(shares, self.master.energy, self.master.delay, pricing, self.master.tolerance)
            program.run(start=self.master.prices)
            bound = min(bound, program.lower_bound)
        return bound

    @property
    def _above_program(self) -> float:
        """How far the best plan is above the program's value, relatively: what whole rounds cost, with its columns."""
        return (self.best.cost - self.master.objective) / abs(self.best.cost) if self.best is not None else np.inf

    def _listed(self) -> list[Enumerated]:
        """Where selections are only searched: those found so far, to enumerate. They prove nothing."""
        lists = []
        for g, group in enumerate(self.groups):
            own = self.best.composition if self.best is not None else ()
            keys = {row.tobytes() for row in self.master.column(g).selected}
            keys |= {key for kind, key, _ in own if kind == g}
            selections = np.stack([np.frombuffer(key, dtype=np.bool_) for key in sorted(keys)])
            longest = max(float(group.oracle.grid[-1]), float(group.units.shortest(selections).max()))
            lists.append(Enumerated(self.problem, group.units, selections, longest))
        return lists

    def start(self, known: Iterable[Composition]) -> None:
        """A first plan: the best single selection of those listed, or a known one. It starts the program."""
        problem, last = self.problem, len(self.groups) - 1
        self.try_all(known)
        oracle = self.groups[last].oracle
        if not isinstance(oracle, Searched):
            # Unpruned a selection costs least, so one that costs more than a plan there is already need not be tried.
            base = problem.selection_cost(oracle.selections)
            order = np.argsort(base, kind="stable")
            selections = oracle.selections[order[:_FIRST]]
            cost, _ = compose_single(problem, self.groups[last].units, selections)
            others = order[_FIRST:][base[order[_FIRST:]] < cost.min()]
            if len(others):
                more, _ = compose_single(problem, self.groups[last].units, oracle.selections[others])
                selections, cost = np.concatenate([selections, oracle.selections[others]]), np.append(cost, more)
            for i in np.argsort(cost)[:2]:
                if np.isfinite(cost[i]):
                    key = selections[i].tobytes()
                    self.try_all([tuple((g, key, group.rounds) for g, group in enumerate(self.groups))])
        self.hand_over()

    def hand_over(self) -> None:
        """The best plan's rounds become columns of the program."""
        problem = self.problem
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
        return self.prices_of(self.best.plan)

    def prices_of(self, plan: Composed) -> tuple[float, float]:
        """(μ, ν) of a composition."""
        return plan.energy_price * self.problem.rounds, plan.delay_price * self.problem.rounds

    def rescue(self) -> bool:
        """After an interruption: round whatever the program holds; whether that gave a plan."""
        if self.master.infeasible:
            return False
        self.try_all(self._near_program(0))
        return self.best is not None

    def report(self, progress: Progress | None, what: str, step: int = 0) -> None:
        """Tell where the search stands."""
        if progress is not None:
            progress(what, step, self.best.cost if self.best else np.inf, self.lower_bound)

    @property
    def lower_bound(self) -> float:
        """No plan's θ − α is below this."""
        return max(self.master.lower_bound, self.proven)

    @property
    def gap(self) -> float:
        """How far the best plan is above the bound, relatively."""
        if self.best is None:
            return np.inf
        return (self.best.cost - self.lower_bound) / max(abs(self.best.cost), 1e-300)

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
            if self.best is None or self.gap <= 1e-7 or len(self.best.composition) < 2:
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

    def try_all(self, candidates: Iterable[Composition]) -> list[Composed]:
        """Solve compositions not tried before; keep the best. Returns those that keep the budgets."""
        answers = []
        fresh = [c for c in dict.fromkeys(candidates) if c not in self.tried]
        self.tried.update(fresh)
        single = [c for c in fresh if len(c) == 1]
        if len(single) > 1:  # one selection in all rounds: one vectorised call finds the best
            selected = np.stack([np.frombuffer(c[0][1], dtype=np.bool_) for c in single])
            cost, _ = compose_single(self.problem, self.groups[-1].units, selected)
            fresh = [single[int(cost.argmin())], *(c for c in fresh if len(c) > 1)]
        for composition in fresh:
            answer = compose(self.problem, self._parts(composition), self.master.prices)
            if answer is None:
                continue
            answers.append(answer)
            if self.best is None or answer.cost < self.best.cost:
                self.best = Best(composition, answer)
        return answers


def _prices(kinds: Sequence[Enumerated], mu: float, nu: float, allowed: float) -> list[Priced]:
    return [kind.price(mu, nu, allowed) for kind in kinds]


def _moved(vector: tuple[int, ...], i: int, j: int, amount: int) -> tuple[int, ...]:
    return tuple(r - amount * (n == i) + amount * (n == j) for n, r in enumerate(vector))


def _largest_remainder(weights: Array, total: int) -> Ints:
    scaled = weights * total / weights.sum()
    floors = np.floor(scaled).astype(np.intp)
    order = np.argsort(-(scaled - floors), kind="stable")
    floors[order[: total - int(floors.sum())]] += 1
    return np.asarray(floors)
