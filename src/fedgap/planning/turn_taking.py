"""Plans whose clients take turns: a cycle of groups, each of which trains in some of the rounds.

What a model can learn in the end depends on how many clients ever train, and a round costs as much as its clients do
(:mod:`fedgap.theory.forecast`). Small groups that take turns therefore use the samples of many clients, and leave the
budgets for more rounds. A cycle has a pool of clients, all of which take part equally often, and a number of clients
per round. Pruning, powers and clocks are those of :mod:`fedgap.planning.operating_points`, at which the rounds use up
both budgets and clients of different groups prune alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.battery import limited
from fedgap.planning.objectives.forecast_tangent import drawn_labels, features_of_rounds, forecast
from fedgap.planning.operating_points import Prices, RuledSets, prices_for, shortest_s
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.tolerances import BUDGET_MARGIN
from fedgap.streams import stream
from fedgap.theory.drawn_labels import DrawnLabels

GROUPS = 16
"""The largest number of groups in a cycle."""
_POOLS = (1.0, 0.75, 0.5)
"""Numbers of clients in the pool that are tried, as shares of the fleet; the fastest clients are taken."""
_AT_ONCE = (0.1, 0.25, 0.5, 0.8)
"""Numbers of clients per round that are tried, as shares of the pool."""
_ROUGH_GROUPS, _ROUGH_ROUNDS = 6, 7
"""Groups of a cycle, and numbers of rounds that are tried at once, in the first search."""
_ROUNDS = 12
"""How many numbers of rounds are tried at once after that."""
_REFINED = 2
"""How many of the best cycles of the first search are improved."""
_WIDER, _NEARBY = 1.5, 1.1
"""By which factors the numbers of rounds that are tried differ from the best so far, and in the last search."""


@dataclass(frozen=True, eq=False)
class Cycle:
    """Groups of clients that take turns."""

    groups: Bools
    """The clients of each group, (G, N). The rounds go to them one after the other."""

    def times(self, rounds: int) -> Ints:
        """Return how many of the rounds each group has, (G,)."""
        whole, rest = divmod(rounds, len(self.groups))
        return np.asarray(whole + (np.arange(len(self.groups)) < rest))


@dataclass(frozen=True, eq=False)
class TurnDraft:
    """A cycle with its number of rounds, and the forecast error that it reaches."""

    problem: Problem
    """The problem with the chosen rounds, local steps and bits."""
    cycle: Cycle
    prices: Prices
    """The prices of energy and time, from which pruning, powers and clocks of each round follow."""
    error: float

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


def by_labels(labels: DrawnLabels | None, pool: Ints, count: int, groups: int, random: np.random.Generator,
              size: int) -> Cycle:
    """Return a cycle in which every next client is one of those that took part least often so far.

    Of these, the first client of a group is drawn at random, and every next one brings the group's mean label
    distribution closest to the target; without labels all are drawn at random.
    """
    used = np.zeros(size)
    rows = np.zeros((groups, size), dtype=np.bool_)
    for row in rows:
        for place in range(count):
            left = pool[~row[pool]]
            free = left[used[left] == used[left].min()]
            if place and labels is not None:
                tried = row | (np.arange(size) == free[:, None])
                joins = int(free[labels.divergence(tried).argmin()])
            else:
                joins = int(random.choice(free))
            row[joins] = True
            used[joins] += 1
    return Cycle(rows)


def by_speed(pool: Ints, count: int, seconds: Floats) -> Cycle:
    """Return a cycle whose groups have clients that are about equally fast, so that nobody waits long."""
    order = pool[np.argsort(seconds[pool], kind="stable")]
    groups = np.array_split(order, min(GROUPS, -(-len(pool) // count)))
    return Cycle(np.stack([np.isin(np.arange(len(seconds)), group) for group in groups]))


def groups_of(pool: int, count: int, most: int = GROUPS) -> int:
    """Return the largest number of groups, up to ``most``, with which all clients of a pool take part equally often, or
    ``most`` if there is none."""
    return max((groups for groups in range(1, most + 1) if groups * count % pool == 0), default=most)


def _error(draft: TurnDraft) -> float:
    return draft.error


class TurnSearch:
    """Searches for the best cycle of one problem with given local steps and bits."""

    def __init__(self, problem: Problem, scheme: Scheme) -> None:
        self.problem, self.scheme = problem, scheme
        self.seconds = shortest_s(problem.fleet, scheme)
        self.order = np.argsort(self.seconds, kind="stable")

    @cached_property
    def _labels(self) -> DrawnLabels | None:
        return drawn_labels(self.problem)

    def shapes(self, around: int) -> list[TurnDraft]:
        """Return drafts with few groups for many sizes of the pool and of a round, the best first.

        :param around: the best number of rounds without turns, near which the search begins.
        """
        size, found = self.problem.size, list[TurnDraft]()
        numbers = self._numbers(around / _WIDER, around * _WIDER**3, _ROUGH_ROUNDS)
        for pool in sorted({max(2, round(share * size)) for share in _POOLS}):
            for count in sorted({max(1, round(share * pool)) for share in _AT_ONCE}):
                if count < pool:
                    found += [draft for cycle in self._cycles(pool, count, _ROUGH_GROUPS)
                              if (draft := self._best_rounds(cycle, numbers)) is not None]
        return sorted(found, key=_error)[:_REFINED]

    def best(self, shapes: Sequence[TurnDraft]) -> TurnDraft | None:
        """Return the best draft with nearly these pools and numbers of clients per round; None if none fits."""
        found = (self._refined(shape) for shape in shapes)
        return min((draft for draft in found if draft is not None), key=_error, default=None)

    def _cycles(self, pool: int, count: int, groups: int) -> Iterator[Cycle]:
        clients = self.order[:pool]
        yield by_labels(self._labels, clients, count, groups_of(pool, count, groups),
                        stream(0, "planning", pool, count), self.problem.size)
        yield by_speed(clients, count, self.seconds)

    def _refined(self, shape: TurnDraft) -> TurnDraft | None:
        """Return the best draft with nearly as many clients in the pool and per round, and with longer cycles."""
        groups = shape.cycle.groups
        pool, count = int(groups.any(axis=0).sum()), int(groups.sum(axis=-1).max())
        rounds, best = shape.problem.rounds, None
        for near_pool, near_count in ((pool, count), (pool, count - 1), (pool, count + 1), (pool - 1, count),
                                      (pool + 1, count)):
            if 1 <= near_count < near_pool <= self.problem.size:
                numbers = self._numbers(rounds / _WIDER, rounds * _WIDER, _ROUNDS)
                trials = [self._best_rounds(cycle, numbers) for cycle in self._cycles(near_pool, near_count, GROUPS)]
                best = min((trial for trial in (best, *trials) if trial is not None), key=_error, default=None)
                rounds = rounds if best is None else best.problem.rounds
        if best is None:
            return None
        finer = self._best_rounds(best.cycle, self._numbers(rounds / _NEARBY, rounds * _NEARBY, 2 * _ROUNDS))
        return best if finer is None else min(best, finer, key=_error)

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
                yield TurnDraft(trial, cycle, priced.prices, forecast(trial).fixed.error(features))
