"""``fed_ent_opt``: greedily the largest entropy of the pooled labels (Lutz et al., arXiv:2411.01240, FedEntOpt).

The first client of a round is drawn at random. Then the client m that maximises H((L + l_m)/‖L + l_m‖₁) joins, with L
the label counts of those who are in and l_m its own, until there are k. Clients that took part wait in a first-in,
first-out buffer and are not chosen before they leave it.

Deviation: the paper sets the buffer's size by hand; here it holds as many whole rounds as leave k clients to choose
from, at most half of the fleet. Where too few are outside, those that are longest in the buffer may be chosen.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members


def entropy(counts: Floats) -> Floats:
    """H of label counts (..., B) in nats, (...)."""
    share = counts / counts.sum(axis=-1, keepdims=True)
    return np.asarray(-np.where(share > 0.0, share * np.log(np.where(share > 0.0, share, 1.0)), 0.0).sum(axis=-1))


class FedEntOpt(RoundRule):
    """Adds client after client."""

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"buffer": []}

    def choose(self, now: RoundFacts) -> Bools:
        """A random client and those that balance it best."""
        counts, wanted = self.facts.label_counts, self.wanted(now)
        buffer: list[int] = self.state["buffer"]
        free = now.available & ~members(self.facts.size, buffer)
        for client in buffer:  # the longest waiting first
            if free.sum() >= wanted:
                break
            free[client] = now.available[client]
        chosen = np.zeros(self.facts.size, dtype=np.bool_)
        if not wanted:
            return chosen
        chosen[self.random(now.number).choice(np.flatnonzero(free))] = True
        while chosen.sum() < wanted:
            left = np.flatnonzero(free & ~chosen)
            chosen[left[int(entropy(counts[chosen].sum(axis=0) + counts[left]).argmax())]] = True
        room = min(self.facts.size - self.facts.count, self.facts.size // 2)
        later = [client for client in buffer if not chosen[client]] + np.flatnonzero(chosen).tolist()
        self.state["buffer"] = later[max(len(later) - room, 0):]
        return chosen
