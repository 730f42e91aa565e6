"""The class of schemes. A scheme says what the planner may decide and what it minimises; each is in its own file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedgap.arrays import Bools, Ints
from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning.objective import ObjectiveFactory

SelectionRule = Callable[[Scenario], Bools | Ints | Sequence[bool] | Sequence[int] | Sequence[str]]
"""A function that returns the clients of every round: truth values, indices or names."""


@dataclass(frozen=True)
class Scheme:
    """What the planner may decide, and what it minimises. By default it decides everything and minimises θ.

    >>> loud = fedgap.Scheme(name="loud", title="Full power, no pruning", power=False, prune=False)
    >>> plan = fedgap.plan(fedgap.Scenario.load("paper-mnist"), scheme=loud)
    >>> plan.scheme, float(max(segment.pruning_ratio.max() for segment in plan.segments))
    ('loud', 0.0)
    """

    name: str
    title: str
    """What it is in a few words; for the paper's schemes, the name in the paper."""
    prune: bool = True
    """Whether the planner decides the pruning ratios; otherwise λ = 0 for every client and round."""
    select: bool = True
    """Whether the planner selects clients; otherwise all clients take part in every round, a = 1."""
    power: bool = True
    """Whether the planner decides the transmit powers; otherwise p = p^max for every selected client."""
    frequency: bool = True
    """Whether the planner decides the clock frequencies; otherwise f = f^max for every selected client."""
    turns: bool = True
    """Whether groups of clients may take turns, if the forecast is minimised and the world does not change."""
    objective: str | ObjectiveFactory = "theta"
    """What is minimised: a name in ``fedgap.registry.OBJECTIVES``, ``package.module:NAME``, or a function from a
    problem to an objective."""
    selection: str | SelectionRule | None = None
    """A rule that fixes which clients take part in every round: a name in ``fedgap.registry.SELECTION``,
    ``package.module:NAME``, or a function. None if the planner selects them."""

    def __post_init__(self) -> None:
        if not (self.power or self.frequency):
            raise InputError("scheme: power or frequency must be True; the planner must decide at least one of them")
