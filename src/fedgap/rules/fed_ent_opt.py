"""``fed_ent_opt``: adds the client that gives the summed labels the largest entropy, one by one (FedEntOpt).

A. Lutz, G. Steidl, K. Müller and W. Samek, *Optimizing Federated Learning by Entropy-Based Client Selection*,
arXiv:2411.01240.

The first client of a round is drawn at random. Then the client m that maximises the entropy H((L + l_m)/‖L + l_m‖₁)
joins, where L are the summed label counts of the clients that have joined and l_m its own, until there are k. Every
client that joins also enters a first-in, first-out buffer of Q places, 0 < Q ≤ N − k. Clients in the buffer cannot
join. If the buffer is full, the oldest one leaves it.

Checked against a public summary of the paper and two public implementations of its Algorithm 1 by others; neither the
authors' code nor the text of the algorithm could be read. One of them, as here, updates the buffer after every client,
the other at the end of a round.

Deviations from the paper: it sets Q by hand (according to one of the implementations about 0.5·N to 0.7·N are best);
here Q is half of the fleet, or N − k if that is less. If all available clients are in the buffer, the one that has been
there longest joins. If several clients give the largest entropy, the first of the fleet joins.
"""

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts, members


def entropy(counts: Floats) -> Floats:
    """Return the entropy H of label counts (..., B), in nats, shape (...)."""
    share = counts / counts.sum(axis=-1, keepdims=True)
    return np.asarray(-np.where(share > 0.0, share * np.log(np.where(share > 0.0, share, 1.0)), 0.0).sum(axis=-1))


class FedEntOpt(RoundRule):
    """Adds one client after another, such that the entropy of their summed labels is largest."""

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self.state = {"buffer": []}

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients of the next round, (N,): a random one, and those that balance its labels best."""
        counts, random = self.facts.label_counts, self.random(now.number)
        room = min(self.facts.size - self.facts.count, self.facts.size // 2)
        buffer: list[int] = self.state["buffer"]
        chosen = np.zeros(self.facts.size, dtype=np.bool_)
        for turn in range(self.wanted(now)):
            left = now.available & ~chosen
            free = np.flatnonzero(left & ~members(self.facts.size, buffer))
            if not len(free):
                joins = next(client for client in buffer if left[client])
            elif turn == 0:
                joins = int(random.choice(free))
            else:
                joins = int(free[entropy(counts[chosen].sum(axis=0) + counts[free]).argmax()])
            chosen[joins] = True
            buffer = [*(client for client in buffer if client != joins), joins]
            buffer = buffer[max(len(buffer) - room, 0):]
        self.state["buffer"] = buffer
        return chosen
