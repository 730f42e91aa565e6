"""How the server's packets reach the nodes, how long it waits for them, and what it noticed meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedgap.deploy.packet import Packet
from fedgap.errors import InputError

WAITING = "waiting.json"
"""In the run's folder while too few nodes are there: what the server waits for."""


@dataclass(frozen=True)
class Answer:
    """A reply to the message ``ticket``: the packet's bytes, or why there is none."""

    ticket: str
    data: bytes = b""
    error: str = ""


class Transport(Protocol):
    """Sends packets to nodes, whose ids are whole numbers. Flower's grid is one; tests use another in one process."""

    def online(self) -> set[int]:
        """The nodes that are connected as far as is known."""

    def send(self, packets: dict[int, Packet], ttl_s: float) -> dict[int, str]:
        """Send a packet to each node; a ticket for each. A packet not fetched within ``ttl_s`` is void."""

    def collect(self, tickets: Iterable[str]) -> list[Answer]:
        """The answers that are there; does not wait long."""


@dataclass(frozen=True)
class Quorum:
    """How many of a round's selected clients must deliver a gradient, or the round is tried again."""

    least: int = 1
    share: float = 0.0
    """Of the round's selected clients; 0 to ask for no share."""

    @staticmethod
    def parse(text: str) -> Quorum:
        """What a person wrote: a whole number such as ``2``, or a share such as ``0.5``; ``1.0`` is everybody."""
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
        """Gradients that a round with so many selected clients needs: at least one, and never more than there are."""
        return max(1, min(selected, max(self.least, math.ceil(self.share * selected - 1e-9))))


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds, and for how many."""

    round_s: float = 60.0
    """For the selected nodes' answers in a round."""
    enrol_s: float = 180.0
    """For all nodes to enrol."""
    poll_s: float = 0.1
    """Between two looks for answers."""
    quorum: Quorum = field(default_factory=Quorum)
    """Without so many gradients a round does not count."""


@dataclass
class News:
    """What happened to nodes since the last round; the next round's event tells it."""

    items: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, client: int | None, what: str) -> None:
        """Note something about a client, or about no client in particular; once, however long a pause lasts."""
        item: dict[str, Any] = {"what": what} if client is None else {"client": client, "what": what}
        if item not in self.items:
            self.items.append(item)

    def take(self) -> list[dict[str, Any]]:
        """What was noted, which is then forgotten here."""
        items, self.items = self.items, []
        return items
