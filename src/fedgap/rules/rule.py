"""What a rule knows, and what it answers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.streams import stream


@dataclass(frozen=True, eq=False)
class RuleFacts:
    """What a rule knows before the first round; arrays have one entry per client, (N,)."""

    count: int
    """k: clients in a round."""
    samples: Floats
    """D̂_n: training samples."""
    seconds: Floats
    """Of an unpruned round at full power and clock."""
    joules: Floats
    """Of an unpruned round within the time that the slowest client needs at full power and clock."""
    label_counts: Floats
    """Training labels, (N, classes)."""
    seed: int
    """Seed of the run."""

    @property
    def size(self) -> int:
        """N."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class RoundFacts:
    """What a rule knows before a round."""

    number: int
    """Rounds done so far."""
    available: Bools
    """Who can take part, (N,)."""
    losses: Floats
    """Each client's training loss when it last took part or was asked; NaN before, (N,)."""
    last_round: Floats
    """When each client last took part; −1 before, (N,)."""


class RoundRule:
    """Chooses the clients of each round. All that changes from round to round is in ``state``, as plain values."""

    uses_losses = False
    """Whether the choice depends on what was learned; if not, all rounds can be chosen before the training."""

    def __init__(self, facts: RuleFacts) -> None:
        self.facts = facts
        self.state: dict[str, Any] = {}

    def asks(self, now: RoundFacts) -> Bools | None:
        """The clients that must tell their loss before the choice, (N,); None for nobody."""
        return None

    def choose(self, now: RoundFacts) -> Bools:
        """Who takes part in the next round, (N,); nobody where nobody is available."""
        raise NotImplementedError

    def random(self, number: int) -> np.random.Generator:
        """The random numbers of a round."""
        return stream(self.facts.seed, "policy", number)

    def wanted(self, now: RoundFacts) -> int:
        """k, or the number of available clients if it is smaller."""
        return min(self.facts.count, int(now.available.sum()))


def members(size: int, clients: Any) -> Bools:
    """Indices of clients as truth values, (N,)."""
    chosen = np.zeros(size, dtype=np.bool_)
    chosen[np.asarray(clients, dtype=np.int64)] = True
    return chosen
