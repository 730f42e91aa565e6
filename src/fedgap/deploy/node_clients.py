"""The deployed counterpart of the simulated clients: nodes that are reached over a network and may fail."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fedgap.deploy.collected_updates import MOST_HELD, AcceptedUpdate, CollectedUpdates, UpdateFacts
from fedgap.deploy.label_claims import LabelClaims
from fedgap.deploy.measured_world import MeasuredWorld
from fedgap.deploy.outliers import Outliers
from fedgap.deploy.packet import Packet, PacketError, one_line
from fedgap.deploy.round_messages import MARGIN_BYTES, MOST_SECONDS, RoundMessages
from fedgap.deploy.transport import Answer, News, Patience, Transport
from fedgap.errors import FedgapError, RunFailedError
from fedgap.learning.global_model import GlobalModel
from fedgap.planning.plan import Plan, Segment
from fedgap.running.clients import Delivery
from fedgap.running.events import Event
from fedgap.running.faults import Attendance, Work
from fedgap.running.job import Job
from fedgap.running.run_accounts import RunAccounts

TTL_MARGIN_S = 2.0
"""A message expires this many seconds after its round's deadline, so that the server sets the deadline, not the
SuperLink."""
FETCH_S = 0.1
"""Additional seconds before a message expires, for each answer that is fetched after the others."""
REFUSED_TRIES = 3
"""The run ends after this many attempts at a round that failed because answers were refused."""
SETTLE_S = 15.0
"""After a pause, how many seconds to wait for the remaining clients once there are enough; at most three times the
deadline of a round."""
PAUSED_POLLS = 5
"""While the server waits for clients to return, it polls this many times less often."""
FETCHED_AT_ONCE = 8
"""Maximum number of answers in memory at once, in addition to the updates that wait to be added."""
ANSWER_FIELDS_BYTES = 2**16
"""Maximum length of an answer's fields in bytes."""


@dataclass
class Peer:
    """What the server knows about the node of a client."""

    node: int
    synced: int = -1
    """The last round that the node answered, at which its copy of the model is; -1 if it needs the whole state."""
    silent: bool = False
    """Whether it missed a deadline and has not answered since; the server does not wait for it."""
    indices: bool = False
    """Whether its floating-point results differ from the server's, so that uploads need indices."""
    ping: str = ""
    ping_until: float = 0.0
    """Time (monotonic clock) at which the open ``hello`` message ``ping`` expires."""
    tickets: dict[str, int] = field(default_factory=dict)
    """The open messages of rounds: ticket → round."""
    asked_at: float = 0.0
    """Time (monotonic clock) at which the last round's message was sent."""
    asked_bytes: int = 0
    """Bytes of that message's payload."""
    cycles: float = 0.0
    """Processor cycles that the client computes in the last round that selected it."""


@dataclass
class Arrivals:
    """Which of a round's selected clients delivered an update, and why the others did not."""

    updates: CollectedUpdates
    dropped: list[int] = field(default_factory=list)
    """Clients that are known to be offline, or that failed."""
    late: list[int] = field(default_factory=list)
    """Clients without an answer by the deadline."""
    rejected: list[int] = field(default_factory=list)
    """Clients whose answer was refused."""

    def attendance(self, work: Work, *, counted: bool) -> Attendance:
        """What the cost model charges: clients that worked pay the planned joules, clients that were offline pay
        nothing.

        A late client pays if the round counts, because the round waited for it. If the round does not count, only
        clients that answered pay and determine the seconds, because nobody knows whether the others worked."""
        def marked(clients: Iterable[int]) -> NDArray[np.bool_]:
            result = np.zeros(len(work.selected), dtype=np.bool_)
            result[list(clients)] = True
            return result

        arrived, dropped = marked([*self.updates.facts, *self.rejected]), marked(self.dropped)
        spent = np.where(dropped, 0.0, 1.0) if counted else arrived.astype(np.float64)
        client_s = spent * work.client_s
        return Attendance(arrived, dropped, marked(self.late), spent * work.compute_j, spent * work.upload_j, client_s,
                          work.delay_s if counted else float(client_s.max()))


class NodeClients:
    """The clients of one deployed run; see :class:`~fedgap.running.clients.Clients`."""

    def __init__(self, transport: Transport, patience: Patience, plan: Plan, messages: RoundMessages, news: News,
                 greet: Callable[[], None]) -> None:
        """``greet`` lets new nodes enrol; it is called at the start of every round."""
        self._transport, self._patience, self._plan, self._greet = transport, patience, plan, greet
        self._messages, self._news, self._outliers = messages, news, Outliers()
        self._buffer_outliers = Outliers("the change of its BatchNorm statistics")
        self.peers: dict[int, Peer] = {}
        """The nodes, by the number of the client."""
        self.left_out: set[int] = set()
        """Clients that are no longer asked for updates."""
        self.claims: LabelClaims | None = None
        """Compares the clients' label histograms with their gradients."""
        self.world: MeasuredWorld | None = None
        """Collects the measured seconds, if a policy decides the rounds."""
        self._decided: Segment | None = None  # the round that the policy decided
        self.suspects: list[int] = []
        """Clients whose update was too long, or whose BatchNorm statistics moved too far, in the last attempt."""
        self._refusals: list[str] = []  # the reason of each failed attempt at the current round with a refused answer

    def admit(self, client: int, node: int) -> None:
        """Assign an enrolled node to its client."""
        if client in self.peers:
            self._news.tell(client, "is back, on another node")
        self.peers[client] = Peer(node)

    def keep(self, accounts: Sequence[RunAccounts]) -> None:
        """Use the job of the next round, which a policy has just decided. There is only one run."""
        (account,) = accounts
        assert account.steering is not None
        self._messages.job = account.job
        if self.claims is not None:
            self.claims.job = account.job
        self._decided = Segment.from_dict(account.steering.decided[-1]["segment"])

    def begin_again(self, plan: str, job: Job) -> None:
        """Forget all open messages, and send the whole state to every node next, because the model or its rate was
        reset."""
        self._messages.plan, self._messages.job = plan, job
        for peer in self.peers.values():
            peer.synced, peer.tickets = -1, {}

    def forget_open_messages(self) -> None:
        """Ignore answers to all earlier messages, because the round will be decided again."""
        for peer in self.peers.values():
            peer.tickets = {}

    def present(self) -> list[int]:
        """The numbers of the clients that can take part now."""
        self._greet()
        online = self._transport.online()
        self._ping(online)
        return self._there(self._not_left_out(), online)

    def _not_left_out(self) -> list[int]:
        return [n for n in range(len(self._messages.job.names)) if n not in self.left_out]

    def work(self, model: GlobalModel, accounts: Sequence[RunAccounts]) -> Delivery | None:
        """Run a round: send requests, wait for the answers of the selected nodes, and add up the updates.

        Returns None if too few clients delivered; what they spent is charged. If too few nodes are available, no
        requests are sent and nothing is charged."""
        (account,) = accounts
        segment = account.segment(model.round)
        selected = self.selected(account, model.round)
        needed = self._patience.quorum.needed(len(selected))
        self._greet()
        online = self._transport.online()
        self._ping(online)
        if len(self._there(selected, online)) < needed:
            return None
        arrivals, measured = self._collect(model, selected, online)
        facts = arrivals.updates.facts
        if len(facts) < needed:
            attendance = arrivals.attendance(account.work[segment], counted=False)
            account.charge_uncounted(attendance, float(account.bits[segment, attendance.arrived].sum()),
                                     f"round {model.round}: {len(facts)} of {needed} needed updates arrived")
            self._stop_if_refused(model.round, arrivals, needed)
            return None
        self._refusals = []
        outline = account.outline_of(segment, arrivals.attendance(account.work[segment], counted=True))
        event = account.book(model.round, outline) | measured
        account.reject(event, sorted(arrivals.rejected))
        update = arrivals.updates.result()
        assert update is not None
        self._look_for_liars(model, segment, facts)
        if bool(update.direction.isfinite().all()):
            self._messages.carry(model, update)
        if news := self._news.take():
            event["news"] = news
        senders = sorted(facts)
        losses = torch.tensor([facts[n].loss for n in senders], dtype=torch.float64)
        return Delivery([event], [senders], losses, torch.ones(len(senders), dtype=torch.bool), update)

    def selected(self, account: RunAccounts, round_number: int) -> list[int]:
        """The numbers of the clients whose updates a round needs."""
        planned = np.flatnonzero(account.job.selected[account.segment(round_number)]).tolist()
        selected = [n for n in planned if n not in self.left_out]
        if not selected:
            names = ", ".join(account.job.names[n] for n in planned)
            raise RunFailedError(f"round {round_number}: no client is left, because updates of all its clients "
                                 f"({names}) were outliers; train again without them")
        return selected

    def wait_for_quorum(self, account: RunAccounts, round_number: int, say: Callable[[str], None]) -> None:
        """Wait until enough of a round's clients are available, and then a little longer for the others.

        ``say`` is called once if the server has to wait. Returns at once if enough clients are available."""
        selected = self.selected(account, round_number)
        self._wait_for(selected, self._patience.quorum.needed(len(selected)),
                       f"round {round_number + 1}/{account.job.rounds}", say)

    def wait_for_clients(self, round_number: int, say: Callable[[str], None]) -> None:
        """Wait until enough of all clients are available, before a round that the policy has not decided yet."""
        self._wait_for(self._not_left_out(), self._patience.quorum.least, f"round {round_number + 1}", say)

    def _wait_for(self, selected: Sequence[int], needed: int, round_name: str, say: Callable[[str], None]) -> None:
        names, paused, began, enough_since = self._messages.job.names, False, time.monotonic(), 0.0
        while len(there := self._there(selected, self._transport.online())) < len(selected):
            now = time.monotonic()
            if len(there) >= needed:
                enough_since = enough_since or now
                if not paused or now - enough_since >= min(SETTLE_S, 3 * self._patience.round_s):
                    break
            else:
                enough_since = 0.0
                if not paused:
                    missing = ", ".join(names[n] for n in selected if n not in there)
                    say(f"{round_name} waits: {len(there)} of {needed} needed clients are there; missing: {missing}")
                paused = True
            time.sleep(PAUSED_POLLS * self._patience.poll_s)
            self._greet()
            self._ping(self._transport.online())
            for n, answer in self._answers():
                self._read_late(n, answer)
        if paused:
            self._news.tell(None, f"the server waited {time.monotonic() - began:.0f} s for clients to return")

    def _there(self, selected: Sequence[int], online: set[int]) -> list[int]:
        """Those of the selected clients that can be asked now."""
        return [n for n in selected if n in self.peers and self.peers[n].node in online and not self.peers[n].silent]

    def _stop_if_refused(self, round_number: int, arrivals: Arrivals, needed: int) -> None:
        """End a run whose round fails repeatedly because answers are refused, rather than because nodes are away."""
        if not arrivals.rejected:
            return
        last = [item for item in self._news.items if item.get("client") in arrivals.rejected][-1]
        name = self._messages.job.names[last["client"]]
        self._refusals.append(f"{name}: {last['what']}")
        if len(self._refusals) >= REFUSED_TRIES:
            raise RunFailedError(f"round {round_number}: answers were refused in each of {REFUSED_TRIES} attempts, so "
                                 f"fewer than the {needed} needed updates were accepted; correct the nodes and start "
                                 f"again. The last refusal was {self._refusals[-1]}")

    def _look_for_liars(self, model: GlobalModel, segment: int, facts: Mapping[int, UpdateFacts]) -> None:
        """Report clients whose updates or BatchNorm statistics are far from the others', or whose labels differ from
        those that they report."""
        norms = {n: fact.norm for n, fact in facts.items()}
        moved = {n: fact.buffers_moved for n, fact in facts.items()}
        self.suspects = sorted({*self._outliers.suspects(norms), *self._buffer_outliers.suspects(moved)})
        for client, said in [*self._outliers.see(norms).items(), *self._buffer_outliers.see(moved).items()]:
            self._news.tell(client, said)
        if self.claims is not None:
            for client, said in self.claims.see(model, segment, facts).items():
                self._news.tell(client, said)

    def _collect(self, model: GlobalModel, selected: Sequence[int], online: set[int]) -> tuple[Arrivals, Event]:
        """Send the requests of a round and collect the answers; returns who delivered, and what was measured, as keys
        of the event."""
        began, job = time.monotonic(), self._messages.job
        planned = np.flatnonzero(job.selected[job.schedule[model.round]]).tolist()
        live = {n: peer for n, peer in self.peers.items() if peer.node in online and not peer.silent}
        packets = {n: self._request(model, n, n in selected, state=peer.synced not in (model.round - 1, model.round))
                   for n, peer in live.items()}
        sent = {n: _payload(packet) for n, packet in packets.items()}
        with_state = {n for n, packet in packets.items() if "state" in packet.blobs}
        ttl_s = self._patience.round_s + TTL_MARGIN_S + FETCH_S * max(0, len(selected) - MOST_HELD)
        self._send(model.round, packets, ttl_s)
        missing = [n for n in selected if n not in live]
        arrivals = Arrivals(self._messages.collect(model, selected), [*missing, *self.left_out.intersection(planned)])
        updates = arrivals.updates
        for n in missing:
            away = n not in self.peers or self.peers[n].node not in online
            self._news.tell(n, "is offline" if away else "is silent")
            updates.give_up(n)
        waiting = {n for n in selected if n in live}
        deadline, held_back = time.monotonic() + self._patience.round_s, False
        while waiting:
            in_time, before = time.monotonic() < deadline, len(waiting)
            held_back = held_back or updates.full  # from now on an answer may have waited before it was fetched
            for n, answer in self._answers(updates):
                outcome = self._read(model, n, answer)
                if outcome == "again" and n in with_state:
                    self._news.tell(n, "answer refused: it says that it is behind, although it was sent the state")
                    outcome = "refused"
                if outcome == "again":
                    packet = self._request(model, n, n in selected, state=True)
                    with_state.add(n)
                    sent[n] = sent.get(n, 0) + _payload(packet)
                    self._send(model.round, {n: packet}, ttl_s)
                elif n in waiting and outcome is not None:
                    waiting.discard(n)
                    if isinstance(outcome, AcceptedUpdate):
                        self._measure(n, outcome.facts, link=not held_back)
                        updates.add(n, outcome)
                    else:
                        (arrivals.dropped if outcome == "lost" else arrivals.rejected).append(n)
                        updates.give_up(n)
            if in_time:
                time.sleep(self._patience.poll_s)
            elif len(waiting) == before:  # the last look found nothing more
                late = {updates.next} if updates.full and updates.next is not None else set(waiting)
                self._note_late(late, arrivals)
                waiting -= late
        facts, wall_s = updates.facts, time.monotonic() - began
        slowest_s = max((fact.seconds for fact in facts.values()), default=0.0)

        def of_each(value: Callable[[UpdateFacts], float]) -> list[float | None]:
            return [value(facts[n]) if n in facts else None for n in planned]

        measured: Event = {
            "measured_s": wall_s, "overhead_s": wall_s - slowest_s, "client_measured_s": of_each(lambda f: f.seconds),
            "client_loss": of_each(lambda f: f.loss), "client_norm": of_each(lambda f: f.norm),
            "client_uploaded_bytes": of_each(lambda f: f.bytes),
            "uploaded_bytes": sum(fact.bytes for fact in facts.values()), "downloaded_bytes": sum(sent.values()),
            "masks": [packets[n].fields.get("mask") if n in packets else None for n in planned]}
        if with_indices := [n for n in sorted(facts) if facts[n].indices]:
            measured["indices"] = with_indices
        return arrivals, measured

    def _measure(self, client: int, facts: UpdateFacts, *, link: bool) -> None:
        """Pass the seconds of an answer that has just arrived to the measured world; with ``link`` also those of the
        transfer."""
        if self.world is None:
            return
        peer = self.peers[client]
        self.world.processor.see(client, facts.seconds, peer.cycles)
        if link:
            on_the_way_s = time.monotonic() - peer.asked_at - facts.seconds
            self.world.link.see(client, max(0.0, on_the_way_s), peer.asked_bytes + facts.bytes)

    def _note_late(self, late: Iterable[int], arrivals: Arrivals) -> None:
        for n in sorted(late):
            self.peers[n].silent = True
            self._news.tell(n, f"gave no answer within {self._patience.round_s:g} s")
            arrivals.late.append(n)
            arrivals.updates.give_up(n)

    def _request(self, model: GlobalModel, client: int, selected: bool, *, state: bool) -> Packet:
        job = self._messages.job
        number = int(job.schedule[model.round])
        segment = self._decided or self._plan.segments[number]
        settings = {"power_w": float(segment.power_w[client]), "frequency_hz": float(segment.frequency_hz[client])}
        if selected:
            self.peers[client].cycles = float(job.compute_s[number, client]) * settings["frequency_hz"]
        return self._messages.request(model, client, state=state, indices=self.peers[client].indices,
                                      settings=settings if selected else None)

    def _send(self, round_number: int, packets: dict[int, Packet], ttl_s: float) -> None:
        clients = {self.peers[n].node: n for n in packets}
        tickets = self._transport.send({self.peers[n].node: packet for n, packet in packets.items()}, ttl_s)
        for node, ticket in tickets.items():
            peer = self.peers[clients[node]]
            peer.tickets[ticket] = round_number
            peer.asked_at, peer.asked_bytes = time.monotonic(), _payload(packets[clients[node]])
        for n in set(packets) - {clients[node] for node in tickets}:
            self._news.tell(n, "could not be sent a message")

    def _answers(self, updates: CollectedUpdates | None = None) -> Iterator[tuple[int, Answer]]:
        """Yield the answers to requests with the number of the client; only a few are in memory at a time.

        While too many ``updates`` wait for that of an earlier client, only the answer of that client is fetched."""
        owners = {ticket: n for n in sorted(self.peers) for ticket in self.peers[n].tickets}
        tickets = list(owners)
        while tickets:
            if updates is not None and updates.full:
                tickets = [ticket for ticket in tickets if owners[ticket] == updates.next]
            few, tickets = tickets[:FETCHED_AT_ONCE], tickets[FETCHED_AT_ONCE:]
            for answer in self._transport.collect(few):
                client = owners.get(answer.ticket)
                if client is not None and answer.ticket in self.peers[client].tickets:
                    yield client, answer

    def _read_late(self, client: int, answer: Answer) -> None:
        """Process an answer that arrives while the server waits for others. It shows that its sender is available; its
        content is not used."""
        self.peers[client].tickets.pop(answer.ticket)
        if not answer.error:
            self.peers[client].silent, self.peers[client].synced = False, -1

    def _read(self, model: GlobalModel, client: int, answer: Answer) -> AcceptedUpdate | str | None:
        """Read an answer: an update, ``again`` (the node needs the state), ``lost`` or ``refused``; None if the answer
        is not needed."""
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
            packet = Packet.from_bytes(answer.data, self._messages.most_bytes, ANSWER_FIELDS_BYTES)
            status = packet.text("status")
            peer.silent = False
            if not current:
                if status in ("updated", "done"):
                    peer.synced = max(peer.synced, round_number)
                if status == "done":
                    if self.world is not None:
                        self.world.processor.see(client, max(0.0, packet.number("seconds", MOST_SECONDS)), peer.cycles)
                    self._news.tell(client, f"answered round {round_number} after its deadline")
                return None
            if status == "behind":
                self._news.tell(client, "was behind, and is sent the state")
                return "again"
            if status == "updated":
                peer.synced = round_number
                return None
            if status != "done":
                raise PacketError(one_line(packet.fields.get("reason", status)))
            update = self._messages.accept(model, client, packet)
        except FedgapError as error:
            self._news.tell(client, f"answer refused: {error}")
            peer.synced = -1  # it is sent the whole state next
            return "refused"
        peer.synced, peer.indices = round_number, update.facts.indices
        return update

    def _ping(self, online: set[int]) -> None:
        """Ask silent nodes whether they are there again. A node that answers takes part from the next round on."""
        pings = {peer.ping: n for n, peer in self.peers.items() if peer.ping}
        for answer in self._transport.collect(list(pings)):
            if answer.ticket not in pings:
                continue
            peer = self.peers[pings[answer.ticket]]
            peer.ping = ""
            with contextlib.suppress(FedgapError):
                if not answer.error and Packet.from_bytes(answer.data, MARGIN_BYTES).text("status") == "here":
                    peer.silent, peer.synced = False, -1
                    self._news.tell(pings[answer.ticket], "is back")
        now, ttl_s = time.monotonic(), self._patience.round_s
        silent = {peer.node: n for n, peer in self.peers.items() if peer.silent and peer.node in online
                  and not (peer.ping and now < peer.ping_until)}
        tickets = self._transport.send({node: Packet({"kind": "hello"}) for node in silent}, ttl_s)
        for node, ticket in tickets.items():
            peer = self.peers[silent[node]]
            peer.ping, peer.ping_until = ticket, now + ttl_s


def _payload(packet: Packet) -> int:
    """The number of bytes in a packet's blobs."""
    return sum(map(len, packet.blobs.values()))
