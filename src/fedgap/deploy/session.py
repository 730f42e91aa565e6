"""The server's session: enrol, plan, run the rounds, checkpoint, finish.

It speaks to nodes through a :class:`~fedgap.deploy.transport.Transport`, which Flower's grid is one of.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from fedgap.config import Experiment
from fedgap.deploy.enrol import PROFILE_BYTES, Profile, plan_for
from fedgap.deploy.node_clients import NodeClients
from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.round_messages import RoundMessages
from fedgap.deploy.transport import News, Patience, Transport
from fedgap.errors import FedgapError, InputError
from fedgap.files import remove_torn
from fedgap.learning.data import Dataset, load
from fedgap.learning.models import build
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import structure_of
from fedgap.planning.plan import Plan
from fedgap.running.checkpoint import Checkpoints
from fedgap.running.events import Event, RoundLog
from fedgap.running.job import Job, has_run
from fedgap.running.loop import Rounds
from fedgap.running.prepare import data_arguments
from fedgap.running.run import Run, finish, write_versions
from fedgap.running.train_and_resume import write_run


class Session:
    """One deployed run in its folder; a second session in the same folder continues where the first was killed."""

    def __init__(self, folder: Path, experiment: Experiment, transport: Transport, *, nodes: int,
                 patience: Patience | None = None, dataset: Dataset | None = None,
                 names: Mapping[int, str] | None = None,
                 on_event: Callable[[Job, Event], None] | None = None) -> None:
        """``names``: the name that belongs to each node's key; without it (in a simulation) nodes choose theirs."""
        self.folder, self.experiment, self.transport, self.nodes = folder, experiment, transport, nodes
        self.patience, self._on_event = patience or Patience(), on_event
        self._names_of_keys = names
        self.dataset = dataset or load(**data_arguments(experiment))
        self.profiles: dict[int, Profile] = {}
        self._asked: dict[str, int] = {}
        self._refused: set[int] = set()
        self._news = News()
        self._clients: NodeClients | None = None
        self._names: dict[str, int] = {}

    def run(self) -> Run:
        """Everything, to the end of the run."""
        run, checkpoints = Run(self.folder), Checkpoints(self.folder / "checkpoint")
        if has_run(self.folder) and run.finished:
            return run
        self._enrol_all(list(Job.load(self.folder / "job").names) if has_run(self.folder) else None)
        began = time.monotonic()
        if not has_run(self.folder):
            order = sorted(self.profiles, key=lambda node: (self.profiles[node].order, self.profiles[node].name))
            write_run(plan_for(self.experiment, [self.profiles[node] for node in order], self.dataset), self.folder)
        job, state = run.job, checkpoints.load()
        remove_torn(self.folder)
        run_id = state[1]["run"] if state else secrets.token_hex(8)
        rounds = self._rounds(job, run.plan, run_id)
        if state is not None:
            rounds.load([state])
            self._news.tell(None, f"the server resumed from its checkpoint after {rounds.round} rounds")
        log = RoundLog(self.folder / "rounds.jsonl", state[1]["log"] if state else 0)
        write_versions([self.folder], rounds)
        while not rounds.accounts[0].stopped(rounds.round):
            rounds.step()
            ((event,),) = rounds.drain()
            log.write([event])
            tensors, numbers = rounds.state(0)
            checkpoints.save(rounds.round, tensors, {**numbers, "log": log.sync(), "run": run_id})
            if self._on_event is not None:
                self._on_event(job, event)
        log.close()
        finish(run, rounds, 0, time.monotonic() - began)
        return run

    def _rounds(self, job: Job, plan: Plan, run_id: str) -> Rounds:
        """The simulator's loop, with the nodes as its clients."""
        if job.precision == "float64":
            raise InputError("engine.precision: uploads carry float32; use float32 to deploy")
        module = build(**job.model, input_shape=self.dataset.shape, classes=self.dataset.classes, seed=0)
        if job.weights is not None and not all(p.requires_grad for p in module.parameters()):
            raise InputError("model.weights: nodes receive the trained weights only, and this model has frozen ones")
        layout = Layout.of(module)
        structure = structure_of(job.structure, module, self.dataset.shape)
        messages = RoundMessages(job, layout, structure, run=run_id, plan=f"{plan.scenario_hash} {run_id}")
        self._names = {name: n for n, name in enumerate(job.names)}
        self._clients = NodeClients(self.transport, self.patience, plan, messages, self._news, self._greet)
        for node in self.profiles:
            self._admit(node)
        return Rounds([job], self.dataset, self._clients)

    # --- enrolment --------------------------------------------------------------------------------------------------

    def _enrol_all(self, known: list[str] | None) -> None:
        """Wait for as many nodes as asked for; a resumed run waits for those it had, and continues without the lost."""
        wanted = self.nodes if known is None else len(known)
        deadline = time.monotonic() + self.patience.enrol_s
        while len(self.profiles) < wanted and time.monotonic() < deadline:
            self._greet()
            time.sleep(self.patience.poll_s)
        if len(self.profiles) < (wanted if known is None else 1):
            reasons = "; ".join(sorted({item["what"] for item in self._news.items})) or "nothing else was heard"
            raise InputError(f"nodes: {len(self.profiles)} of {wanted} enrolled within {self.patience.enrol_s:g} s "
                             f"({reasons})")

    def _greet(self) -> None:
        """Ask new nodes for their profiles, and read those that came."""
        new = self.transport.online() - set(self.profiles) - set(self._asked.values()) - self._refused
        tickets = self.transport.send({node: Packet({"kind": "enrol"}) for node in new}, self.patience.round_s)
        self._asked |= {ticket: node for node, ticket in tickets.items()}
        for answer in self.transport.collect(list(self._asked)):
            node = self._asked.pop(answer.ticket)
            try:
                if answer.error:
                    raise PacketError(answer.error)
                packet = Packet.from_bytes(answer.data, PROFILE_BYTES)
                profile = Profile.read(packet)
                self._check_identity(node, profile.name, packet.fields.get("fedgap"))
            except FedgapError as error:
                self._news.tell(None, f"node {node} did not enrol: {error}")
                if not answer.error:
                    self._refused.add(node)
                continue
            taken = [other for other, p in self.profiles.items() if p.name == profile.name and other != node]
            if taken and taken[0] in self.transport.online():
                self._news.tell(None, f"node {node} was refused: {profile.name!r} is enrolled already")
                self._refused.add(node)
                continue
            for other in taken:
                del self.profiles[other]
            self.profiles[node] = profile
            self._admit(node)

    def _check_identity(self, node: int, name: str, version: object) -> None:
        """Refuse a node that has another version, or takes a name that does not belong to its key."""
        ours = metadata.version("fedgap")
        if version != ours:
            raise PacketError(f"{name!r} has fedgap {str(version or 'of an earlier version')[:40]}, the server {ours}; "
                              f"install the server's on the node with: pip install fedgap=={ours}")
        if self._names_of_keys is not None and self._names_of_keys.get(node) != name:
            raise PacketError(f"its key belongs to {self._names_of_keys.get(node)!r}, and it calls itself {name!r}; a "
                              "node's name must be that of its public key's file")

    def _admit(self, node: int) -> None:
        """Make an enrolled node the peer of its client, once there is a run."""
        if self._clients is None:
            return
        name = self.profiles[node].name
        if name in self._names:
            self._clients.admit(self._names[name], node)
        else:
            self._news.tell(None, f"node {node} ({name!r}) is in no plan of this run")
            self._refused.add(node)
