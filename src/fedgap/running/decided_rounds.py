"""The base of everything that decides a run's rounds one by one: past decisions and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.running.ledger import Ledger

Ask = Callable[[int, Sequence[int]], Sequence[float]]
"""Called with a round and clients; the losses of the present model on a mini-batch of each."""


def nobody_answers(number: int, clients: Sequence[int]) -> Sequence[float]:
    """Answer NaN for every client, where clients cannot be asked for their losses."""
    return [float("nan")] * len(clients)


class DecidedRounds:
    """The rounds of one run as far as they are decided."""

    def __init__(self, clients: int) -> None:
        """:param clients: how many the fleet has."""
        self.decided: list[dict[str, Any]] = []
        """The decision of each round as plain values, and what it adds to the round's ``event``."""
        self.ended = ""
        """Why no further round follows; "" while rounds do."""
        self.ask: Ask = nobody_answers
        """How clients are asked for their loss."""
        self._losses, self._last_round = np.full(clients, np.nan), np.full(clients, -1.0)

    def undecided(self, number: int) -> bool:
        """Whether neither round ``number`` nor an end of the training has been decided yet."""
        return len(self.decided) <= number and not self.ended

    def learn(self, number: int, clients: Sequence[int], losses: Sequence[float]) -> None:
        """Note the training losses of a round's clients."""
        self._losses[list(clients)] = losses
        self._last_round[list(clients)] = number

    def _probe(self, number: int, asked: Bools, client_j: Floats, client_s: Floats, ledger: Ledger) -> dict[str, Any]:
        """Ask clients, (N,), for their loss, charge the cost and return the event's keys; ends the run if a budget is
        spent."""
        self.ended = ledger.affords(float(client_j.sum()), float(client_s.max()))
        if self.ended:
            return {}
        self._losses[asked] = self.ask(number, np.flatnonzero(asked).tolist())
        return ledger.book_probe(client_j, client_s)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"decided": self.decided, "ended": self.ended,
                "losses": [None if np.isnan(loss) else float(loss) for loss in self._losses],
                "last_round": self._last_round.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        self.decided, self.ended = state["decided"], state["ended"]
        self._losses = np.array([np.nan if loss is None else loss for loss in state["losses"]])
        self._last_round = np.array(state["last_round"])
