"""The objective θ of Theorem 1, α + Σ_s (β/k + γ₁Φ²/k + γ₂·mean λ).

θ − α is the mean over rounds of R·(β/k + γ₁Φ²/k + γ₂·mean λ), as an objective requires.
"""

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
        """α, the part of θ that depends only on the number of rounds."""
        return self.problem.constants.alpha

    @property
    def pruning_weight(self) -> float:
        """R·γ₂, the cost of a mean pruning ratio of 1."""
        return self.problem.pruning_weight

    @property
    def pooled(self) -> PooledLabels | None:
        """The cost as a function of summed labels, if the aggregation is ``mixture`` and γ₁ > 0; otherwise None."""
        problem = self.problem
        if problem.aggregation != "mixture" or problem.constants.gamma1 == 0.0:
            return None
        assert problem.label_counts is not None
        assert problem.target_counts is not None
        start = replace(self, problem=replace(problem, aggregation="mean"))
        return PooledLabels(problem.label_counts, problem.target_counts, self._pooled_cost, start)

    @property
    def additive(self) -> AdditiveStatements | None:
        """The cost as a function of the sum or the mean of φ_n, if :attr:`pooled` is None; otherwise None."""
        problem = self.problem
        if self.pooled is not None:
            return None
        beta, gamma = problem.constants.beta, problem.constants.gamma1
        return AdditiveStatements(problem.phi, problem.rounds * beta, problem.rounds * gamma,
                                  mean=problem.aggregation != "sum")

    def selection_cost(self, selected: Bools) -> Floats:
        """Return R·(β + γ₁Φ²)/k of each selection; infinite if Φ has no value."""
        return self.problem.selection_cost(selected)

    def _pooled_cost(self, histogram: Floats, count: int) -> Floats:
        constants, phi = self.problem.constants, self.problem.pooled(histogram, count)
        return np.asarray(self.problem.rounds * (constants.beta + constants.gamma1 * phi**2) / count)

    def with_rounds(self, rounds: int) -> "Theta":
        """Return θ of the same problem with another number of rounds."""
        return replace(self, problem=self.problem.with_rounds(rounds))


def without_generalization(problem: Problem) -> Theta:
    """Return the objective θ with γ₁ = 0, as in analyses without generalization."""
    return Theta(problem.without_generalization(), name="theta_without_generalization")
