"""Planning that also chooses the number of rounds (the horizon)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedgap.planning import diagnosis
from fedgap.planning.plan import Plan
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task

Solve = Callable[[Task, SolverSettings], Plan]
_GRID = 12
"""How many numbers of rounds, in geometric steps, the search starts with."""
INTERRUPTED = "interrupted: the best plan so far"
"""The ``reason`` of a plan whose search was ended by Ctrl-C."""


def best_horizon(task: Task, settings: SolverSettings, solve: Solve, infeasible: Solve) -> Plan:
    """Return the best plan over all numbers of rounds from 1 to R.

    The search starts with a geometric grid of numbers of rounds, and becomes finer around the best one. With more
    rounds the constant part of the value falls, and the rest rises because each round has less of the budgets; in
    practice the value therefore has one minimum. Numbers of rounds whose constant alone exceeds the best value are not
    solved. The plan's lower bound is for its own number of rounds.

    :param solve: returns the plan of a task for the task's number of rounds;
    :param infeasible: returns a plan that says why none fits.
    """
    most = diagnosis.most_rounds(task)
    if most == 0:
        return infeasible(task, settings)
    search = _HorizonSearch(task, settings, solve)
    grid = sorted({round(r) for r in np.geomspace(1, most, _GRID)})
    while not search.stopped:
        values = {r: search.look(r) for r in reversed(grid)}
        place = grid.index(min(grid, key=lambda r: values[r]))
        middle = grid[place]
        low = grid[place - 1] if place else middle
        high = grid[place + 1] if place + 1 < len(grid) else middle
        finer = sorted({low, middle, high, (low + middle) // 2, (middle + high + 1) // 2})
        if high - low <= 2 or finer == grid:
            for rounds in range(low, high + 1):
                search.look(rounds)
            break
        grid = finer
    best = min(search.known.values(), key=lambda pair: pair[0])[1]
    return replace(best, reason=INTERRUPTED) if search.stopped else best


class _HorizonSearch:
    """The search for the best number of rounds, with the plans made so far."""

    def __init__(self, task: Task, settings: SolverSettings, solve: Solve) -> None:
        self.task, self.settings, self.solve = task, settings, solve
        self.known: dict[int, tuple[float, Plan]] = {}
        self.stopped = False

    @property
    def best(self) -> float:
        """The least value of a plan so far."""
        return min((value for value, _ in self.known.values()), default=np.inf)

    def look(self, rounds: int) -> float:
        """Return the value of the best plan with this number of rounds.

        It is infinite if the plan cannot be the best or does not exist, and after Ctrl-C.
        """
        if not (self.stopped or rounds in self.known):
            try:
                self._plan(rounds)
            except KeyboardInterrupt:
                if not np.isfinite(self.best):
                    raise
                self.stopped = True
        return self.known[rounds][0] if rounds in self.known else np.inf

    def _plan(self, rounds: int) -> None:
        task = self.task.with_rounds(rounds)
        if task.objective.constant >= self.best:
            return
        answer = self.solve(task, replace(self.settings, progress=None))
        value = task.value(answer.segments) if answer.feasible else np.inf
        self.known[rounds] = value, answer
        self.stopped = answer.reason == INTERRUPTED
        if self.settings.progress is not None:
            self.settings.progress(f"horizon {rounds}", len(self.known), value, -np.inf)
