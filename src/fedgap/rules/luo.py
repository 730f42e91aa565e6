"""``luo``: how many clients and local steps, and with which probabilities (Luo et al., INFOCOM 2021 and 2022).

B. Luo, X. Li, S. Wang, J. Huang and L. Tassiulas, *Cost-Effective Federated Learning Design* (arXiv:2012.08336), bound
the rounds until a loss is reached by

    R(K, E) ∝ A₀/E + B₀·(1 + (N − K)/(K·(N − 1)))·E

with K of N clients and E local steps. A₀/B₀ follows from the rounds that two pilots need, and (K, E) minimises the
expected cost of a round times R(K, E).

B. Luo, W. Xiao, S. Wang, J. Huang and L. Tassiulas, *Tackling System and Statistical Heterogeneity for Federated
Learning with Adaptive Client Sampling* (arXiv:2112.11256), then choose the sampling probabilities q that minimise

    Σ_n q_n·t_n · ( α·Σ_n p_n²·G_n²/q_n + β ),

t_n a client's seconds, p_n its share of the samples, G_n its gradients' norm, and β/α from two pilots again. Setting
the derivative to zero gives q_n ∝ p_n·G_n/√(t_n + c) with one number c, which a line search finds.

Deviations: A₀/B₀ is read off the scenario's forecast, β/α = 1 and G_n = 1, because nothing was trained before planning.
Clients are drawn without replacement and averaged like any others, not K times with replacement and reweighted by
p_n/(K·q_n).
"""

from collections.abc import Callable, Iterable

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members

BETA_BY_ALPHA = 1.0
"""β/α: 1 where half of the bound does not depend on q, for equal clients drawn uniformly."""
_STEPS = 200


def spread(size: int, count: int) -> float:
    """1 + (N − K)/(K·(N − 1)): 1 where everybody takes part, 2 for one client."""
    return 1.0 if size == 1 else 1.0 + (size - count) / (count * (size - 1.0))


def constants_ratio(size: int, pilots: tuple[tuple[int, int, float], tuple[int, int, float]]) -> float:
    """A₀/B₀ from two pilots (K, E, rounds to the same loss); at least 0."""
    (k1, e1, r1), (k2, e2, r2) = pilots
    s1, s2 = spread(size, k1) * e1, spread(size, k2) * e2
    below = r1 / e2 - r2 / e1  # r1·(A₀/e2 + B₀·s2) = r2·(A₀/e1 + B₀·s1)
    return max(0.0, (r2 * s1 - r1 * s2) / below) if below else 0.0


def best_count_and_steps(
    size: int, ratio: float, round_cost: Callable[[int, int], float], counts: Iterable[int], steps: Iterable[int]
) -> tuple[int, int]:
    """(K, E) of the least round cost times A₀/(B₀·E) + spread·E; ``ratio``: A₀/B₀."""
    pairs = [(count, step) for count in counts for step in steps]
    return min(pairs, key=lambda pair: round_cost(*pair) * (ratio / pair[1] + spread(size, pair[0]) * pair[1]))


def sampling_probabilities(seconds: Floats, weight: Floats, beta_by_alpha: float = BETA_BY_ALPHA) -> Floats:
    """q that minimises Σqt·(Σw²/q + β/α); ``weight``: p_n·G_n."""
    shortest, longest = float(seconds.min()), float(seconds.max())
    offsets = np.concatenate([-shortest * (1.0 - np.geomspace(1e-6, 1.0, _STEPS)),
                              longest * np.geomspace(1e-3, 1e3, _STEPS)])
    q = weight / np.sqrt(seconds + offsets[:, None])
    q /= q.sum(axis=1, keepdims=True)
    value = (q @ seconds) * ((weight**2 / q).sum(axis=1) + beta_by_alpha)
    return np.asarray(q[int(value.argmin())])


class LuoSampling(RoundRule):
    """Draws k clients by their probabilities."""

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self._q = sampling_probabilities(facts.seconds, facts.samples / facts.samples.sum())

    def choose(self, now: RoundFacts) -> Bools:
        """A set drawn without replacement."""
        here = np.flatnonzero(now.available)
        if not len(here):
            return now.available
        share = self._q[here] / self._q[here].sum()
        return members(self.facts.size,
                       self.random(now.number).choice(here, self.wanted(now), replace=False, p=share))
