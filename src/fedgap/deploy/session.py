"""The server's session: enrol, plan, run the rounds, survive the nodes' faults, checkpoint, finish.

It speaks to nodes through a :class:`Transport`, which Flower's grid is one of; tests use another in one process.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedgap.config import Experiment
from fedgap.deploy.enrol import PROFILE_BYTES, Profile, plan_for
from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.rounds import MARGIN_BYTES, DeployedRounds, Gradient, Missing
from fedgap.errors import FedgapError, InputError
from fedgap.files import remove_torn
from fedgap.learning.data import Dataset, load
from fedgap.planning.plan import Plan
from fedgap.running.checkpoint import Checkpoints
from fedgap.running.events import Event, RoundLog
from fedgap.running.job import Job
from fedgap.running.prepare import data_arguments
from fedgap.running.run import Run, finish, has_run, write_versions
from fedgap.running.train_and_resume import write_run

TTL_MARGIN_S = 2.0
"""A message lives so much longer than its round, so that the deadline is the server's and not the SuperLink's."""


@dataclass(frozen=True)
class Answer:
    """A reply to the message ``ticket``: the packet's bytes, or why there is none."""

    ticket: str
    data: bytes = b""
    error: str = ""


class Transport(Protocol):
    """How packets reach nodes. Nodes have whole numbers as ids."""

    def online(self) -> set[int]:
        """The nodes that are connected as far as is known."""

    def send(self, packets: dict[int, Packet], ttl_s: float) -> dict[int, str]:
        """Sends a packet to each node; a ticket for each. A packet not fetched within ``ttl_s`` is void."""

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
class _Peer:
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


class Session:
    """One deployed run in its folder; a second session in the same folder goes on where the first was killed."""

    def __init__(self, folder: Path, experiment: Experiment, transport: Transport, *, nodes: int,
                 patience: Patience | None = None, dataset: Dataset | None = None,
                 on_event: Callable[[Job, Event], None] | None = None) -> None:
        self.folder, self.experiment, self.transport, self.nodes = folder, experiment, transport, nodes
        self.patience, self._on_event = patience or Patience(), on_event
        self.dataset = dataset or load(**data_arguments(experiment))
        self.profiles: dict[int, Profile] = {}
        self._asked: dict[str, int] = {}
        self._refused: set[int] = set()
        self._news: list[dict[str, Any]] = []
        self.peers: dict[int, _Peer] = {}

    def run(self) -> Run:
        """Everything, to the end of the run."""
        run = Run(self.folder)
        if has_run(self.folder) and run.finished:
            return run
        rounds, log, began = self._start()
        write_versions([self.folder], rounds)
        checkpoints = Checkpoints(self.folder / "checkpoint")
        member = rounds.members[0]
        while not member.stopped(rounds.round):
            event = self._round(rounds)
            log.write([event])
            tensors, state = rounds.state(0)
            checkpoints.save(rounds.round, tensors, {**state, "log": log.sync(), "run": rounds.run})
            if self._on_event is not None:
                self._on_event(rounds.job, event)
        log.close()
        finish(run, rounds, 0, time.monotonic() - began)
        return run

    # --- enrolment --------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[DeployedRounds, RoundLog, float]:
        known = list(Job.load(self.folder / "job").names) if has_run(self.folder) else None
        self._enrol_all(known)
        began = time.monotonic()
        if known is None:
            order = sorted(self.profiles, key=lambda node: (self.profiles[node].order, self.profiles[node].name))
            ready = plan_for(self.experiment, [self.profiles[node] for node in order], self.dataset)
            write_run(ready, self.folder)
        job, plan = Job.load(self.folder / "job"), Plan.load(self.folder / "plan.json")
        self._plan = plan
        state = Checkpoints(self.folder / "checkpoint").load()
        remove_torn(self.folder)
        run = state[1]["run"] if state else secrets.token_hex(8)
        rounds = DeployedRounds(job, self.dataset, run=run, plan=f"{plan.scenario_hash} {run}")
        if state is not None:
            rounds.load([state])
            self._news.append({"what": f"the server went on from its checkpoint after {rounds.round} rounds"})
        self._names = {name: n for n, name in enumerate(job.names)}
        for node in self.profiles:
            self._admit(node)
        return rounds, RoundLog(self.folder / "rounds.jsonl", state[1]["log"] if state else 0), began

    def _enrol_all(self, known: list[str] | None) -> None:
        """Waits for as many nodes as asked for; a resumed run waits for those it had, and goes on without the lost."""
        wanted = self.nodes if known is None else len(known)
        deadline = time.monotonic() + self.patience.enrol_s
        while len(self.profiles) < wanted and time.monotonic() < deadline:
            self._greet()
            time.sleep(self.patience.poll_s)
        if len(self.profiles) < (wanted if known is None else 1):
            reasons = "; ".join(sorted({news["what"] for news in self._news})) or "nothing else was heard"
            raise InputError(f"nodes: {len(self.profiles)} of {wanted} enrolled within {self.patience.enrol_s:g} s "
                             f"({reasons})")

    def _greet(self) -> None:
        """Asks new nodes for their profiles, and reads those that came."""
        new = self.transport.online() - set(self.profiles) - set(self._asked.values()) - self._refused
        tickets = self.transport.send({node: Packet({"kind": "enrol"}) for node in new}, self.patience.round_s)
        self._asked |= {ticket: node for node, ticket in tickets.items()}
        for answer in self.transport.collect(list(self._asked)):
            node = self._asked.pop(answer.ticket)
            try:
                if answer.error:
                    raise PacketError(answer.error)
                profile = Profile.read(Packet.from_bytes(answer.data, PROFILE_BYTES))
            except FedgapError as error:
                self._tell(None, f"node {node} did not enrol: {error}")
                if not answer.error:
                    self._refused.add(node)
                continue
            taken = [other for other, p in self.profiles.items() if p.name == profile.name and other != node]
            if taken and taken[0] in self.transport.online():
                self._tell(None, f"node {node} was refused: {profile.name!r} is enrolled already")
                self._refused.add(node)
                continue
            for other in taken:
                del self.profiles[other]
            self.profiles[node] = profile
            if hasattr(self, "_names"):
                self._admit(node)

    def _admit(self, node: int) -> None:
        """Makes an enrolled node the peer of its client."""
        client = self._names.get(self.profiles[node].name)
        if client is None:
            self._tell(None, f"node {node} ({self.profiles[node].name!r}) is in no plan of this run")
            self._refused.add(node)
            return
        if client in self.peers:
            self._tell(client, "is back, on another node")
        self.peers[client] = _Peer(node)

    def _tell(self, client: int | None, what: str) -> None:
        self._news.append({"what": what} if client is None else {"client": client, "what": what})

    # --- a round ----------------------------------------------------------------------------------------------------

    def _round(self, rounds: DeployedRounds) -> Event:
        began, online = time.monotonic(), self.transport.online()
        self._greet()
        rounds.open()
        selected = rounds.selected
        self._ping(online)
        live = {n: peer for n, peer in self.peers.items() if peer.node in online and not peer.silent}
        packets = {n: self._request(rounds, n, state=peer.synced != rounds.round - 1) for n, peer in live.items()}
        sent = {n: sum(map(len, packet.blobs.values())) for n, packet in packets.items()}
        self._send(rounds, packets)
        waiting = {n for n in selected if n in live}
        dropped = [n for n in selected if n not in live]
        for n in dropped:
            self._tell(n, "is offline" if n not in self.peers or self.peers[n].node not in online else "is silent")
        arrived: dict[int, Gradient] = {}
        rejected: list[int] = []
        deadline = time.monotonic() + self.patience.round_s
        in_time = True
        while waiting and in_time:
            in_time = time.monotonic() < deadline  # one last look after the deadline
            for n, answer in self._answers():
                outcome = self._take(rounds, n, answer)
                if outcome == "again":
                    packet = self._request(rounds, n, state=True)
                    sent[n] = sent.get(n, 0) + sum(map(len, packet.blobs.values()))
                    self._send(rounds, {n: packet})
                elif n in waiting and outcome is not None:
                    waiting.discard(n)
                    if isinstance(outcome, Gradient):
                        arrived[n] = outcome
                    elif outcome == "lost":
                        dropped.append(n)
                    else:
                        rejected.append(n)
            time.sleep(self.patience.poll_s)
        for n in waiting:
            self.peers[n].silent = True
            self._tell(n, f"gave no answer within {self.patience.round_s:g} s")
        wall = time.monotonic() - began
        own = max((g.seconds for g in arrived.values()), default=0.0)
        order = sorted(arrived)
        extra: Event = {
            "measured_s": wall, "overhead_s": wall - own,
            "client_measured_s": [arrived[n].seconds if n in arrived else None for n in selected],
            "client_uploaded_bytes": [arrived[n].bytes if n in arrived else None for n in selected],
            "uploaded_bytes": sum(arrived[n].bytes for n in order), "downloaded_bytes": sum(sent.values()),
            "masks": [packets[n].fields["mask"] if n in packets else None for n in selected]}
        if with_indices := [n for n in order if arrived[n].indices]:
            extra["indices"] = with_indices
        event = rounds.close(arrived, Missing(tuple(sorted(dropped)), tuple(sorted(waiting)), tuple(sorted(rejected))),
                             extra)
        if self._news:
            event["news"], self._news = self._news, []
        return event

    def _request(self, rounds: DeployedRounds, client: int, *, state: bool) -> Packet:
        segment = self._plan.segments[rounds.segment]
        return rounds.request(client, state=state, indices=self.peers[client].indices,
                              settings={"power_w": float(segment.power_w[client]),
                                        "frequency_hz": float(segment.frequency_hz[client])})

    def _send(self, rounds: DeployedRounds, packets: dict[int, Packet]) -> None:
        nodes = {self.peers[n].node: n for n in packets}
        tickets = self.transport.send({self.peers[n].node: packet for n, packet in packets.items()},
                                      self.patience.round_s + TTL_MARGIN_S)
        for node, ticket in tickets.items():
            self.peers[nodes[node]].tickets[ticket] = rounds.round
        for n in set(packets) - {nodes[node] for node in tickets}:
            self._tell(n, "could not be sent to")

    def _answers(self) -> list[tuple[int, Answer]]:
        """Answers to rounds' messages, by client."""
        owners = {ticket: n for n, peer in self.peers.items() for ticket in peer.tickets}
        return [(owners[answer.ticket], answer) for answer in self.transport.collect(list(owners))]

    def _take(self, rounds: DeployedRounds, client: int, answer: Answer) -> Gradient | str | None:
        """A gradient; ``again`` (it needs the state), ``lost`` or ``refused``; None where it is of no use."""
        peer = self.peers[client]
        of_round = peer.tickets.pop(answer.ticket)
        if answer.error:
            if of_round == rounds.round:
                self._tell(client, f"was lost: {answer.error}")
                peer.silent, peer.synced = True, -1
                return "lost"
            return None
        try:
            packet = Packet.from_bytes(answer.data, rounds.most_bytes())
            status = packet.text("status")
            peer.silent = False
            if of_round != rounds.round:
                if status in ("updated", "done"):
                    peer.synced = max(peer.synced, of_round)
                if status == "done":
                    self._tell(client, f"answered round {of_round} after its deadline")
                return None
            if status == "behind":
                self._tell(client, "was behind, and is sent the state")
                return "again"
            if status == "updated":
                peer.synced = of_round
                return None
            if status != "done":
                raise PacketError(str(packet.fields.get("reason", status))[:200])
            gradient = rounds.accept(client, packet)
        except FedgapError as error:
            self._tell(client, f"answer refused: {error}")
            peer.synced = -1  # whatever it holds now, it is sent the state next
            return "refused"
        peer.synced, peer.indices = of_round, gradient.indices
        return gradient

    def _ping(self, online: set[int]) -> None:
        """Asks silent nodes whether they are there again; one that answers takes part from the next round on."""
        pings = {peer.ping: n for n, peer in self.peers.items() if peer.ping}
        for answer in self.transport.collect(list(pings)):
            peer = self.peers[pings[answer.ticket]]
            peer.ping = ""
            with contextlib.suppress(FedgapError):
                if not answer.error and Packet.from_bytes(answer.data, MARGIN_BYTES).text("status") == "here":
                    peer.silent, peer.synced = False, -1
                    self._tell(pings[answer.ticket], "is back")
        silent = {peer.node: n for n, peer in self.peers.items() if peer.silent and not peer.ping
                  and peer.node in online}
        tickets = self.transport.send({node: Packet({"kind": "hello"}) for node in silent}, 10 * self.patience.round_s)
        for node, ticket in tickets.items():
            self.peers[silent[node]].ping = ticket
