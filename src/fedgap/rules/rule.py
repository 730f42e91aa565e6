"""The base class of the rules, and what a rule knows before the first round and before each round."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.streams import stream


@dataclass(frozen=True, eq=False)
class RuleFacts:
    """What a rule knows before the first round. Arrays have one entry per client, (N,)."""

    count: int
    """k: the number of clients in a round."""
    samples: Floats
    """D̂_n: the number of training samples."""
    seconds: Floats
    """Time that each client needs for an unpruned round at full power and clock."""
    joules: Floats
    """Energy of each client for an unpruned round that takes as long as the slowest client needs at full power and
    clock."""
    label_counts: Floats
    """Training samples of each class, (N, classes)."""
    seed: int
    """Seed of the run."""

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class RoundFacts:
    """What a rule knows before a round."""

    number: int
    """The number of the round, counted from 0."""
    available: Bools
    """The clients that can take part, (N,)."""
    losses: Floats
    """Each client's training loss when it last took part or was asked, (N,); NaN if it never did."""
    last_round: Floats
    """The number of the round in which each client last took part, (N,); −1 if it never did."""


class RoundRule:
    """Selects the clients of each round.

    Whatever changes from round to round must be in ``state``, as plain values, so that a run can be resumed.
    """

    uses_losses = False
    """Whether the selection depends on the clients' losses. If not, all rounds can be selected before training."""

    def __init__(self, facts: RuleFacts) -> None:
        self.facts = facts
        self.state: dict[str, Any] = {}

    def asks(self, now: RoundFacts) -> Bools | None:
        """Return the clients that are asked for their loss before :meth:`choose` is called, (N,); None for nobody."""
        return None

    def choose(self, now: RoundFacts) -> Bools:
        """Return the clients that take part in the next round, (N,); nobody if none is available."""
        raise NotImplementedError

    def random(self, number: int) -> np.random.Generator:
        """Return the random generator for a round. It is the same for the same seed and round."""
        return stream(self.facts.seed, "policy", number)

    def wanted(self, now: RoundFacts) -> int:
        """Return k, or the number of available clients if that is smaller."""
        return min(self.facts.count, int(now.available.sum()))


def members(size: int, clients: Any) -> Bools:
    """Return truth values, (size,), that are True for the clients with these indices."""
    chosen = np.zeros(size, dtype=np.bool_)
    chosen[np.asarray(clients, dtype=np.int64)] = True
    return chosen
