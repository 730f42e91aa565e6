"""Plans whose clients take turns: a cycle of groups, each of which trains in some of the rounds.

What a model can learn in the end depends on how many clients ever train, and a round costs as much as its clients do
(:mod:`fedgap.theory.forecast`). Small groups that take turns therefore use the samples of many clients, and leave the
budgets for more rounds. A cycle has a pool of clients, the fastest ones, and a number of clients per round. Its groups
have about equally fast clients, or are composed to keep the forecast error low
(:func:`fedgap.planning.cycles.by_costs`); clients with rare labels or little energy per round then train more often
than others. Pruning, powers and clocks are those of :mod:`fedgap.planning.operating_points`, at which the rounds use up
both budgets and clients of different groups prune alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Ints
from fedgap.planning.battery import limited
from fedgap.planning.cycles import GROUPS, Cycle, GroupCosts, by_costs, by_speed
from fedgap.planning.objectives.forecast_tangent import features_of_rounds, forecast
from fedgap.planning.operating_points import Prices, RuledSets, prices_for, shortest_s
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.tolerances import BUDGET_MARGIN
from fedgap.system.cost import idle_energy

_POOLS = (1.0, 0.75, 0.5, 0.25)
"""Numbers of clients in the pool that are tried, as shares of the fleet; the fastest clients are taken."""
_AT_ONCE = (0.1, 0.25, 0.5, 0.8)
"""Numbers of clients per round that are tried, as shares of the pool."""
_ROUGH_GROUPS, _ROUGH_ROUNDS = 6, 7
"""Groups of a cycle, and numbers of rounds that are tried at once, in the first search."""
_ROUNDS = 12
"""How many numbers of rounds are tried at once after that."""
_REFINED = 2
"""How many of the best cycles of the first search are improved."""
_STEPS = 6
"""By how many steps the pool and the number of clients per round are improved at most."""
_PASSES = 2
"""How often each group is composed again in the last search."""
_WIDER, _NEARBY = 1.5, 1.1
"""By which factors the numbers of rounds that are tried differ from the best so far, and in the last search."""


@dataclass(frozen=True, eq=False)
class TurnDraft:
    """A cycle with its number of rounds, and the forecast error that it reaches."""

    problem: Problem
    """The problem with the chosen rounds, local steps and bits."""
    cycle: Cycle
    prices: Prices
    """The prices of energy and time, from which pruning, powers and clocks of each round follow."""
    error: float
    slowed: float
    """z of the forecast, by which the plan slows learning."""

    def segments(self, scheme: Scheme) -> tuple[Segment, ...]:
        """Return the plan's segments, the unpruned first round first if there must be one."""
        problem, times = self.problem, self.cycle.times(self.problem.rounds)
        dense = int(problem.dense_first and scheme.prune)
        parts = [(0, 1, True)] if dense else []
        parts += [(place, int(number) - (dense if place == 0 else 0), False) for place, number in enumerate(times)]
        return tuple(
            replace(self.prices.round_points(problem.fleet, scheme, self.cycle.groups[place], dense=unpruned).segment(
                self.cycle.groups[place], problem.local_steps, problem.upload_bits), rounds=number)
            for place, number, unpruned in parts if number)


def _error(draft: TurnDraft) -> float:
    return draft.error


class TurnSearch:
    """Searches for the best cycle of one problem with given local steps and bits."""

    def __init__(self, problem: Problem, scheme: Scheme) -> None:
        self.problem, self.scheme = problem, scheme
        self.seconds = shortest_s(problem.fleet, scheme)
        self.order = np.argsort(self.seconds, kind="stable")

    def shapes(self, around: int) -> list[TurnDraft]:
        """Return drafts with few groups for many sizes of the pool and of a round, the best first.

        :param around: the best number of rounds without turns, near which the search begins.
        """
        size, found = self.problem.size, list[TurnDraft]()
        numbers = self._numbers(around / _WIDER, around * _WIDER**3, _ROUGH_ROUNDS)
        for pool in sorted({max(2, round(share * size)) for share in _POOLS}):
            for count in sorted({max(1, round(share * pool)) for share in _AT_ONCE if round(share * pool) < pool}):
                best = self._best_cycle(pool, count, numbers, _ROUGH_GROUPS)
                found += [] if best is None else [best]
        return sorted(found, key=_error)[:_REFINED]

    def best(self, shapes: Sequence[TurnDraft]) -> TurnDraft | None:
        """Return the best draft with nearly these pools and numbers of clients per round; None if none fits."""
        found = (self._refined(shape) for shape in shapes)
        return min((draft for draft in found if draft is not None), key=_error, default=None)

    def _best_cycle(self, pool: int, count: int, numbers: Ints, groups: int) -> TurnDraft | None:
        """Return the best draft with about ``count`` of the ``pool`` fastest clients per round and one of these numbers
        of rounds; None if none fits.

        The groups of the first cycle have about equally fast clients. What clients cost at its prices then decides how
        the ``groups`` groups of the second one are composed, with ``count`` clients each.
        """
        clients = self.order[:pool]
        first = self._best_rounds(by_speed(clients, count, self.seconds), numbers)
        if first is None:
            return None
        second = self._best_rounds(by_costs(self._costs(first), clients, count, groups), numbers)
        return first if second is None else min(first, second, key=_error)

    def _costs(self, draft: TurnDraft) -> GroupCosts:
        """Return what groups cost at the prices of a draft."""
        problem, fleet = draft.problem, draft.problem.fleet
        tangent = replace(forecast(problem), slowed=draft.slowed)
        points, everybody = draft.prices.points(fleet, self.scheme), np.ones(problem.size, dtype=np.bool_)
        cost = problem.cost(points.segment(everybody, problem.local_steps, problem.upload_bits))
        # Nobody waits here for the slowest client of the whole fleet, which may be in no group.
        idle_j = idle_energy(fleet, everybody, np.maximum(cost.client_s, draft.prices.deadline_s))
        joules = cost.compute_j + cost.upload_j + idle_j
        client_costs = tangent.pruning_weight * (points.ratio + draft.prices.joule * joules)
        return GroupCosts(tangent.fixed, tangent.labels, tangent.scarcity, tangent.slope, np.asarray(client_costs))

    def _refined(self, shape: TurnDraft) -> TurnDraft | None:
        """Return the best draft with nearly as many clients in the pool and per round, and with longer cycles.

        The groups of each cycle are composed by what clients cost in the best draft so far.
        """
        rounds = shape.problem.rounds
        best = self._best_rounds(shape.cycle, self._numbers(rounds / _WIDER, rounds * _WIDER, _ROUNDS))
        if best is None:
            return None
        pool, count = self._pool_of(best), int(best.cycle.groups.sum(axis=-1).max())
        tried: set[tuple[int, int]] = set()
        for _ in range(_STEPS):
            before = best
            for sizes in ((pool, count), (pool, count - 1), (pool, count + 1), (pool - 1, count), (pool + 1, count)):
                if sizes in tried or not 1 <= sizes[1] < sizes[0] <= self.problem.size:
                    continue
                tried.add(sizes)
                trial = self._recomposed(best, *sizes, _WIDER, _ROUNDS)
                if trial is not None and trial.error < best.error:
                    best = trial
                    pool, count = sizes
            if best is before:
                break
        finer = self._recomposed(best, pool, count, _NEARBY, 2 * _ROUNDS, _PASSES)
        return best if finer is None else min(best, finer, key=_error)

    def _recomposed(self, draft: TurnDraft, pool: int, count: int, wider: float, tries: int,
                    passes: int = 0) -> TurnDraft | None:
        """Return the draft after its groups were composed anew, with ``count`` of the ``pool`` fastest clients each.

        ``tries`` numbers of rounds are tried, from the draft's divided by ``wider`` to ``wider`` times as many.
        """
        rounds = draft.problem.rounds
        cycle = by_costs(self._costs(draft), self.order[:pool], count, min(GROUPS, rounds), passes)
        return self._best_rounds(cycle, self._numbers(rounds / wider, rounds * wider, tries))

    def _pool_of(self, draft: TurnDraft) -> int:
        """Return the number of clients in the smallest pool of the fastest clients that has a draft's clients."""
        return 1 + max(place for place, client in enumerate(self.order) if draft.cycle.groups[:, client].any())

    def _numbers(self, low: float, high: float, count: int) -> Ints:
        most = float(self.problem.rounds)
        return np.unique(np.geomspace(min(max(low, 1.0), most), min(max(high, 1.0), most), count).round().astype(
            np.int64))

    def _best_rounds(self, cycle: Cycle, numbers: Ints) -> TurnDraft | None:
        """Return the draft with the best of these numbers of rounds that keeps all batteries; None if none fits."""
        drafts = sorted(self.drafts(cycle, numbers), key=_error)
        return next((draft for draft in drafts if not limited(draft.problem)
                     or draft.problem.violation(draft.segments(self.scheme)) <= BUDGET_MARGIN), None)

    def drafts(self, cycle: Cycle, numbers: Ints) -> Iterator[TurnDraft]:
        """Yield a draft for each of these numbers of rounds that fits the budgets."""
        sets = RuledSets(cycle.groups, np.zeros_like(cycle.groups))
        for number, priced in zip(numbers.tolist(), prices_for(self.problem, self.scheme, sets, numbers), strict=True):
            if priced is not None:
                trial = self.problem.with_rounds(number)
                features = features_of_rounds(trial, cycle.groups, priced.pruning, cycle.times(number))
                fixed = forecast(trial).fixed
                yield TurnDraft(trial, cycle, priced.prices, fixed.error(features), fixed.slowed(features))
