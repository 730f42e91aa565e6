"""Planning in which the number of rounds is chosen as well."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedgap.planning import diagnosis
from fedgap.planning.plan import Plan
from fedgap.planning.settings import SolverSettings
from fedgap.planning.task import Task

Solve = Callable[[Task, SolverSettings], Plan]
_GRID = 12
"""Numbers of rounds, in geometric steps, that the search starts with."""
INTERRUPTED = "interrupted: the best plan so far"
"""The reason that an interrupted plan gives."""


def best_horizon(task: Task, settings: SolverSettings, solve: Solve, infeasible: Solve) -> Plan:
    """The best plan over 1..R rounds, by coarse-to-fine search around the best of a geometric grid.

    The constant falls with R while tighter budgets per round raise the rest, so the value has one valley in practice;
    the grid guards against others, and the bound returned is the one at the R chosen. No R whose constant alone exceeds
    the best value is solved.

    :param solve: plans a task for its number of rounds; :param infeasible: says why no plan fits.
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
    """Plans at the numbers of rounds looked at so far."""

    def __init__(self, task: Task, settings: SolverSettings, solve: Solve) -> None:
        self.task, self.settings, self.solve = task, settings, solve
        self.known: dict[int, tuple[float, Plan]] = {}
        self.stopped = False

    @property
    def best(self) -> float:
        """The least value so far."""
        return min((value for value, _ in self.known.values()), default=np.inf)

    def look(self, rounds: int) -> float:
        """The value of the best plan with this number of rounds; infinite if it cannot be the best, or after Ctrl-C."""
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
