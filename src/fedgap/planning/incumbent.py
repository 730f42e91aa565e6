"""The best plan found so far (the incumbent), which compositions were tried, and how far it may be from the optimum."""

from collections.abc import Iterable

import numpy as np

from fedgap.planning.composition import Composition
from fedgap.planning.fixed_composition import Composed, compose, compose_single
from fedgap.planning.master import Master
from fedgap.planning.round_lagrangian import Columns
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.tolerances import FINE_GAP


class Incumbent:
    """Solves compositions of a task (selections with whole numbers of rounds) and keeps the best."""

    def __init__(self, task: Task, master: Master, settings: SolverSettings) -> None:
        self.task, self.master, self.progress, self.enough = task, master, settings.progress, settings.enough
        self.best: Composed | None = None
        self.proven = -np.inf
        """A lower bound on all plans that was proven outside the linear program, for example by enumeration."""
        self.tried: set[Composition] = set()
        """All compositions that were solved."""

    def try_all(self, candidates: Iterable[Composition]) -> list[Composed]:
        """Solve compositions that were not tried before and keep the best; return those that keep the budgets.

        Of several compositions with a single part, only the best is returned.
        """
        answers = []
        fresh = [c for c in dict.fromkeys(candidates) if c not in self.tried]
        self.tried.update(fresh)
        single = [c for c in fresh if len(c) == 1]
        if len(single) > 1:  # compositions with one selection in all rounds are compared in one vectorised call
            cost, _ = compose_single(self.task, np.stack([c.parts[0].selected for c in single]))
            fresh = [single[int(cost.argmin())], *(c for c in fresh if len(c) > 1)]
        for composition in fresh:
            answer = compose(self.task, composition, self.master.prices)
            if answer is None:
                continue
            answers.append(answer)
            if self.best is None or answer.cost < self.best.cost:
                self.best = answer
        return answers

    def hand_over(self) -> None:
        """Add the best plan's rounds as columns to the linear program."""
        if self.best is None:
            return
        objective, best = self.task.objective, self.best
        for part, segment, deadline in zip(best.composition.parts, best.segments, best.deadline, strict=True):
            mean = segment.pruning_ratio[segment.selected].mean()
            cost = objective.selection_cost(segment.selected[None]) + objective.pruning_weight * mean
            energy = np.array([float(self.task.problem.cost(segment).energy_j)])
            self.master.add(part.kind, Columns(segment.selected[None], cost, energy, deadline[None]))

    @property
    def cost(self) -> float:
        """The best plan's value without the constant; infinite if there is no plan yet."""
        return self.best.cost if self.best is not None else np.inf

    @property
    def best_prices(self) -> tuple[float, float] | None:
        """The prices (μ, ν) of a joule and a second per round at the best plan so far; None without a plan."""
        return None if self.best is None else self.prices_of(self.best)

    def prices_of(self, solved: Composed) -> tuple[float, float]:
        """Return the prices (μ, ν) of a joule and a second per round at a solved composition."""
        rounds = self.task.problem.rounds
        return solved.energy_price * rounds, solved.delay_price * rounds

    @property
    def lower_bound(self) -> float:
        """Lower bound on the value, without the constant, of all plans."""
        return max(self.master.lower_bound, self.proven)

    @property
    def gap(self) -> float:
        """How far the best plan is above the lower bound, as a share of its value."""
        if self.best is None:
            return np.inf
        return (self.best.cost - self.lower_bound) / max(abs(self.best.cost), 1e-300)

    @property
    def good_enough(self) -> bool:
        """Whether the gap is so small that the search can end."""
        return self.gap <= FINE_GAP or self.cost - self.lower_bound <= self.enough

    @property
    def near_program(self) -> bool:
        """Whether the plan costs hardly more than the linear program, which may use fractions of rounds.

        Then a further search for whole rounds is not worth its time.
        """
        return self.enough > 0.0 and self.cost - self.master.objective <= 0.4 * self.enough

    @property
    def above_program(self) -> float:
        """How far the best plan is above the linear program's value, as a share: what is lost by whole rounds."""
        return (self.best.cost - self.master.objective) / abs(self.best.cost) if self.best is not None else np.inf

    def report(self, what: str, step: int = 0) -> None:
        """Report the progress of the search to the caller of the solver."""
        if self.progress is not None:
            self.progress(what, step, self.cost, self.lower_bound)
