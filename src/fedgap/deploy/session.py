"""The server's session: enrol nodes, plan, run the rounds, write checkpoints, finish.

It communicates with nodes through a :class:`~fedgap.deploy.transport.Transport`, such as Flower's grid."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fedgap.config import Experiment, Scenario
from fedgap.config.trace_csv import write_trace
from fedgap.deploy.enrol import PROFILE_BYTES, Profile, check_profile, fleet_of, plan_for, unaffordable
from fedgap.deploy.label_claims import LabelClaims
from fedgap.deploy.measured_world import MeasuredWorld
from fedgap.deploy.node_clients import NodeClients
from fedgap.deploy.node_profiles import NodeProfile, measure_nodes, measured_curve
from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.round_messages import RoundMessages
from fedgap.deploy.transport import WAITING, News, Patience, Transport
from fedgap.errors import FedgapError, InputError, RunFailedError
from fedgap.files import remove_torn, write_json
from fedgap.learning.data import Dataset, load
from fedgap.learning.models import build
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import structure_of
from fedgap.planning.plan import Plan
from fedgap.running.checkpoint import Checkpoints
from fedgap.running.events import Event, RoundLog
from fedgap.running.job import Job
from fedgap.running.loop import Rounds
from fedgap.running.prepare import channel_costs, data_arguments
from fedgap.running.ruled_steering import RuledSteering
from fedgap.running.run import Run, finish, write_versions
from fedgap.running.run_accounts import RunAccounts
from fedgap.running.run_folder import has_run
from fedgap.running.steering import TRACE, Steering
from fedgap.running.tracker import RunTrackers
from fedgap.running.train_and_resume import write_run

PROFILES = "profiles.json"
"""File in the run's folder with what the nodes measured before planning."""


class Session:
    """One deployed run in its folder. A second session in the same folder continues where the first was killed."""

    def __init__(self, folder: Path, experiment: Experiment, transport: Transport, *, nodes: int,
                 patience: Patience | None = None, dataset: Dataset | None = None,
                 names: Mapping[int, str] | None = None, profile: bool = False,
                 on_event: Callable[[Job, Event], None] | None = None,
                 on_wait: Callable[[str], None] | None = None) -> None:
        """``names`` has the name that belongs to each node's key; without it (in a simulation) nodes choose their
        names.

        With ``profile`` the nodes measure their speed before planning, and the plan uses it. ``on_event`` is called for
        every round that counts, ``on_wait`` once each time too few nodes are there."""
        self.folder, self.experiment, self.transport, self.nodes = folder, experiment, transport, nodes
        self.patience, self._on_event, self._on_wait = patience or Patience(), on_event, on_wait
        self._names_of_keys, self._profile = names, profile
        self.dataset = dataset or load(**data_arguments(experiment))
        self.profiles: dict[int, Profile] = {}
        self._asked: dict[str, int] = {}
        self._refused: set[int] = set()
        self._news = News()
        self._clients: NodeClients | None = None
        self._names: dict[str, int] = {}

    def run(self) -> Run:
        """Do everything, to the end of the run."""
        run, checkpoints = Run(self.folder), Checkpoints(self.folder / "checkpoint")
        if has_run(self.folder) and run.finished:
            return run
        (self.folder / WAITING).unlink(missing_ok=True)
        self._enrol_all(list(Job.load(self.folder / "job").names) if has_run(self.folder) else None)
        began = time.monotonic()
        if not has_run(self.folder):
            self._plan(self._measure() if self._profile else None)
        job, state = run.job, checkpoints.load()
        remove_torn(self.folder)
        run_id = state[1]["run"] if state else secrets.token_hex(8)
        clients, rounds = self._rounds(job, run.plan, run_id)
        if state is not None:
            rounds.load([state])
            self._news.tell(None, f"the server resumed from its checkpoint after {rounds.round} rounds")
        self._apply_recovery(clients, rounds, run_id)
        account = rounds.accounts[0]
        steering = account.steering
        assert not isinstance(steering, RuledSteering)  # rules that need losses cannot be deployed
        if steering is not None:
            steering.decide_again(rounds.round)  # a decision from before the server was killed is out of date
        log = RoundLog(self.folder / "rounds.jsonl", state[1]["log"] if state else 0)
        write_versions([self.folder], rounds)
        trackers = RunTrackers(run)

        def save() -> None:
            if steering is not None and steering.row:
                write_trace(self.folder / TRACE, steering.world.trace.first(steering.row), job.names)
            tensors, numbers = rounds.state(0)
            checkpoints.save(rounds.round, tensors, {**numbers, "log": log.sync(), "run": run_id})

        def take_back(event: Event) -> None:
            self._take_back(clients, account, event)
            self._apply_recovery(clients, rounds, run_id)

        rounds.on_not_finite = take_back
        while not account.stopped(rounds.round):
            if steering is not None and steering.undecided(rounds.round):
                save()
                self._let_time_pass(clients, steering, rounds.round)
                continue
            if not rounds.step():
                save()  # so that what nodes spent stays charged even if the server is killed now
                if steering is not None:
                    clients.forget_open_messages()
                    steering.decide_again(rounds.round)
                elif not account.stopped(rounds.round):
                    clients.wait_for_quorum(account, rounds.round, self._waits)
                    (self.folder / WAITING).unlink(missing_ok=True)
                continue
            ((event,),) = rounds.drain()
            log.write([event])
            trackers.log([event])
            save()
            if self._on_event is not None:
                self._on_event(job, event)
            if event.get("test_loss", 0.0) is None:
                raise RunFailedError(f"round {event['round']}: the test loss is not finite; try a smaller rate, or a "
                                     "robust learning.aggregator")
        log.close()
        self._check_end(account, rounds.round)
        finish(run, rounds, 0, time.monotonic() - began)
        trackers.close(run.summary)
        return run

    def _measure(self) -> dict[str, Any] | None:
        """Let the nodes measure themselves, use their measured figures for planning, and return the measured cost curve
        (None if there is none).

        A node that cannot measure is planned with the figures in its file."""
        measured: dict[int, NodeProfile] = {}
        for node, found in measure_nodes(self.transport, list(self.profiles), self.experiment, self.dataset,
                                         self.patience).items():
            if isinstance(found, NodeProfile):
                alone = fleet_of(self.experiment, [self.profiles[node]], self.dataset)
                if why_not := self._take_figures(node, found.figures(self.profiles[node].device, alone)):
                    found = why_not
                else:
                    measured[node] = found
                    self._news.tell(None, f"{self.profiles[node].name}: {found.text()}")
                    continue
            self._news.tell(None, f"{self.profiles[node].name} was not profiled ({found}); the figures in its file "
                                  "are used")
        fleet = fleet_of(self.experiment, list(self.profiles.values()), self.dataset)
        for position, node in enumerate(self.profiles):
            if node in measured:
                self._take_figures(node, self.profiles[node].device | measured[node].waiting(fleet, position))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / PROFILES, {
            self.profiles[node].name: {**found.to_dict(), "figures": self.profiles[node].device}
            for node, found in measured.items()})
        several = [found for found in measured.values() if len(found.ratios) > 1]
        if not several:
            return None
        channels = self.experiment.pruning.structure == "channels"
        return measured_curve(several, channel_costs(self.experiment, self.dataset) if channels else None)

    def _take_figures(self, node: int, device: dict[str, Any]) -> str:
        """Use these figures of a node for planning and return ""; if they cannot be used, return the reason."""
        profile = replace(self.profiles[node], device=device)
        try:
            check_profile(self.experiment, profile, self.dataset)
        except FedgapError as error:
            return str(error)
        self.profiles[node] = profile
        return ""

    def _plan(self, cost_curve: dict[str, Any] | None) -> None:
        """Plan for the enrolled nodes, and write the run's folder up to its job."""
        order = sorted(self.profiles, key=lambda node: (self.profiles[node].order, self.profiles[node].name))
        costly = unaffordable(self.experiment, [self.profiles[node] for node in order], self.dataset)
        for node in [order[position] for position in costly]:
            self._refuse(node, "the broadcasts to it alone would cost more than the energy budget")
            order.remove(node)
            del self.profiles[node]
        profiles = [self.profiles[node] for node in order]
        ready = plan_for(self.experiment, profiles, self.dataset, cost_curve)
        if ready.scenario.world is not None and (drawn := ready.scenario.world.channels_and_clients):
            raise InputError(f"scenario.world.{drawn[0]}: leave this key out, because a deployment measures its world")
        if "rule" in ready.job.policy:
            raise InputError(f"policy: {ready.job.policy['name']} needs losses for which nodes cannot be asked; use "
                             "static, replan or lyapunov, or a rule that needs no losses")
        write_run(ready, self.folder)
        for profile, counted in zip(profiles, ready.job.label_counts.sum(axis=1), strict=True):
            if (claimed := sum(profile.label_counts)) > counted:
                self._news.tell(None, f"{profile.name} claims {claimed} samples, far more than the others; the plan "
                                      f"counts {counted}")

    def _let_time_pass(self, clients: NodeClients, steering: Steering, round_number: int) -> None:
        """Wait for clients if too few are there; otherwise, after an idle row, wait for the world's next row."""
        if len(clients.present()) >= self.patience.quorum.least:
            time.sleep(steering.world.start.step_s)
            return
        clients.wait_for_clients(round_number, self._waits)
        (self.folder / WAITING).unlink(missing_ok=True)

    def _waits(self, what: str) -> None:
        write_json(self.folder / WAITING, {"what": what})
        if self._on_wait is not None:
            self._on_wait(what)

    def _take_back(self, clients: NodeClients, account: RunAccounts, event: Event) -> None:
        """Decide what to change after a round that would have made the model infinite. If that happens again, the run
        fails."""
        number, names = event["round"], account.job.names
        reason = f"after round {number} the model or its loss would not have been finite"
        if account.recovery:
            raise RunFailedError(f"{reason}, and it was taken back before ({account.recovery['reason']}); try a "
                                 "smaller scenario.learning.rate, or a robust learning.aggregator")
        self._news.items = event.get("news", [])
        if clients.suspects:
            account.recovery["left_out"] = clients.suspects
            changed = f"left out: {', '.join(names[n] for n in clients.suspects)}, whose update is an outlier"
        else:
            changed = account.halve_rate()
        account.take_back([event], reason, changed)
        self._news.tell(None, f"{reason}; the round is tried again; {changed}")

    def _apply_recovery(self, clients: NodeClients, rounds: Rounds, run_id: str) -> None:
        """Continue with what :meth:`_take_back` changed. Answers to earlier messages no longer count."""
        account = rounds.accounts[0]
        if account.recovery:
            clients.left_out = set(account.recovery.get("left_out", []))
            rounds.model.set_rates([account.job.learner])
            clients.begin_again(f"{self._plan_hash} {run_id} taken back", account.job)

    def _check_end(self, account: RunAccounts, done: int) -> None:
        """Raise an error if the run did not end successfully."""
        if account.progress.diverged:
            raise RunFailedError(account.progress.ended)
        if done == 0:
            raise RunFailedError(f"no round was done: {account.stopped(0)}; see rounds.jsonl and the log")

    def _rounds(self, job: Job, plan: Plan, run_id: str) -> tuple[NodeClients, Rounds]:
        """Create the simulator's loop, with the nodes as its clients."""
        if job.precision == "float64":
            raise InputError("engine.precision: must not be float64 in a deployment, because uploads have float32 "
                             "values; use float32")
        module = build(**job.model, input_shape=self.dataset.shape, classes=self.dataset.classes, seed=0)
        if job.weights is not None and not all(p.requires_grad for p in module.parameters()):
            raise InputError("model.weights: cannot be used with a model that has frozen parameters, because nodes "
                             "receive only trained ones; unfreeze them, or leave model.weights out")
        layout = Layout.of(module)
        structure = structure_of(job.structure, module, self.dataset.shape)
        self._plan_hash = plan.scenario_hash
        messages = RoundMessages(job, layout, structure, run=run_id, plan=f"{self._plan_hash} {run_id}")
        self._names = {name: n for n, name in enumerate(job.names)}
        self._clients = NodeClients(self.transport, self.patience, plan, messages, self._news, self._greet)
        for node in self.profiles:
            self._admit(node)
        steering = None
        if job.policy:
            self._clients.world = MeasuredWorld(Scenario.load(self.folder / "scenario.yaml").fleet(),
                                                self._clients.present, self.patience.quorum.least,
                                                self.patience.poll_s)
            steering = Steering.of(self.folder, job, self._clients.world)
        rounds = Rounds([job], self.dataset, self._clients, [steering])
        noise = {self._names[p.name]: 2**0.5 / p.epsilon for p in self.profiles.values()
                 if p.epsilon is not None and p.name in self._names}
        self._clients.claims = LabelClaims(job, self.dataset, copy.deepcopy(rounds.engine.module).cpu().float(),
                                           messages.mask, noise)
        return self._clients, rounds

    # --- enrolment --------------------------------------------------------------------------------------------------

    def _enrol_all(self, known: list[str] | None) -> None:
        """Wait for as many nodes as required. A resumed run waits for the nodes it had, and continues without those
        that are gone.

        The server does not wait for nodes that it refused. But refused nodes do not let the run start while others can
        still come."""
        wanted = self.nodes if known is None else len(known)
        deadline = time.monotonic() + self.patience.enrol_s
        while time.monotonic() < deadline and not self._all_answered(wanted):
            self._greet()
            time.sleep(self.patience.poll_s)
        if not self.profiles or (known is None and len(self.profiles) + len(self._refused) < wanted):
            reasons = "; ".join(sorted({item["what"] for item in self._news.items})) or "nothing else was heard"
            raise InputError(f"nodes: {len(self.profiles)} of {wanted} enrolled within {self.patience.enrol_s:g} s "
                             f"({reasons})")

    def _all_answered(self, wanted: int) -> bool:
        """Whether enough nodes have enrolled, or some have been refused, at least one has enrolled, and no other key is
        still awaited."""
        enrolled = len(self.profiles)
        if enrolled >= wanted or not enrolled or self._asked:
            return enrolled >= wanted
        awaited = set(self._names_of_keys or ()) - set(self.profiles) - self._refused
        return not awaited and enrolled + len(self._refused) >= wanted

    def _greet(self) -> None:
        """Ask new nodes for their profiles, and read the profiles that have arrived."""
        online = self.transport.online()
        self._refused &= online  # a node that disconnected and comes back is asked again
        new = online - set(self.profiles) - set(self._asked.values()) - self._refused
        tickets = self.transport.send({node: Packet({"kind": "enrol"}) for node in new}, self.patience.round_s)
        self._asked |= {ticket: node for node, ticket in tickets.items()}
        for answer in self.transport.collect(list(self._asked)):
            if (node := self._asked.pop(answer.ticket, None)) is None:
                continue
            if answer.error:
                self._news.tell(None, f"node {node} did not enrol: {answer.error}")
                continue
            try:
                packet = Packet.from_bytes(answer.data, PROFILE_BYTES)
                profile = Profile.read(packet)
                self._check_identity(node, profile.name, packet.fields.get("fedgap"))
                self._enrol(node, profile)
            except FedgapError as error:
                self._refuse(node, str(error))

    def _enrol(self, node: int, profile: Profile) -> None:
        """Accept a node. Raises a :class:`~fedgap.errors.FedgapError` if its profile or its name cannot be accepted."""
        try:
            check_profile(self.experiment, profile, self.dataset)
        except FedgapError as error:
            raise PacketError(f"{profile.name!r}: {error}") from None
        taken = [other for other, p in self.profiles.items() if p.name == profile.name and other != node]
        if taken and taken[0] in self.transport.online():
            raise PacketError(f"{profile.name!r} is enrolled already")
        for other in taken:
            del self.profiles[other]
        self.profiles[node] = profile
        self._admit(node)

    def _refuse(self, node: int, reason: str) -> None:
        name = f" ({self.profiles[node].name!r})" if node in self.profiles else ""
        self._news.tell(None, f"node {node}{name} was refused: {reason}")
        self._refused.add(node)

    def _check_identity(self, node: int, name: str, version: object) -> None:
        """Raise a PacketError if a node has another version of fedgap, or a name that does not belong to its key."""
        ours = metadata.version("fedgap")
        if version != ours:
            raise PacketError(f"{name!r} has fedgap {str(version or 'of an earlier version')[:40]}, the server {ours}; "
                              f"install the server's on the node with: pip install fedgap=={ours}")
        if self._names_of_keys is not None and self._names_of_keys.get(node) != name:
            raise PacketError(f"its key belongs to {self._names_of_keys.get(node)!r}, and it calls itself {name!r}; a "
                              "node's name must be that of its public key's file")

    def _admit(self, node: int) -> None:
        """Assign an enrolled node to its client, if the run has started."""
        if self._clients is None:
            return
        name = self.profiles[node].name
        if name in self._names:
            self._clients.admit(self._names[name], node)
        else:
            self._refuse(node, "it is not part of this run's plan")
