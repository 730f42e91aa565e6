"""The settings of a solver."""

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
    """Whether the number of rounds is chosen as well, up to that of the scenario."""
    shorten: bool = False
    """Whether fewer rounds are planned if not all fit the budgets."""
    options: object | None = None
    """An ``AlternatingOptions``, for ``alternating`` only."""
    progress: Progress | None = None
    enough: float = 0.0
    """A gap, in units of the objective, that is not worth closing."""
    bounded: bool = True
    """Whether to prove a bound if selections are searched, which takes most of the time."""
