"""The measured guide: a score that ranks plans, computed before training, by the accuracy that they will reach.

θ ranked random plans badly by the accuracy that they reached. This score did better (``experiments/guide``):

    (1 + 10·KL(A) + 1/k + λ̄/5)/R        the smaller the better,

KL(A) is the divergence of the selected clients' summed labels from the target's (both add-one smoothed), k the number
of selected clients, λ̄ the mean pruning ratio, and R the number of rounds, which is chosen as well. The weight of λ̄ is
not measured; it is small and only makes plans use the rest of the budgets to prune less. If no labels are known,
10·KL(A) is replaced by another 1/k, which falls with k in a similar way.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.objective import AdditiveStatements, PooledLabels
from fedgap.planning.problem import Problem
from fedgap.theory import divergence, smoothed

DIVERGENCE, FEW_CLIENTS, PRUNING = 10.0, 1.0, 0.2


@dataclass(frozen=True, eq=False)
class Guide:
    """The measured guide for a fleet and a number of rounds, with the clients' labels or a substitute for them."""

    rounds: int
    labels: tuple[Floats, Floats] | None
    """Label histograms of the clients, (N, classes), and of the target, (classes,); None if they are not known."""
    phi: Floats
    """Used without labels, (N,): (mean of ``phi`` over A)²/k then replaces KL(A)."""
    few_clients: float
    name: str = "measured"
    chooses_rounds: bool = True

    @property
    def constant(self) -> float:
        """1/R, the part that depends only on the rounds."""
        return 1.0 / self.rounds

    @property
    def pruning_weight(self) -> float:
        """1/(5·R), the cost of a mean pruning ratio of 1."""
        return self.rounds * self._per_round(PRUNING)

    def _per_round(self, weight: float) -> float:
        """Return the weight of a term per round, weight/R², such that its sum over rounds is weight/R."""
        return weight / float(self.rounds) ** 2

    @property
    def pooled(self) -> PooledLabels | None:
        """The cost as a function of summed labels, if labels are known; otherwise None."""
        if self.labels is None:
            return None
        # The search in a large fleet starts from a similar additive objective, with φ_n² = N·KL of a client's labels.
        counts, target = self.labels
        alone = np.sqrt(np.maximum(divergence(smoothed(counts), smoothed(target)), 0.0) * len(counts))
        return PooledLabels(counts, target, self._pooled_cost, replace(self, labels=None, phi=alone))

    @property
    def additive(self) -> AdditiveStatements | None:
        """The cost as a function of the mean of ``phi``, if no labels are known; otherwise None."""
        if self.labels is not None:
            return None
        weight = DIVERGENCE if self.phi.any() else 0.0
        return AdditiveStatements(self.phi, self.few_clients / self.rounds, weight / self.rounds, mean=True)

    def selection_cost(self, selected: Bools) -> Floats:
        """Return (10·KL(A) + 1/k)/R of each selection; infinite if nobody is selected."""
        if self.additive is not None:
            return self.additive.cost(selected)
        assert self.labels is not None
        count = selected.sum(axis=-1)
        cost = self._pooled_cost(selected.astype(np.float64) @ self.labels[0], np.maximum(count, 1))
        return np.where(count > 0, cost, np.inf)

    def _pooled_cost(self, histogram: Floats, count: int | Ints) -> Floats:
        assert self.labels is not None
        # Computed in the order of θ's terms, with Φ = √(k·KL(A)), because the last digit decides between plans of equal
        # value and must not change.
        share, apart = 1.0 / np.asarray(count), divergence(smoothed(histogram), smoothed(self.labels[1]))
        squared = np.sqrt(np.maximum(count * apart, 0.0)) ** 2
        terms = self._per_round(self.few_clients) * share + self._per_round(DIVERGENCE) * squared * share
        return np.asarray(self.rounds * terms)

    def with_rounds(self, rounds: int) -> "Guide":
        """Return the guide for another number of rounds."""
        return replace(self, rounds=rounds)


def measured(problem: Problem) -> Guide:
    """Return the measured guide for a problem."""
    labels = None
    if problem.label_counts is not None and problem.target_counts is not None:
        labels = problem.label_counts, problem.target_counts
    few_clients = FEW_CLIENTS if labels is not None else 2.0 * FEW_CLIENTS
    return Guide(problem.rounds, labels, np.zeros(problem.size), few_clients)
