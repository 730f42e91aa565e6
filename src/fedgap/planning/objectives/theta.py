"""θ of Theorem 1: α + Σ_s (β/k + γ₁Φ²/k + γ₂·mean λ), so that θ − α is a mean over rounds of R times that."""

from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.planning.objective import AdditiveStatements, PooledLabels
from fedgap.planning.problem import Problem


@dataclass(frozen=True, eq=False)
class Theta:
    """The bound θ of a problem."""

    problem: Problem
    name: str = "theta"
    chooses_rounds: bool = False

    @property
    def constant(self) -> float:
        """α."""
        return self.problem.constants.alpha

    @property
    def pruning_weight(self) -> float:
        """R·γ₂."""
        return self.problem.pruning_weight

    @property
    def pooled(self) -> PooledLabels | None:
        """Pooled labels, where the aggregation is ``mixture`` and γ₁ > 0."""
        problem = self.problem
        if problem.aggregation != "mixture" or problem.constants.gamma1 == 0.0:
            return None
        assert problem.label_counts is not None
        assert problem.target_counts is not None
        start = replace(self, problem=replace(problem, aggregation="mean"))
        return PooledLabels(problem.label_counts, problem.target_counts, self._pooled_cost, start)

    @property
    def additive(self) -> AdditiveStatements | None:
        """φ_n, in all other cases."""
        problem = self.problem
        if self.pooled is not None:
            return None
        beta, gamma = problem.constants.beta, problem.constants.gamma1
        return AdditiveStatements(problem.phi, problem.rounds * beta, problem.rounds * gamma,
                                  mean=problem.aggregation != "sum")

    def selection_cost(self, selected: Bools) -> Floats:
        """R·(β + γ₁Φ²)/k; infinite where there is no statement."""
        return self.problem.selection_cost(selected)

    def _pooled_cost(self, histogram: Floats, count: int) -> Floats:
        constants, phi = self.problem.constants, self.problem.pooled(histogram, count)
        return np.asarray(self.problem.rounds * (constants.beta + constants.gamma1 * phi**2) / count)

    def with_rounds(self, rounds: int) -> "Theta":
        """θ of the same problem over another number of rounds."""
        return replace(self, problem=self.problem.with_rounds(rounds))


def without_generalization(problem: Problem) -> Theta:
    """θ with γ₁ = 0, the conventional analysis."""
    return Theta(problem.without_generalization(), name="theta_without_generalization")
