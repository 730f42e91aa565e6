"""The interface of objectives: the quantities that a plan can minimise.

The value of a plan of R rounds must have the form

    constant + mean over its rounds of [ selection_cost(A) + pruning_weight · (mean pruning ratio over A) ],

where A is the round's selection and everything may depend on R. The paper's θ has this form, and so has the measured
guide. A class with the members of :class:`Objective` can be used without being registered: give its factory, a
function from a :class:`~fedgap.planning.problem.Problem` to the objective, to ``plan(scenario, objective=...)``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.problem import Problem


@dataclass(frozen=True, eq=False)
class AdditiveStatements:
    """selection_cost(A) = (few_clients + weight·Φ²)/k with Φ the sum or the mean of φ_n over A, and k = |A|.

    With this structure a search over large fleets can prove a lower bound.
    """

    phi: Floats
    """φ_n ≥ 0, (N,)."""
    few_clients: float
    weight: float
    mean: bool
    """Whether Φ is the mean of φ_n, not their sum."""

    def cost(self, selected: Bools) -> Floats:
        """The selection cost of each selection, (...); infinite where nobody is selected."""
        count = selected.sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            phi = (selected @ self.phi) / (count if self.mean else 1)
            return np.where(count > 0, (self.few_clients + self.weight * phi**2) / count, np.inf)


@dataclass(frozen=True, eq=False)
class ConvexLabels:
    """For every vector g of one number per label,

        selection_cost(A) ≥ few_clients/k + weight·(mean over A of score_n(g) − ln Σ_c t_c·e^(g_c)),        k = |A|.

    Such planes bound a divergence KL(A) from the target t that is convex in the relaxed selection: with score_n(g) =
    g·q_n the right-hand side is KL's tangent plane where g = ln(m/t), m being the mean of the selection's label
    distributions q_n. With this structure a search over large fleets can prove a lower bound.
    """

    target: Floats
    """t, (C,)."""
    few_clients: float
    weight: float
    scores: Callable[[Floats], Floats]
    """score_n(g) of every client for several g: (B, C) → (B, N)."""
    total_drawn: Callable[[Floats, Bools], Floats]
    """The sum over chosen clients, (B, N), of the label distributions q_n that reach the scores: (B, C)."""


@dataclass(frozen=True, eq=False)
class PooledLabels:
    """selection_cost(A) depends on k = |A| and on the sum of the clients' label histograms alone.

    With this structure a local search evaluates many moves at once. A bound needs ``convex`` as well.
    """

    counts: Floats
    """Label histograms, (N, classes)."""
    target: Floats | None
    """The histogram that the pooled labels should resemble, (classes,)."""
    cost: Callable[[Floats, int], Floats]
    """The selection cost of selections of k clients with these pooled histograms, (..., classes) → (...)."""
    start: "Objective | None"
    """A similar objective with additive statements; its plan is where the search starts."""
    convex: ConvexLabels | None = None
    """Planes that bound the selection cost, if there are any."""


class Objective(Protocol):
    """A quantity to minimise; see the module docstring for its form.

    >>> class ManyClients(fedgap.Objective):
    ...     name, constant, pruning_weight = "many_clients", 0.0, 1.0
    ...     def selection_cost(self, selected):
    ...         return 1.0 / np.maximum(selected.sum(axis=-1), 1e-9)
    ...     def with_rounds(self, rounds):
    ...         return self
    >>> plan = fedgap.plan(fedgap.Scenario.load("paper-mnist"), objective=lambda problem: ManyClients())
    >>> plan.status
    'optimal'

    Up to 12 clients any objective is solved with a certificate. Above, additive statements or convex labels still allow
    one; without them the plan comes from a local search that proves no bound.
    """

    @property
    def name(self) -> str:
        """Its name in plans."""

    @property
    def constant(self) -> float:
        """The part of the value that depends only on R."""

    @property
    def pruning_weight(self) -> float:
        """The cost of a round in which the selected clients prune everything; at least 0."""

    @property
    def chooses_rounds(self) -> bool:
        """Whether the number of rounds is decided as well, up to the scenario's."""
        return False

    @property
    def additive(self) -> AdditiveStatements | None:
        """Additive statements, if the selection cost has this form."""
        return None

    @property
    def pooled(self) -> PooledLabels | None:
        """Pooled labels, if the selection cost has this form."""
        return None

    def selection_cost(self, selected: Bools) -> Floats:
        """The cost of an unpruned round of each selection, (..., N) → (...); infinite where it is not allowed."""

    def with_rounds(self, rounds: int) -> "Objective":
        """The same objective for another number of rounds."""


ObjectiveFactory = Callable[[Problem], Objective]
