"""``luo``: how many clients and local steps a round has, and with which probabilities clients are drawn.

B. Luo, X. Li, S. Wang, J. Huang and L. Tassiulas, *Cost-Effective Federated Learning Design*, INFOCOM 2021
(arXiv:2012.08336), bound the number of rounds until a loss is reached by

    R(K, E) ∝ A₀/E + B₀·(1 + (N − K)/(K·(N − 1)))·E

with K of N clients and E local steps. A₀/B₀ follows from the numbers of rounds that two pilot runs need. K and E
minimise the expected cost of a round times R(K, E). The cost is a weighted sum of energy and time, if K clients are
drawn uniformly without replacement and the slowest one decides how long the round lasts.

B. Luo, W. Xiao, S. Wang, J. Huang and L. Tassiulas, *Tackling System and Statistical Heterogeneity for Federated
Learning with Adaptive Client Sampling*, INFOCOM 2022 (arXiv:2112.11256), then choose the sampling probabilities q that
minimise

    Σ_n q_n·t_n · ( α·Σ_n p_n²·G_n²/q_n + β ),

where t_n are a client's seconds, p_n is its share of the samples and G_n the norm of its gradients; β/α follows again
from two pilot runs. Setting the derivative to zero gives q_n ∝ p_n·G_n/√(t_n + c) with one unknown number c between
−min t and 0, which is found by trying values on a grid.

The second part was checked against the authors' code for the extended paper (github.com/WENLIXIAO-CS/WirelessFL,
arXiv:2404.13804), which minimises the same product by sequential quadratic programming. Of the first part only the
abstract and excerpts in notes by others could be read, which agree with the cost and the uniform draw. The formula of
R(K, E) was not compared with the text.

Deviations from the papers: A₀/B₀ is taken from the scenario's forecast, β/α = 1 and G_n = 1, because nothing is trained
before planning; the authors take all of them from pilots. Energy and time count as shares of their budgets. K is one of
the shares of the fleet that are tried for all rules, because the formula alone would often select a single client per
round, whose forecast is far worse. Clients are drawn without replacement and averaged as in other rules, instead of K
times with replacement and weighted by p_n/(K·q_n), so that rules differ in their selection only.
"""

from collections.abc import Callable, Iterable

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members

BETA_BY_ALPHA = 1.0
"""β/α. With 1 and equal clients that are drawn uniformly, half of the bound does not depend on q."""
_STEPS = 200
"""Number of values of c that are tried."""


def spread(size: int, count: int) -> float:
    """Return 1 + (N − K)/(K·(N − 1)), which is 1 if all clients take part and 2 for one client."""
    return 1.0 if size == 1 else 1.0 + (size - count) / (count * (size - 1.0))


def expected_longest(values: Floats, count: int) -> float:
    """Return the expected largest of K values that are drawn uniformly without replacement from N.

    This is Σ_{i=K}^{N} C(i−1, K−1)/C(N, K)·t_(i) for the values t_(1) ≤ … ≤ t_(N): the largest is the i-th if the other
    K − 1 are among the i − 1 smaller ones.

    :param values: t, (N,); :param count: K, from 1 to N.
    """
    rank = np.arange(len(values), count, -1)
    # The shares of the sets whose largest value is the i-th, for i = N, N − 1, …, K.
    shares = count / len(values) * np.cumprod([1.0, *(rank - count) / (rank - 1.0)])
    return float(np.sort(values)[count - 1:][::-1] @ shares)


def constants_ratio(size: int, pilots: tuple[tuple[int, int, float], tuple[int, int, float]]) -> float:
    """Return A₀/B₀, at least 0, from two pilot runs, each given as (K, E, rounds until the same loss)."""
    (k1, e1, r1), (k2, e2, r2) = pilots
    s1, s2 = spread(size, k1) * e1, spread(size, k2) * e2
    below = r1 / e2 - r2 / e1  # r1·(A₀/e2 + B₀·s2) = r2·(A₀/e1 + B₀·s1)
    return max(0.0, (r2 * s1 - r1 * s2) / below) if below else 0.0


def best_count_and_steps(
    size: int, ratio: float, round_cost: Callable[[int, int], float], counts: Iterable[int], steps: Iterable[int]
) -> tuple[int, int]:
    """Return the (K, E) for which the cost of a round times A₀/(B₀·E) + spread·E is least.

    :param ratio: A₀/B₀; :param round_cost: the expected cost of a round as a function of K and E.
    """
    pairs = [(count, step) for count in counts for step in steps]
    return min(pairs, key=lambda pair: round_cost(*pair) * (ratio / pair[1] + spread(size, pair[0]) * pair[1]))


def sampling_probabilities(seconds: Floats, weight: Floats, beta_by_alpha: float = BETA_BY_ALPHA) -> Floats:
    """Return the probabilities q (N,) that minimise Σqt·(Σw²/q + β/α), up to the grid of c.

    At the minimum, c = −(β/α)·Σqt/(Σw²/q + β/α), which is never above 0.

    :param seconds: t_n, (N,); :param weight: w_n = p_n·G_n, (N,).
    """
    offsets = -float(seconds.min()) * (1.0 - np.geomspace(1e-6, 1.0, _STEPS))
    q = weight / np.sqrt(seconds + offsets[:, None])
    q /= q.sum(axis=1, keepdims=True)
    value = (q @ seconds) * ((weight**2 / q).sum(axis=1) + beta_by_alpha)
    return np.asarray(q[int(value.argmin())])


class LuoSampling(RoundRule):
    """Draws k clients with the probabilities q, without replacement."""

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self._q = sampling_probabilities(facts.seconds, facts.samples / facts.samples.sum())

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients of the next round, (N,)."""
        here = np.flatnonzero(now.available)
        if not len(here):
            return now.available
        share = self._q[here] / self._q[here].sum()
        return members(self.facts.size,
                       self.random(now.number).choice(here, self.wanted(now), replace=False, p=share))
