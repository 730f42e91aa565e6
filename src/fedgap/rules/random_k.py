"""``random_k``: selects k clients at random, each set equally likely, as FedAvg does (McMahan et al., AISTATS 2017)."""

import numpy as np

from fedgap.arrays import Bools
from fedgap.rules.rule import RoundFacts, RoundRule, members


class RandomK(RoundRule):
    """Draws k of the available clients without replacement."""

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients of the next round, (N,)."""
        here = np.flatnonzero(now.available)
        return members(self.facts.size, self.random(now.number).permutation(here)[: self.wanted(now)])
