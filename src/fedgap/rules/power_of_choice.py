"""``power_of_choice``: selects, of d random candidates, the k with the highest loss.

Y. J. Cho, J. Wang and G. Joshi, *Towards Understanding Biased Client Selection in Federated Learning*, AISTATS 2022
(first as arXiv:2010.01243).

1. Draw d ≥ k candidates without replacement, client n with probability p_n = D̂_n/ΣD̂.
2. Ask them for the loss of the present model on their data.
3. The k candidates with the highest loss take part; ties are broken at random.

This is the paper's π_cpow-d, in which the loss is estimated on one mini-batch. The updates are averaged with equal
weights. A loss that is not known counts as the highest, as in the authors' π_rpow-d.

Checked against the training program in the authors' supplement, and its selection as kept in a public reproduction
(github.com/peng-ju/Power-of-Choice). Deviations: the paper tries d from k to the whole fleet, here d = min(N, 2k). Ties
are broken at random, and in the authors' code by the order of the draw. The first round is selected like any other; in
the authors' code its clients are drawn uniformly. What asking the candidates costs is charged to the budgets.
"""

import numpy as np

from fedgap.arrays import Bools
from fedgap.rules.rule import RoundFacts, RoundRule, members

CANDIDATES = 2
"""d/k, the number of candidates per selected client."""


class PowerOfChoice(RoundRule):
    """Asks random candidates for their loss, and selects those with the highest."""

    uses_losses = True

    def asks(self, now: RoundFacts) -> Bools | None:
        """Return the candidates, (N,); None if no client is available."""
        here = np.flatnonzero(now.available)
        if not len(here):
            return None
        share = self.facts.samples[here] / self.facts.samples[here].sum()
        wanted = min(CANDIDATES * self.facts.count, len(here))
        return members(self.facts.size, self.random(now.number).choice(here, wanted, replace=False, p=share))

    def choose(self, now: RoundFacts) -> Bools:
        """Return the candidates with the highest loss, (N,). A loss that is not known counts as the highest."""
        candidates = self.asks(now)
        if candidates is None:
            return np.zeros(self.facts.size, dtype=np.bool_)
        ties = self.random(now.number).permutation(self.facts.size)
        loss = np.where(np.isnan(now.losses), np.inf, now.losses)
        order = np.lexsort((ties, -np.where(candidates, loss, -np.inf)))
        return members(self.facts.size, order[: self.wanted(now)]) & candidates
