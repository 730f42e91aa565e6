"""How the server's packets reach the nodes, how long the server waits, and what it noted about nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedgap.deploy.packet import Packet
from fedgap.errors import InputError

WAITING = "waiting.json"
"""File in the run's folder that says what the server waits for; it exists while too few nodes are there."""


@dataclass(frozen=True)
class Answer:
    """The answer to the message ``ticket``: the bytes of a packet, or an error that says why there is none."""

    ticket: str
    data: bytes = b""
    error: str = ""


class Transport(Protocol):
    """Sends packets to nodes, which have whole numbers as ids. Flower's grid is one implementation; tests use another
    one."""

    def online(self) -> set[int]:
        """The ids of the nodes that seem to be connected."""

    def send(self, packets: dict[int, Packet], ttl_s: float) -> dict[int, str]:
        """Send a packet to each node; returns a ticket for each. A packet that is not fetched within ``ttl_s`` seconds
        expires."""

    def collect(self, tickets: Iterable[str]) -> list[Answer]:
        """The answers to these tickets that have arrived; does not wait for others."""


@dataclass(frozen=True)
class Quorum:
    """How many of a round's selected clients must deliver an update; with fewer the round is tried again."""

    least: int = 1
    share: float = 0.0
    """The share of the round's selected clients that must deliver; 0 for no share."""

    @staticmethod
    def parse(text: str) -> Quorum:
        """The quorum from its text: a whole number such as ``2``, or a share such as ``0.5``; ``1.0`` means all
        clients."""
        try:
            if text.strip().isdigit():
                if int(text) >= 1:
                    return Quorum(least=int(text))
            elif 0.0 < float(text) <= 1.0:
                return Quorum(share=float(text))
        except ValueError:
            pass
        raise InputError("--min-clients: must be a whole number of at least 1, or a share of a round's clients such as "
                         f"0.5 (1.0 is all of them); got {text[:40]!r}")

    def __str__(self) -> str:
        return str(self.share) if self.share else str(self.least)

    def needed(self, selected: int) -> int:
        """The number of updates that a round with this many selected clients needs: at least one, and at most all of
        them."""
        return max(1, min(selected, max(self.least, math.ceil(self.share * selected - 1e-9))))


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds, and for how many clients."""

    round_s: float = 60.0
    """How long to wait for the selected nodes' answers in a round."""
    enrol_s: float = 180.0
    """How long to wait until all nodes have enrolled."""
    poll_s: float = 0.1
    """Time between two checks for answers."""
    quorum: Quorum = field(default_factory=Quorum)
    """How many updates a round needs to count."""


@dataclass
class News:
    """What happened to nodes since the last round. The event of the next round includes it."""

    items: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, client: int | None, what: str) -> None:
        """Note something about a client, or about no client in particular. The same note is kept only once."""
        item: dict[str, Any] = {"what": what} if client is None else {"client": client, "what": what}
        if item not in self.items:
            self.items.append(item)

    def take(self) -> list[dict[str, Any]]:
        """Return all notes, and forget them."""
        items, self.items = self.items, []
        return items
