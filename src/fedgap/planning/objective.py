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

from fedgap.arrays import Bools, Floats, Ints
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
    """Whether Φ is the mean of φ_n, and not their sum."""

    def cost(self, selected: Bools) -> Floats:
        """Return the cost of each selection (..., N), shape (...); infinite if nobody is selected."""
        count = selected.sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            phi = (selected @ self.phi) / (count if self.mean else 1)
            return np.where(count > 0, (self.few_clients + self.weight * phi**2) / count, np.inf)


@dataclass(frozen=True, eq=False)
class ConvexLabels:
    """Lower bounds on a selection cost that depends on how far the clients' labels are from a target t:

        selection_cost(A) ≥ few_clients/k + weight·(mean over A of score_n(g) − ln Σ_c t_c·e^(g_c))
                            + (mean over A of costs_n) + (sum over A of scarcity_n)/k²,        k = |A|,

    for every vector g of one number per label. Such bounds exist if the divergence KL(A) from the target is convex in
    the selection, relaxed to shares between 0 and 1: with score_n(g) = g·q_n, where q_n is the label distribution of a
    client, the right-hand side is a tangent plane of KL, which touches it where g = ln(m/t) with m the mean of q_n over
    A. With this structure a search over large fleets can prove a lower bound.
    """

    target: Floats
    """t, (C,)."""
    few_clients: float
    weight: float
    scores: Callable[[Floats], Floats]
    """Function from vectors g (B, C) to score_n(g) of every client, (B, N)."""
    total_drawn: Callable[[Floats, Bools], Floats]
    """Function from vectors g (B, C) and selections (B, N) to the sum over the selection of the label distributions q_n
    that attain the scores, (B, C)."""
    costs: Floats
    """What each client costs besides, divided by k, (N,)."""
    scarcity: Floats
    """What each client costs besides, divided by k², at least 0, (N,)."""

    def own_costs(self, vector: Floats, count: Ints) -> Floats:
        """Return what each client adds to the bound, (weight·score_n(g) + costs_n)/k + scarcity_n/k², shape (..., N).

        :param vector: g, (C,); :param count: k, (..., 1).
        """
        own = self.weight * self.scores(vector[None])[0] + self.costs
        return np.asarray((own + self.scarcity / count) / count)


@dataclass(frozen=True, eq=False)
class PooledLabels:
    """A selection cost that depends only on k = |A| and on the sum of the clients' label histograms.

    With this structure a local search can evaluate many moves at once. To prove a bound it needs ``convex`` as well.
    """

    counts: Floats
    """Label histograms, (N, classes)."""
    target: Floats | None
    """The histogram that the summed labels should resemble, (classes,); None if there is no such histogram."""
    cost: Callable[[Floats, int], Floats]
    """Function from summed histograms (..., classes) and k to the selection cost, (...)."""
    start: "Objective | None"
    """A similar objective with additive statements, from whose plan the search starts; None to start without one."""
    convex: ConvexLabels | None = None
    """Lower bounds on the selection cost, if there are any."""


class Objective(Protocol):
    """A quantity that plans minimise; see the module docstring for its form.

    >>> class ManyClients(fedgap.Objective):
    ...     name, constant, pruning_weight = "many_clients", 0.0, 1.0
    ...     def selection_cost(self, selected):
    ...         return 1.0 / np.maximum(selected.sum(axis=-1), 1e-9)
    ...     def with_rounds(self, rounds):
    ...         return self
    >>> plan = fedgap.plan(fedgap.Scenario.load("paper-mnist"), objective=lambda problem: ManyClients())
    >>> plan.status
    'optimal'

    For up to 12 clients any objective is solved with a certificate. For more clients this needs :attr:`additive`, or
    ``convex`` of :attr:`pooled`; without them the plan comes from a local search that proves no bound.
    """

    @property
    def name(self) -> str:
        """The name of the objective in plans."""

    @property
    def constant(self) -> float:
        """The part of the value that depends only on R."""

    @property
    def pruning_weight(self) -> float:
        """The cost of pruning in a round with mean pruning ratio 1; at least 0."""

    @property
    def chooses_rounds(self) -> bool:
        """Whether the planner also chooses the number of rounds, up to the scenario's."""
        return False

    @property
    def additive(self) -> AdditiveStatements | None:
        """The selection cost as additive statements; None if it does not have this form."""
        return None

    @property
    def pooled(self) -> PooledLabels | None:
        """The selection cost as a function of summed labels; None if it does not have this form."""
        return None

    def selection_cost(self, selected: Bools) -> Floats:
        """Return the cost of an unpruned round for each selection (..., N), shape (...); ∞ if it is not allowed."""

    def with_rounds(self, rounds: int) -> "Objective":
        """Return the same objective for another number of rounds."""


ObjectiveFactory = Callable[[Problem], Objective]
"""Function that makes the objective of a problem."""
