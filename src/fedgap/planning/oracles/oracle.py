"""The interface of oracles, and the choice of the oracles for a task."""

from typing import Protocol

from fedgap.arrays import Bools
from fedgap.planning.oracles.bounded_search import BoundedSearch
from fedgap.planning.oracles.enumerate import Enumeration, all_selections
from fedgap.planning.oracles.local_search import LocalSearch
from fedgap.planning.round_lagrangian import Columns, Priced
from fedgap.planning.task import Task
from fedgap.planning.tolerances import ENUMERATED_CLIENTS


class Oracle(Protocol):
    """Finds the cheapest rounds of one kind at given prices."""

    @property
    def proves_bound(self) -> bool:
        """Whether :meth:`price` proves a lower bound on the cost of all rounds; otherwise its bound is −∞."""

    @property
    def tolerance(self) -> float:
        """How far its bounds may be below the best round, as a share of its cost."""

    @property
    def longest_s(self) -> float:
        """The longest deadline that a round may have."""

    @property
    def usable(self) -> bool:
        """Whether any round meets this deadline."""

    @property
    def selections(self) -> Bools:
        """The selections that the oracle knows so far, (S, N); empty if it keeps none."""

    @property
    def enumeration(self) -> Enumeration | None:
        """The list of all allowed selections, so that compositions can be enumerated with proof; None without one."""

    def price(self, mu: float, nu: float, allowed: float) -> Priced:
        """Return the best rounds, and a lower bound, if a joule costs μ and a second ν.

        :param allowed: how far the bound may be below the best round, in units of the objective.
        """

    def prove(self, mu: float, nu: float, allowed: float) -> float:
        """Return a lower bound on the cost of any round at these prices, with more effort than in :meth:`price`.

        It is −∞ if nothing can be proven.

        :param allowed: how far the bound may be below the best known round, in units of the objective.
        """

    def search_harder(self, mu: float, nu: float) -> Columns | None:
        """Search for better rounds at these prices with more effort; None if :meth:`price` already finds the best."""

    def learn(self, selections: Bools) -> None:
        """Use selections found elsewhere, (S, N), as starting points."""


def oracles_for(task: Task, *, bounded: bool = True) -> list[Oracle]:
    """Return one oracle for each kind of round of a task.

    :param bounded: whether lower bounds are needed for fleets that are too large to enumerate.
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
