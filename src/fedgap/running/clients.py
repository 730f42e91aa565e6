"""The interface of whatever computes a round's updates: simulated clients or deployed nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from numpy.typing import ArrayLike
from torch import Tensor

from fedgap.learning.global_model import GlobalModel
from fedgap.running.events import Event
from fedgap.running.run_accounts import RunAccounts


class Update(NamedTuple):
    """The aggregated update of a round for R runs: the arguments of :meth:`GlobalModel.advance`."""

    direction: Tensor
    known: Tensor
    buffers: Tensor
    heard: Sequence[int]


@dataclass(frozen=True, eq=False)
class Delivery:
    """What the clients of R runs delivered in a round, K clients in all."""

    events: list[Event]
    """One event per run, already charged to the ledger; losses and evaluations are still missing."""
    senders: Sequence[ArrayLike]
    """For each run the numbers of the clients that delivered, in the order of ``losses``."""
    losses: Tensor
    """The training losses of these clients, (K,)."""
    accepted: Tensor
    """Whether each client's loss and gradient are finite, (K,) bool; otherwise its update is rejected."""
    update: Update | None
    """None if no client delivered; the model then stays as it is."""


class Clients(Protocol):
    """The clients of all runs that train together."""

    def work(self, model: GlobalModel, accounts: Sequence[RunAccounts]) -> Delivery | None:
        """Compute the update of round ``model.round``, whose ranking is in ``model.ranks``, and charge the round to
        every run.

        Returns None if too few clients delivered, so that the round must be tried again."""

    def keep(self, accounts: Sequence[RunAccounts]) -> None:
        """Drop all other runs, and use the jobs that these accounts now have."""
