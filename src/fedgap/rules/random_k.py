"""``random_k``: k clients at random, each set equally likely (McMahan et al., AISTATS 2017, FedAvg's choice)."""

import numpy as np

from fedgap.arrays import Bools
from fedgap.rules.rule import RoundFacts, RoundRule, members


class RandomK(RoundRule):
    """Draws k of the available clients without replacement."""

    def choose(self, now: RoundFacts) -> Bools:
        """A set drawn uniformly."""
        here = np.flatnonzero(now.available)
        return members(self.facts.size, self.random(now.number).permutation(here)[: self.wanted(now)])
