"""The deployed counterpart of the simulated clients: nodes that are reached over a network, and may fail."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.round_messages import MARGIN_BYTES, AcceptedUpdate, RoundMessages
from fedgap.deploy.transport import Answer, News, Patience, Transport
from fedgap.errors import FedgapError
from fedgap.learning.global_model import GlobalModel
from fedgap.planning.plan import Plan
from fedgap.running.clients import Delivery
from fedgap.running.events import Event
from fedgap.running.faults import Attendance, Work
from fedgap.running.run_accounts import RunAccounts

TTL_MARGIN_S = 2.0
"""A message lives this much longer than its round, so that the server sets the deadline, not the SuperLink."""


@dataclass
class Peer:
    """What the server knows of a client's node."""

    node: int
    synced: int = -1
    """The last round that the node has answered: its copy is at that round."""
    silent: bool = False
    """It missed a deadline and has not answered since: it is not waited for."""
    indices: bool = False
    """Its floats differ from the server's: indices go along."""
    ping: str = ""
    tickets: dict[str, int] = field(default_factory=dict)
    """Open rounds' messages: ticket → round."""


@dataclass
class Arrivals:
    """Who of a round's selected clients delivered an update, and why the others did not."""

    updates: dict[int, AcceptedUpdate] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    """Known to be offline, or failed."""
    late: list[int] = field(default_factory=list)
    """No answer by the deadline."""
    rejected: list[int] = field(default_factory=list)
    """The answer was refused."""

    def attendance(self, work: Work) -> Attendance:
        """The modelled cost: everybody who worked pays the planned joules, a client that was offline none."""
        def marked(clients: Sequence[int]) -> NDArray[np.bool_]:
            result = np.zeros(len(work.selected), dtype=np.bool_)
            result[list(clients)] = True
            return result

        dropped = marked(self.dropped)
        spent = np.where(dropped, 0.0, 1.0)
        return Attendance(marked([*self.updates, *self.rejected]), dropped, marked(self.late), spent * work.compute_j,
                          spent * work.upload_j, spent * work.client_s, work.delay_s)


class NodeClients:
    """The clients of one deployed run; see :class:`~fedgap.running.clients.Clients`."""

    def __init__(self, transport: Transport, patience: Patience, plan: Plan, messages: RoundMessages, news: News,
                 greet: Callable[[], None]) -> None:
        """``greet`` lets new nodes in; it is called at the start of every round."""
        self._transport, self._patience, self._plan, self._greet = transport, patience, plan, greet
        self._messages, self._news = messages, news
        self.peers: dict[int, Peer] = {}
        """By client."""

    def admit(self, client: int, node: int) -> None:
        """Make an enrolled node the peer of its client."""
        if client in self.peers:
            self._news.tell(client, "is back, on another node")
        self.peers[client] = Peer(node)

    def keep(self, accounts: Sequence[RunAccounts]) -> None:
        """There is one run only, which is never left out."""

    def work(self, model: GlobalModel, accounts: Sequence[RunAccounts]) -> Delivery:
        """A round: send requests, wait for the selected nodes' answers, aggregate what arrived."""
        (account,) = accounts
        segment = account.segment(model.round)
        arrivals, measured = self._collect(model, np.flatnonzero(account.job.selected[segment]).tolist())
        outline = account.outline_of(segment, arrivals.attendance(account.work[segment]))
        event = account.book(model.round, outline) | measured
        account.reject(event, sorted(arrivals.rejected))
        if news := self._news.take():
            event["news"] = news
        senders = sorted(arrivals.updates)
        losses = torch.tensor([arrivals.updates[n].loss for n in senders], dtype=torch.float64)
        return Delivery([event], [senders], losses, torch.ones(len(senders), dtype=torch.bool),
                        self._messages.aggregate(model, arrivals.updates))

    def _collect(self, model: GlobalModel, selected: Sequence[int]) -> tuple[Arrivals, Event]:
        """What the selected clients delivered, and what was measured of it."""
        began, online = time.monotonic(), self._transport.online()
        self._greet()
        self._ping(online)
        live = {n: peer for n, peer in self.peers.items() if peer.node in online and not peer.silent}
        packets = {n: self._request(model, n, n in selected, state=peer.synced != model.round - 1)
                   for n, peer in live.items()}
        sent = {n: _payload(packet) for n, packet in packets.items()}
        self._send(model.round, packets)
        arrivals = Arrivals(dropped=[n for n in selected if n not in live])
        for n in arrivals.dropped:
            away = n not in self.peers or self.peers[n].node not in online
            self._news.tell(n, "is offline" if away else "is silent")
        waiting = {n for n in selected if n in live}
        deadline = time.monotonic() + self._patience.round_s
        in_time = True
        while waiting and in_time:
            in_time = time.monotonic() < deadline  # one last look after the deadline
            for n, answer in self._answers():
                outcome = self._read(model, n, answer)
                if outcome == "again":
                    packet = self._request(model, n, n in selected, state=True)
                    sent[n] = sent.get(n, 0) + _payload(packet)
                    self._send(model.round, {n: packet})
                elif n in waiting and outcome is not None:
                    waiting.discard(n)
                    if isinstance(outcome, AcceptedUpdate):
                        arrivals.updates[n] = outcome
                    else:
                        (arrivals.dropped if outcome == "lost" else arrivals.rejected).append(n)
            time.sleep(self._patience.poll_s)
        for n in waiting:
            self.peers[n].silent = True
            self._news.tell(n, f"gave no answer within {self._patience.round_s:g} s")
        arrivals.late = sorted(waiting)
        updates, wall_s = arrivals.updates, time.monotonic() - began
        slowest_s = max((update.seconds for update in updates.values()), default=0.0)
        measured: Event = {
            "measured_s": wall_s, "overhead_s": wall_s - slowest_s,
            "client_measured_s": [updates[n].seconds if n in updates else None for n in selected],
            "client_uploaded_bytes": [updates[n].bytes if n in updates else None for n in selected],
            "uploaded_bytes": sum(update.bytes for update in updates.values()), "downloaded_bytes": sum(sent.values()),
            "masks": [packets[n].fields["mask"] if n in packets else None for n in selected]}
        if with_indices := [n for n in sorted(updates) if updates[n].indices]:
            measured["indices"] = with_indices
        return arrivals, measured

    def _request(self, model: GlobalModel, client: int, selected: bool, *, state: bool) -> Packet:
        segment = self._plan.segments[int(self._messages.job.schedule[model.round])]
        settings = {"power_w": float(segment.power_w[client]), "frequency_hz": float(segment.frequency_hz[client])}
        return self._messages.request(model, client, state=state, indices=self.peers[client].indices,
                                      settings=settings if selected else None)

    def _send(self, round_number: int, packets: dict[int, Packet]) -> None:
        clients = {self.peers[n].node: n for n in packets}
        tickets = self._transport.send({self.peers[n].node: packet for n, packet in packets.items()},
                                       self._patience.round_s + TTL_MARGIN_S)
        for node, ticket in tickets.items():
            self.peers[clients[node]].tickets[ticket] = round_number
        for n in set(packets) - {clients[node] for node in tickets}:
            self._news.tell(n, "could not be sent to")

    def _answers(self) -> list[tuple[int, Answer]]:
        """Answers to rounds' messages, by client."""
        owners = {ticket: n for n, peer in self.peers.items() for ticket in peer.tickets}
        return [(owners[answer.ticket], answer) for answer in self._transport.collect(list(owners))]

    def _read(self, model: GlobalModel, client: int, answer: Answer) -> AcceptedUpdate | str | None:
        """An update; ``again`` (it needs the state), ``lost`` or ``refused``; None where it is of no use."""
        peer = self.peers[client]
        round_number = peer.tickets.pop(answer.ticket)
        current = round_number == model.round
        if answer.error:
            if not current:
                return None
            self._news.tell(client, f"was lost: {answer.error}")
            peer.silent, peer.synced = True, -1
            return "lost"
        try:
            packet = Packet.from_bytes(answer.data, self._messages.most_bytes)
            status = packet.text("status")
            peer.silent = False
            if not current:
                if status in ("updated", "done"):
                    peer.synced = max(peer.synced, round_number)
                if status == "done":
                    self._news.tell(client, f"answered round {round_number} after its deadline")
                return None
            if status == "behind":
                self._news.tell(client, "was behind, and is sent the state")
                return "again"
            if status == "updated":
                peer.synced = round_number
                return None
            if status != "done":
                raise PacketError(str(packet.fields.get("reason", status))[:200])
            update = self._messages.accept(model, client, packet)
        except FedgapError as error:
            self._news.tell(client, f"answer refused: {error}")
            peer.synced = -1  # whatever it holds now, it is sent the state next
            return "refused"
        peer.synced, peer.indices = round_number, update.indices
        return update

    def _ping(self, online: set[int]) -> None:
        """Ask silent nodes whether they are there again; one that answers takes part from the next round on."""
        pings = {peer.ping: n for n, peer in self.peers.items() if peer.ping}
        for answer in self._transport.collect(list(pings)):
            peer = self.peers[pings[answer.ticket]]
            peer.ping = ""
            with contextlib.suppress(FedgapError):
                if not answer.error and Packet.from_bytes(answer.data, MARGIN_BYTES).text("status") == "here":
                    peer.silent, peer.synced = False, -1
                    self._news.tell(pings[answer.ticket], "is back")
        silent = {peer.node: n for n, peer in self.peers.items() if peer.silent and not peer.ping
                  and peer.node in online}
        tickets = self._transport.send({node: Packet({"kind": "hello"}) for node in silent},
                                       10 * self._patience.round_s)
        for node, ticket in tickets.items():
            self.peers[silent[node]].ping = ticket


def _payload(packet: Packet) -> int:
    """Bytes of a packet beside its fields."""
    return sum(map(len, packet.blobs.values()))
