"""From the fractions of rounds in the linear program's solution to a plan with whole rounds.

All selections that the program uses cost the same at its prices, so that rounding its numbers of rounds to nearby
whole numbers loses little (only to second order). If there are so few rounds that this is too coarse,
:mod:`fedgap.planning.composition_search` continues.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, product

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.composition import Composition, Part
from fedgap.planning.composition_search import CompositionSearch
from fedgap.planning.fixed_composition import compose_single, estimate
from fedgap.planning.incumbent import Incumbent
from fedgap.planning.master import Master, Pricing
from fedgap.planning.oracles.enumerate import Enumeration
from fedgap.planning.oracles.oracle import Oracle
from fedgap.planning.tolerances import (
    COARSE_GAP,
    ENUMERATED_ROUNDS,
    LOST_GAP,
    NO_GAIN,
    POLISHED_GAP,
    ROUGH_GAP,
    SOLVED,
    SUPPORT,
)

_WIDTH, _NARROW = 24, 6
"""Number of compositions that are tried at a time, in general and if selections come from a local search."""
_FIRST = 64
"""Number of selections that are first tried for all rounds; of the others only those that may be better are tried."""
_SHIFTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of rounds that are moved between selections, one after another, until a composition keeps the budgets."""
_MOVED = (1, 2, 4, 8)
"""Numbers of rounds that are moved between two parts to improve a composition."""
_POLISHES = 10
"""Maximum number of such improvements."""
_WHOLE = 1e-6
"""A weight that is below a whole number of rounds by less than this counts as that number, because the program
rounds."""


class WholeRounds:
    """Searches compositions of whole rounds around a solved :class:`Master`."""

    def __init__(self, incumbent: Incumbent, oracles: Sequence[Oracle]) -> None:
        self.incumbent, self.oracles = incumbent, oracles
        self.task, self.master, self.kinds = incumbent.task, incumbent.master, incumbent.task.kinds

    def start(self, known: Iterable[Composition]) -> None:
        """Find a first plan: a known one, or the best one with a single selection that the oracle lists.

        Its rounds become the first columns of the program.
        """
        self.incumbent.try_all(known)
        selections = self.oracles[-1].selections
        if len(selections):
            # A selection costs least if nothing is pruned. If it then costs more than a known plan, it is not tried.
            base = self.task.objective.selection_cost(selections)
            order = np.argsort(base, kind="stable")
            tried = selections[order[:_FIRST]]
            cost, _ = compose_single(self.task, tried)
            others = order[_FIRST:][base[order[_FIRST:]] < cost.min()]
            if len(others):
                more, _ = compose_single(self.task, selections[others])
                tried, cost = np.concatenate([tried, selections[others]]), np.append(cost, more)
            for i in np.argsort(cost)[:2]:
                if np.isfinite(cost[i]):
                    self.incumbent.try_all([self.same_everywhere(tried[i])])
        self.incumbent.hand_over()

    def same_everywhere(self, selected: Bools) -> Composition:
        """Return the composition with one selection in all rounds."""
        return Composition(tuple(Part(k, selected, kind.rounds) for k, kind in enumerate(self.kinds)))

    def run(self) -> None:
        """Round the program's solution and improve it; then search further, by enumeration if there are few rounds."""
        incumbent = self.incumbent
        incumbent.report("rounding")
        for shift in _SHIFTS:
            incumbent.try_all(self._near_program(shift))
            if incumbent.best is not None:
                break
        self._polish()
        if incumbent.good_enough or incumbent.near_program:
            return
        complete = [oracle.enumeration for oracle in self.oracles if oracle.enumeration is not None]
        whole, few = len(complete) == len(self.oracles), self.kinds[-1].rounds <= ENUMERATED_ROUNDS
        local = not whole and self.task.objective.additive is None
        if not (whole or few or incumbent.above_program > (ROUGH_GAP if local else LOST_GAP)):
            return
        search = CompositionSearch(incumbent, complete if whole else self._listed())
        if few:
            proven = search.enumerate()
            incumbent.proven = proven if whole else incumbent.proven
        elif incumbent.gap > COARSE_GAP:
            search.climb(_NARROW if local else _WIDTH)
            if whole and incumbent.gap > ROUGH_GAP:
                incumbent.proven = max(incumbent.proven, self._unmixed(complete))

    def rescue(self) -> None:
        """Round the program's present solution after an interruption, so that there is a plan."""
        if not self.master.infeasible:
            self.incumbent.try_all(self._near_program(0))

    def _unmixed(self, complete: Sequence[Enumeration]) -> float:
        """Return a lower bound on all plans if the best plan has one selection per kind of round, otherwise −∞.

        Any other plan has at least one whole round with another selection. The program, however, may use a fraction of
        such a round, although the budgets do not allow a whole one. If that round is made a kind of its own, with one
        round, the program's bound is higher, and it holds for all other plans.
        """
        problem, best = self.task.problem, self.incumbent.best
        if best is None or len(best.composition) > len(self.kinds):
            return -np.inf
        bound = best.cost * (1.0 - SOLVED)
        for part in best.composition.parts:
            listed = complete[part.kind]
            others = listed.selections[(listed.selections != part.selected).any(axis=-1)]
            other = Enumeration(self.task, listed.curves, others, float(listed.grid[-1]))
            if not other.usable:
                continue
            counts = [*(kind.rounds - (k == part.kind) for k, kind in enumerate(self.kinds)), 1]
            program = Master(np.array(counts) / problem.rounds, self.master.energy, self.master.delay,
                             pricing_of([*complete, other]), self.master.tolerance)
            program.run(start=self.master.prices)
            bound = min(bound, program.lower_bound)
        return bound

    def _listed(self) -> list[Enumeration]:
        """Return the selections found so far as enumerations, for fleets whose selections cannot all be listed.

        A search among them proves no bound.
        """
        lists = []
        for k, (kind, oracle) in enumerate(zip(self.kinds, self.oracles, strict=True)):
            rows = [self.master.column(k).selected]
            if self.incumbent.best is not None:
                rows += [part.selected[None] for part in self.incumbent.best.composition.parts if part.kind == k]
            keys = sorted({row.tobytes() for row in np.concatenate(rows)})
            selections = np.stack([np.frombuffer(key, dtype=np.bool_) for key in keys])
            longest = max(oracle.longest_s, float(kind.curves.shortest(selections).max()))
            lists.append(Enumeration(self.task, kind.curves, selections, longest))
        return lists

    # --- candidates ------------------------------------------------------------------------------------------------

    def _support(self, kind: int) -> tuple[list[Bools], Floats]:
        """Return the selections that the program uses for a kind, most used first, and their (fractional) rounds."""
        columns = self.master.column(kind)
        weights = self.master.weights[kind] * self.task.problem.rounds
        support: dict[bytes, float] = {}
        for i in np.flatnonzero(weights > SUPPORT * self.task.problem.rounds):
            key = columns.selected[i].tobytes()
            support[key] = support.get(key, 0.0) + float(weights[i])
        ranked = sorted(support.items(), key=lambda item: -item[1])
        return [np.frombuffer(key, dtype=np.bool_) for key, _ in ranked], np.array([weight for _, weight in ranked])

    def _near_program(self, shift: int) -> list[Composition]:
        """Return compositions with whole rounds near the program's weights.

        :param shift: if not 0, also return compositions with this many rounds moved from one selection to another.
        """
        choices = []
        for k, kind in enumerate(self.kinds):
            selections, weights = self._support(k)
            floors = np.floor(weights + _WHOLE).astype(int)
            missing, places = kind.rounds - int(floors.sum()), range(len(selections))
            vectors = {tuple(_largest_remainder(weights, kind.rounds).tolist())}
            if 0 <= missing <= len(selections):
                vectors |= {tuple((floors + np.isin(places, up)).tolist()) for up in combinations(places, missing)}
            if shift:
                vectors |= {
                    _moved(vector, i, j, shift)
                    for vector in list(vectors)
                    for i, j in product(places, places)
                    if i != j and vector[i] >= shift
                }
            choices.append([
                tuple(Part(k, selected, rounds) for selected, rounds in zip(selections, vector, strict=True) if rounds)
                for vector in vectors
            ])
        return [Composition(tuple(part for parts in combined for part in parts)) for combined in product(*choices)]

    def _polish(self) -> None:
        """Move rounds between the parts of the best composition as long as that helps."""
        for _ in range(_POLISHES):
            best = self.incumbent.best
            closed = self.incumbent.gap <= POLISHED_GAP or self.incumbent.near_program
            if best is None or closed or len(best.composition) < 2:
                return
            parts, unit = best.composition.parts, np.eye(len(best.composition))
            current = np.array([part.rounds for part in parts], dtype=np.float64)
            moves = [
                amount * (unit[j] - unit[i])
                for i, j in product(range(len(parts)), range(len(parts)))
                for amount in _MOVED
                if i != j and parts[i].kind == parts[j].kind and current[i] > amount
            ]
            if not moves:
                return
            cost = estimate(self.task, best.composition, current + np.array(moves), best.deadline)
            self.incumbent.try_all(
                Composition(tuple(Part(part.kind, part.selected, int(rounds))
                                  for part, rounds in zip(parts, current + moves[i], strict=True)))
                for i in np.argsort(cost)[:3]
                if cost[i] < best.cost
            )
            if self.incumbent.cost >= best.cost * (1.0 - NO_GAIN):
                return


def pricing_of(oracles: Sequence[Oracle]) -> Pricing:
    """Return the function by which a :class:`Master` asks these oracles for columns."""
    return lambda mu, nu, allowed: [oracle.price(mu, nu, allowed) for oracle in oracles]


def _moved(vector: tuple[int, ...], i: int, j: int, amount: int) -> tuple[int, ...]:
    """Return the numbers of rounds after ``amount`` rounds are moved from selection i to selection j."""
    return tuple(r - amount * (n == i) + amount * (n == j) for n, r in enumerate(vector))


def _largest_remainder(weights: Floats, total: int) -> Ints:
    """Return whole numbers that add up to ``total`` and are nearly proportional to the weights."""
    scaled = weights * total / weights.sum()
    floors = np.floor(scaled).astype(np.intp)
    order = np.argsort(-(scaled - floors), kind="stable")
    floors[order[: total - int(floors.sum())]] += 1
    return np.asarray(floors)
