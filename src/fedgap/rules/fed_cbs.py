"""``fed_cbs``: selects clients whose labels together are balanced.

J. Zhang, A. Li, M. Tang, J. Sun, X. Chen, F. Zhang, C. Chen, Y. Chen and H. Li, *Fed-CBS: A Heterogeneity-Aware Client
Sampling Mechanism for Federated Learning via Class-Imbalance Reduction*, ICML 2023, arXiv:2209.15245.

The quadratic class-imbalance degree of a set M of clients, with D̂_n samples and label shares α_n over B classes, is

    QCID(M) = Σ_{i,j∈M} D̂_i·D̂_j·⟨α_i, α_j⟩ / (Σ_{n∈M} D̂_n)² − 1/B,

which is the squared distance of the summed labels' shares from uniform shares. Clients are drawn one after the other.
The first client c has a probability proportional to

    1/QCID({c})^β₁ + λ·√(3·ln t / (2·T_c)),

where T_c is how often c took part before round t. The second has one proportional to 1/QCID({c₁, c})^β₂, divided by
the weight of the first client c₁, and the m-th to QCID(M)^β₍m₋₁₎/QCID(M ∪ {c})^βₘ, where M are those drawn before. The
divisor and QCID(M) are the same for all candidates, so that they cancel. βₘ = m and λ = 10 as in the paper's
experiments. The paper computes the products D̂_i·D̂_j·⟨α_i, α_j⟩ under homomorphic encryption; here the label histograms
are known.

Checked against the example in Figure 3 of the paper and against four public implementations by others; neither the
authors' code nor the text of the equations could be read. All four have this weight of the first client, three of them
this QCID (one leaves out −1/B) and βₘ = m (one has powers from 1 to 10), and two λ = 10 as default. They differ in the
second client: two divide its weight by a bonus of the candidate, one adds a bonus to the weights of all clients, and
one has no bonus after the first client. Here it is divided by the weight of c₁, because only then the weights of all
steps multiply to 1/QCID^β_k of the whole set, which is the purpose of the sequence.

Deviations from the paper, both of which avoid a division by zero: T_c begins at 1, as in two of the implementations,
and the QCID, which is 0 for a perfectly balanced set, is taken as at least 1e-9.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members

EXPLORATION = 10.0
"""λ: the weight of exploration."""
_LEAST = 1e-9
"""The least QCID that is divided by; see the module docstring."""


def qcid(pooled: Floats) -> Floats:
    """Return the QCID of sets with these summed label counts (..., B): Σ_b share_b² − 1/B, shape (...)."""
    share = pooled / pooled.sum(axis=-1, keepdims=True)
    return np.asarray((share**2).sum(axis=-1) - 1.0 / pooled.shape[-1])


class FedCBS(RoundRule):
    """Draws the clients of a round one after the other, such that their labels together are balanced."""

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"times": [1] * facts.size}

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients of the next round, (N,)."""
        counts, random = self.facts.label_counts, self.random(now.number)
        chosen = np.zeros(self.facts.size, dtype=np.bool_)
        for turn in range(1, self.wanted(now) + 1):
            left = np.flatnonzero(now.available & ~chosen)
            pooled = counts[chosen].sum(axis=0) + counts[left]
            log_weight = -turn * np.log(np.maximum(qcid(pooled), _LEAST))
            weight = np.exp(log_weight - log_weight.max())  # common factors, such as that of QCID(M), cancel
            if turn == 1:
                times = np.array(self.state["times"], dtype=np.float64)[left]
                bonus = EXPLORATION * np.sqrt(1.5 * np.log(now.number + 1.0) / times)
                weight = np.exp(log_weight) + bonus
            chosen |= members(self.facts.size, [random.choice(left, p=weight / weight.sum())])
        self.state["times"] = (np.array(self.state["times"]) + chosen).tolist()
        return chosen
