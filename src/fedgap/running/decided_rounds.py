"""Base class of what decides a run's rounds one by one: it keeps past decisions and the clients' losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.running.ledger import Ledger

Ask = Callable[[int, Sequence[int]], Sequence[float]]
"""A function of a round's number and some clients: the losses of the present model on a mini-batch of each client."""


def nobody_answers(number: int, clients: Sequence[int]) -> Sequence[float]:
    """Answer NaN for every client. Used if clients cannot be asked for their losses."""
    return [float("nan")] * len(clients)


class DecidedRounds:
    """The rounds of one run that have been decided so far."""

    def __init__(self, clients: int) -> None:
        """``clients`` is the number of clients in the fleet."""
        self.decided: list[dict[str, Any]] = []
        """The decision of each round as plain values; its key ``event`` holds what is added to the round's event."""
        self.ended = ""
        """Why the training ends; "" while more rounds follow."""
        self.ask: Ask = nobody_answers
        """The function that asks clients for their losses."""
        self._losses, self._last_round = np.full(clients, np.nan), np.full(clients, -1.0)

    def undecided(self, number: int) -> bool:
        """Whether neither round ``number`` nor an end of the training has been decided yet."""
        return len(self.decided) <= number and not self.ended

    def learn(self, number: int, clients: Sequence[int], losses: Sequence[float]) -> None:
        """Store the training losses of a round's clients."""
        self._losses[list(clients)] = losses
        self._last_round[list(clients)] = number

    def _probe(self, number: int, asked: Bools, client_j: Floats, client_s: Floats, ledger: Ledger) -> dict[str, Any]:
        """Ask the clients ``asked`` (N,) for their loss, charge the cost to the ledger, and return the keys for the
        round's event.

        If a budget does not suffice, nobody is asked and the run ends."""
        self.ended = ledger.affords(float(client_j.sum()), float(client_s.max()))
        if self.ended:
            return {}
        self._losses[asked] = self.ask(number, np.flatnonzero(asked).tolist())
        return ledger.book_probe(client_j, client_s)

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint must hold."""
        return {"decided": self.decided, "ended": self.ended,
                "losses": [None if np.isnan(loss) else float(loss) for loss in self._losses],
                "last_round": self._last_round.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.decided, self.ended = state["decided"], state["ended"]
        self._losses = np.array([np.nan if loss is None else loss for loss in state["losses"]])
        self._last_round = np.array(state["last_round"])
