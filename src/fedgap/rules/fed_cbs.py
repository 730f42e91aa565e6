"""``fed_cbs``: sets whose pooled labels are balanced.

J. Zhang, A. Li, M. Tang, J. Sun, X. Chen, F. Zhang, C. Chen, Y. Chen and H. Li, *Fed-CBS: A Heterogeneity-Aware Client
Sampling Mechanism for Federated Learning via Class-Imbalance Reduction*, ICML 2023, arXiv:2209.15245.

The quadratic class-imbalance degree of a set M, with D̂_n samples and label shares α_n of B classes, is

    QCID(M) = Σ_{i,j∈M} D̂_i·D̂_j·⟨α_i, α_j⟩ / (Σ_{n∈M} D̂_n)² − 1/B,

the squared distance of the pooled label shares from the uniform ones. Clients are drawn one after the other, the first
with a probability proportional to

    1/QCID({c})^β₁ + λ·√(3·ln t / (2·T_c)),

T_c how often c took part before round t, and the m-th proportional to QCID(M)^β₍m₋₁₎/QCID(M ∪ {c})^βₘ, with βₘ = m and
λ = 10 as in the paper's experiments. The paper computes the products D̂_i·D̂_j·⟨α_i, α_j⟩ under homomorphic encryption;
here the label histograms are known.

Deviations: T_c begins at 1, and a perfectly balanced set counts as having the QCID 1e-9.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members

EXPLORATION = 10.0
"""λ."""
_LEAST = 1e-9


def qcid(pooled: Floats) -> Floats:
    """QCID of sets with these pooled label counts, (..., B) → (...): Σ_b share_b² − 1/B."""
    share = pooled / pooled.sum(axis=-1, keepdims=True)
    return np.asarray((share**2).sum(axis=-1) - 1.0 / pooled.shape[-1])


class FedCBS(RoundRule):
    """Draws the clients of a round one after the other."""

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"times": [1] * facts.size}

    def choose(self, now: RoundFacts) -> Bools:
        """A set drawn in sequence."""
        counts, random = self.facts.label_counts, self.random(now.number)
        chosen = np.zeros(self.facts.size, dtype=np.bool_)
        for turn in range(1, self.wanted(now) + 1):
            left = np.flatnonzero(now.available & ~chosen)
            pooled = counts[chosen].sum(axis=0) + counts[left]
            log_weight = -turn * np.log(np.maximum(qcid(pooled), _LEAST))
            weight = np.exp(log_weight - log_weight.max())  # what all share cancels, QCID(M) too
            if turn == 1:
                times = np.array(self.state["times"], dtype=np.float64)[left]
                bonus = EXPLORATION * np.sqrt(1.5 * np.log(now.number + 1.0) / times)
                weight = np.exp(log_weight) + bonus
            chosen |= members(self.facts.size, [random.choice(left, p=weight / weight.sum())])
        self.state["times"] = (np.array(self.state["times"]) + chosen).tolist()
        return chosen
