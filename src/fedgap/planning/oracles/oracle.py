"""The interface of oracles, and the choice of the oracle for a task."""

from typing import Protocol

from fedgap.arrays import Bools
from fedgap.planning.oracles.bounded_search import BoundedSearch
from fedgap.planning.oracles.enumerate import Enumeration, all_selections
from fedgap.planning.oracles.local_search import LocalSearch
from fedgap.planning.round_lagrangian import Columns, Priced
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS


class Oracle(Protocol):
    """Prices rounds of one kind."""

    @property
    def proves_bound(self) -> bool:
        """Whether :meth:`price` bounds what any round costs; otherwise its bound is −∞."""

    @property
    def tolerance(self) -> float:
        """How close its bounds are to the best round, relatively."""

    @property
    def longest_s(self) -> float:
        """The longest deadline that a round may have."""

    @property
    def usable(self) -> bool:
        """Whether there is any round that meets this deadline."""

    @property
    def selections(self) -> Bools:
        """The selections that it lists so far, (S, N); empty where it lists none."""

    @property
    def enumeration(self) -> Enumeration | None:
        """The list of all allowed selections, if it is complete, so that compositions can be enumerated with proof."""

    def price(self, mu: float, nu: float, allowed: float) -> Priced:
        """The best rounds where a joule costs μ and a second ν.

        :param allowed: how far the bound may be below the best round, absolutely.
        """

    def prove(self, mu: float, nu: float, allowed: float) -> float:
        """A lower bound on the cost of any round at these prices, computed with more effort than in :meth:`price`.

        −∞ if there is none. :param allowed: how far it may be below the best known round, absolutely.
        """

    def search_harder(self, mu: float, nu: float) -> Columns | None:
        """Search for better rounds at these prices with more effort; None if :meth:`price` is exact already."""

    def learn(self, selections: Bools) -> None:
        """Take selections found elsewhere, (S, N), as hints."""


def oracles_for(task: Task, *, bounded: bool = True) -> list[Oracle]:
    """One oracle for each kind of rounds of a task.

    :param bounded: whether a bound is asked for where selections are searched.
    """
    shortest = [float((kind.curves.overhead + kind.curves.keep_min * kind.curves.u_min).min()) for kind in task.kinds]
    least = sum(kind.rounds * seconds for kind, seconds in zip(task.kinds, shortest, strict=True))
    oracles: list[Oracle] = []
    for kind, seconds in zip(task.kinds, shortest, strict=True):
        longest = task.problem.delay_s - (least - seconds)  # if all other rounds are as short as possible
        if task.selected is not None:
            oracles.append(Enumeration(task, kind.curves, task.selected[None], longest))
        elif task.problem.size <= ENUMERATED_CLIENTS:
            oracles.append(Enumeration(task, kind.curves, all_selections(task.problem.size), longest))
        elif task.objective.additive is not None:
            oracles.append(BoundedSearch(task, kind.curves, longest, bounded=bounded))
        else:
            thorough = 10 * kind.rounds >= task.problem.rounds
            oracles.append(LocalSearch(task, kind.curves, longest, thorough=thorough))
    return oracles
