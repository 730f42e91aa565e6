"""How the server's packets reach the nodes, how long it waits for them, and what it noticed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedgap.deploy.packet import Packet


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
class Patience:
    """How long the server waits, in seconds."""

    round_s: float = 60.0
    """For the selected nodes' answers in a round."""
    enrol_s: float = 180.0
    """For all nodes to enrol."""
    poll_s: float = 0.1
    """Between two looks for answers."""


@dataclass
class News:
    """What happened to nodes since the last round; the next round's event tells it."""

    items: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, client: int | None, what: str) -> None:
        """Note something about a client, or about no client in particular."""
        self.items.append({"what": what} if client is None else {"client": client, "what": what})

    def take(self) -> list[dict[str, Any]]:
        """What was noted, which is then forgotten here."""
        items, self.items = self.items, []
        return items
