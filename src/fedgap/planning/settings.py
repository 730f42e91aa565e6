"""How to solve a task: one object for what a caller may choose beside the task itself."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, float, float], None]
"""Called with (what, iteration, best cost so far, lower bound so far)."""
SOLVERS = ("exact", "alternating")


@dataclass(frozen=True)
class SolverSettings:
    """The solver, and how it is to run."""

    solver: str = "exact"
    """``exact`` (certified) or ``alternating`` (the paper's Algorithm 1)."""
    horizon: bool = False
    """Whether the number of rounds is decided too, up to the scenario's."""
    shorten: bool = False
    """Whether fewer rounds are planned where the budgets do not carry all."""
    options: object | None = None
    """An ``AlternatingOptions``, for ``alternating`` only."""
    progress: Progress | None = None
    enough: float = 0.0
    """A gap, in units of the objective, that is not worth closing."""
    bounded: bool = True
    """Whether a bound is asked for where selections are searched; it takes most of the time."""
