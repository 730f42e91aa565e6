"""The settings with which a solver runs."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, float, float], None]
"""Called with (what is done, iteration, best cost so far, lower bound so far)."""
SOLVERS = ("exact", "alternating")


@dataclass(frozen=True)
class SolverSettings:
    """Which solver is used, and how it runs."""

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
    """The search ends when the gap between plan and bound, in units of the objective, is at most this."""
    bounded: bool = True
    """Whether to prove a lower bound for fleets that are too large to enumerate, which takes most of the time."""
