"""Measured: beside the paper's six, the plan that scores best on what ranked random plans by their accuracy.

θ does not rank plans well; of what can be computed beforehand this did better (``experiments/guide``):

    (1 + 10·KL(A) + 1/k + λ̄/5)/R        the smaller the better,

KL(A) the divergence of the selected clients' pooled labels from the target's (both add-one smoothed), k their number,
λ̄ the mean pruning ratio, R the number of rounds, which is decided too. The weight of λ̄ is too small to have been
measured: it spends what is left of the budgets on keeping more of the model. Where no labels are known, another 1/k
stands for 10·KL(A), which falls with k in much the same way.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedgap.planning.problem import Array, Problem
from fedgap.planning.schemes.base import Scheme
from fedgap.theory import BoundConstants, divergence, smoothed

DIVERGENCE, FEW_CLIENTS, PRUNING = 10.0, 1.0, 0.2


@dataclass(frozen=True, eq=False)
class Measured(Problem):
    """P1's constraints with the measured objective in θ's own form: α = 1/R, β = 1/R², γ₁ = 10/R², γ₂ = 0.2/R².

    With Φ² = k·KL(A), α + Σ_s (β/k + γ₁Φ²/k + γ₂·λ̄) is the objective, its terms averaged over rounds, and P1's solvers
    solve it. Without labels γ₁ = 0 and β is twice as large.
    """

    @classmethod
    def from_problem(cls, problem: Problem) -> Problem:
        """The measured problem of a fleet, its budgets and its number of rounds."""
        known = problem.label_counts is not None and problem.target_counts is not None
        aggregation: Literal["mixture", "mean"] = "mixture" if known else "mean"
        own = cls(**(vars(problem) | {"aggregation": aggregation}))
        if known:
            # By themselves clients only guide the search of a large fleet.
            alone = own.statement(np.eye(problem.size, dtype=np.bool_))
            own = replace(own, phi=alone * np.sqrt(problem.size))
        return own.with_rounds(problem.rounds)

    def with_rounds(self, rounds: int) -> Problem:
        """The same over another number of rounds."""
        known, square = self.label_counts is not None, float(rounds) ** 2
        constants = BoundConstants(
            alpha=1.0 / rounds, beta=FEW_CLIENTS * (1 if known else 2) / square,
            gamma1=DIVERGENCE / square if known else 0.0, gamma2=PRUNING / square, rounds=rounds,
        )
        return replace(self, rounds=rounds, constants=constants)

    def pooled(self, histogram: Array, count: npt.ArrayLike) -> Array:
        """Φ = √(k·KL(A)) of each selection; infinite for nobody."""
        assert self.target_counts is not None
        apart = divergence(smoothed(histogram), smoothed(self.target_counts))
        clients = np.asarray(count)
        return np.where(clients > 0, np.sqrt(np.maximum(clients * apart, 0.0)), np.inf)


SCHEME = Scheme(name="measured", title="Measured guide", objective=Measured.from_problem)
