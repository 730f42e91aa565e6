"""What a scheme may decide: each scheme is one :class:`Scheme`, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedgap.planning.problem import Problem


@dataclass(frozen=True)
class Scheme:
    """A restriction of P1. The default restricts nothing."""

    name: str
    title: str
    """The paper's name for it, as in the legends of its figures."""
    prune: bool = True
    """False: λ = 0 for every client and round."""
    select: bool = True
    """False: a = 1 for every client and round."""
    power: bool = True
    """False: p = p^max for every selected client."""
    frequency: bool = True
    """False: f = f^max for every selected client."""
    generalization: bool = True
    """False: planned with γ₁ = 0 (and scored with the full θ)."""
    objective: Callable[[Problem], Problem] | None = None
    """What it minimises in place of θ, over the number of rounds too (and is scored with the full θ of its rounds)."""

    def own(self, problem: Problem) -> Problem:
        """The problem in the scheme's own objective."""
        if self.objective is not None:
            return self.objective(problem)
        return problem if self.generalization else problem.without_generalization()
