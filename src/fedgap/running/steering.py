"""A run whose rounds a policy decides, one by one, in a world that changes.

The world is a trace: each of its rows has every client's channel gain, availability and speed at one time. Before each
round the policy sees the present row and what is left of both budgets. A row in which nobody trains is idle: it costs
the length of the world's time step in seconds and no joules. The decided round becomes a job with a single segment,
which replaces the run's job for that round. In a simulation the trace is known from the start; in a deployment it grows
by a measured row before each decision."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.config import Scenario
from fedgap.config.trace_csv import read_trace
from fedgap.errors import InfeasibleError, InputError
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.policies.policy import (
    Decision,
    Policy,
    PolicyStart,
    RoundView,
    asked_clients,
    decided,
    make_policy,
)
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.policy_simulation import BUDGET_KEPT, ChangingWorld, simulate_policy
from fedgap.planning.solve import scheme_of
from fedgap.running.decided_rounds import DecidedRounds
from fedgap.running.job import BY_CLIENT, Job
from fedgap.running.label_probabilities import label_sampling
from fedgap.running.ledger import Ledger
from fedgap.running.round_arrays import round_arrays
from fedgap.running.trace_changes import clients_changes
from fedgap.system import probe_cost
from fedgap.system.trace import Trace
from fedgap.theory.generalization import smoothed

TRACE = "trace.csv"
"""The file in a run's folder that holds its world."""


class MeasuredRows(Protocol):
    """Measures the world of a deployment, one row at a time."""

    state: dict[str, Any]
    """What the measurements so far have shown, as plain values (JSON)."""

    def row(self) -> tuple[Floats, Bools, Floats] | None:
        """The present gain, availability and speed of each client, (N,) each as in a trace; None while too few clients
        are there."""


class Steering(DecidedRounds):
    """Decides the rounds of one run. The decision of a round consists of the world's ``row`` and the plan
    ``segment``."""

    def __init__(self, job: Job, scenario: Scenario, world: ChangingWorld, policy: Policy,
                 measured: MeasuredRows | None = None) -> None:
        """``measured`` provides the world's rows if they are not known beforehand."""
        super().__init__(len(job.names))
        self.job, self.world, self.policy, self.measured = job, world, policy, measured
        self._scenario = scenario
        self.row = 0
        """The number of the world's next row."""
        self._idle = 0  # rows in which nobody trained since the last decided round
        self._before: dict[str, Any] = {}  # the policy's state and the idle rows before the last decided round

    @classmethod
    def of(cls, folder: Path, job: Job, measured: MeasuredRows | None = None) -> Steering:
        """The steering of the run in a folder, as it is before the first round."""
        scenario, plan = Scenario.load(folder / "scenario.yaml"), Plan.load(folder / "plan.json")
        nothing = measured is not None and not (folder / TRACE).exists()
        trace = Trace.constant(0, len(job.names)) if nothing else read_trace(TRACE, folder, job.names)
        return cls.in_world(job, scenario, plan, trace, measured)

    @classmethod
    def in_world(cls, job: Job, scenario: Scenario, plan: Plan, trace: Trace,
                 measured: MeasuredRows | None = None) -> Steering:
        """The steering of a job in the world of this trace, as it is before the first round."""
        choice = job.policy
        scheme = scheme_of(choice["scheme"], choice.get("objective"), choice.get("selection"))
        start = PolicyStart.of(scenario, plan, scheme, job.seed, choice["interleave"])
        policy = make_policy(choice["name"], start)
        return cls(job, scenario, ChangingWorld.of(start, trace), policy, measured)

    # --- deciding ---------------------------------------------------------------------------------------------------

    def decide(self, number: int, ledger: Ledger) -> None:
        """Decide round ``number``, unless it is already decided or training has ended. Idle rows are charged to the
        ledger.

        In a measured world the round stays :meth:`undecided` while too few clients are there, and after an idle row."""
        while self.undecided(number):
            if number >= self.world.start.problem.rounds:
                self.ended = "all rounds are done"
                return
            if not self._observe():
                return
            view = self._view(ledger)
            asked, probe = asked_clients(self.policy, view, self.job.policy["name"]), {}
            if asked is not None:
                cost = probe_cost(view.fleet, asked)
                probe = self._probe(number, asked, cost.client_j, cost.client_s, ledger)
                if self.ended:
                    return
                view = self._view(ledger)
            decision = decided(self.policy, view, self.world.start, self.job.policy["name"])
            if decision.ends:
                self.ended = decision.reason or "the policy has no further round"
            elif decision.segment is None:
                self._idle += 1
                self.ended = ledger.affords(0.0, self.world.start.step_s)
                if self.ended and not number:
                    self.ended += "; every row was idle"
                if not self.ended:
                    ledger.delay_s += self.world.start.step_s
                self.row += 1
                if self.measured is not None:
                    return  # the caller waits until the next row
            elif overdrawn := self._overdrawn(decision.segment, view):
                self.ended = f"the next round would overdraw the battery of {overdrawn}"
            else:
                self._take(decision, decision.segment, view, probe)

    def decide_again(self, number: int) -> None:
        """Undo the decision of round ``number``, which was not trained. The world does not return to earlier rows."""
        if len(self.decided) > number:
            self.decided.pop()
            self._set_policy(self._before["policy"])
            self._idle = self._before["idle"]

    def _observe(self) -> bool:
        """Add the present row to a measured world. Returns False while too few clients are there."""
        if self.measured is None:
            return True
        before = {"policy": deepcopy(self.policy.state), "idle": self._idle}
        row = self.measured.row()
        if row is None:
            return False
        self.world, self._before = replace(self.world, trace=self.world.trace.first(self.row).with_row(*row)), before
        return True

    def _overdrawn(self, segment: Segment, view: RoundView) -> str:
        """The name of a client whose battery cannot pay a round; "" if there is none."""
        present = PresentRound.of(self.world.start, view)
        if present is None or not np.isfinite(view.battery_j).any():
            return ""
        spent = present.spread(present.cost(segment).client_j)
        over = np.flatnonzero(spent > view.battery_j * (1.0 + BUDGET_KEPT))
        return self.job.names[int(over[0])] if len(over) else ""

    def _take(self, decision: Decision, segment: Segment, view: RoundView, probe: dict[str, Any]) -> None:
        event: dict[str, Any] = {"row": self.row, "available": np.flatnonzero(view.available).tolist(),
                                 "energy_left_j": view.energy_j, "delay_left_s": view.delay_s, **probe}
        row = self.world.trace.row(self.row)
        for key, values in (("gain", self.world.trace.gain[row]), ("speed", self.world.trace.speed[row])):
            if (values != 1.0).any():
                event[key] = [float(f"{value:.4g}") for value in values]
        if self._idle:
            event["idle_s"] = self._idle * self.world.start.step_s
            self._idle = 0
        if reports := self._label_reports(view):
            event["label_reports"] = reports
        if decision.reason:
            news = clients_changes(self.world.trace, self.row, self.job.names)
            event["planned_again"] = "; ".join([decision.reason, *news])
        if decision.forecast_error is not None:
            event["forecast_accuracy"] = 1.0 - decision.forecast_error
        if decision.notes:
            event["policy"] = {key: float(value) for key, value in decision.notes.items()}
        self.decided.append({"row": self.row, "segment": segment.to_dict(), "event": event})
        self.row += 1

    def _label_reports(self, view: RoundView) -> list[int]:
        """The numbers of the clients that report label counts before a round: those whose labels changed since the
        previous row."""
        if view.label_counts is None or not self.row:
            return []
        before, _ = self.world.labels(self.row - 1)
        return np.flatnonzero((view.label_counts != before).any(axis=-1)).tolist()

    def _view(self, ledger: Ledger) -> RoundView:
        left = self.job.energy_budget_j - ledger.energy_j, self.job.delay_budget_s - ledger.delay_s
        done = tuple(Segment.from_dict(entry["segment"]) for entry in self.decided)
        return self.world.view(self.row, left, done, losses=self._losses.copy(), last_round=self._last_round.copy(),
                               client_j=ledger.client_j)

    def ratios(self, number: int) -> list[float]:
        """The pruning ratios of the selected clients in a decided round."""
        clients = self.decided[number]["segment"]["clients"]
        return [client["pruning_ratio"] for client in clients if client["selected"]]

    def target(self, number: int) -> Floats | None:
        """The target's label distribution (C,) in a decided round; None if it does not drift."""
        if self.world.labels_at is None:
            return None
        _, counts = self.world.labels(self.decided[number]["row"])
        assert counts is not None
        return np.asarray(counts / counts.sum())

    # --- what is trained --------------------------------------------------------------------------------------------

    def round_job(self, number: int) -> Job:
        """The job of a decided round. It has a single segment, whose costs are computed with the channels and speeds
        of the world's row in which the round takes place."""
        entry = self.decided[number]
        row, segment = entry["row"], Segment.from_dict(entry["segment"])
        world = self.world
        available = np.isin(np.arange(len(self.job.names)), entry["event"]["available"])
        problem = replace(world.start.problem, fleet=world.trace.fleet(world.start.problem.fleet, row))
        arrays = round_arrays(problem, [segment])
        for key in ("download_s", "download_s_bit"):
            arrays[key] = np.where(available, arrays[key], 0.0)  # nothing is sent to clients that are away
        return replace(self.job, schedule=np.zeros(number + 1, dtype=np.int64), **arrays,
                       label_probabilities=self._label_probabilities(row, segment))

    def _label_probabilities(self, row: int, segment: Segment) -> np.ndarray:
        counts, target = self.world.labels(row)
        if counts is None or target is None:
            return self.job.label_probabilities
        if self.job.batches == "as_is":
            if not self.world.clients_drift:
                return self.job.label_probabilities
            return np.asarray(segment.selected[:, None] * counts / counts.sum(axis=-1, keepdims=True))[None]
        problem, learning = self.world.start.problem, self._scenario.learning
        everything = np.zeros(self.world.start.plan.rounds, dtype=np.int64)
        return label_sampling(
            self.job.batches, segment.selected[None], everything, counts.round().astype(np.int64), smoothed(target),
            samples_per_round=segment.local_steps * problem.fleet.batch_size, max_repeat=learning.max_repeat,
        ).probabilities

    def whole_job(self, rounds: int) -> Job:
        """The job with the rounds that were trained, each as its own segment, for the summary and the model card."""
        if not rounds:
            return self.job
        segments = [Segment.from_dict(entry["segment"]) for entry in self.decided[:rounds]]
        jobs = [self.round_job(number) for number in range(rounds)]
        stacked: dict[str, Any] = {key: np.concatenate([getattr(job, key) for job in jobs]) for key in (
            *BY_CLIENT, "statement")}
        if self.job.batches != "as_is" or self.world.clients_drift:
            stacked["label_probabilities"] = np.concatenate([job.label_probabilities for job in jobs])
        return replace(self.job, schedule=np.arange(len(segments)), **stacked)

    def decided_beforehand(self) -> Job:
        """The job with all its rounds decided, so that it can be trained where no policy can run.

        The policy must not need anything that training shows, such as losses. The decisions keep the budgets, which are
        not checked again during training. The rate schedule follows the number of the round."""
        reached = simulate_policy(self.world, self.policy, self.job.policy["name"])
        if not reached.rounds:
            raise InfeasibleError(f"policy: {self.job.policy['name']} trains no round in this world ({reached.ended})")
        self.decided = [{"row": row, "segment": segment.to_dict(),
                         "event": {"available": np.flatnonzero(self.world.available(row)).tolist()}}
                        for row, segment in zip(reached.rows, reached.segments, strict=True)]
        job = self.whole_job(reached.rounds)
        if self.world.labels_at is not None:
            targets = [self.target(number) for number in range(reached.rounds)]
            job = replace(job, targets=np.stack([target for target in targets if target is not None]))
        return replace(_merged(job), policy={}, energy_budget_j=np.inf, delay_budget_s=np.inf)

    # --- checkpoints and resuming -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint must hold."""
        measured = {} if self.measured is None else {
            "measured": self.measured.state, "before": self._before, "idle": self._idle}
        try:
            json.dumps(self.policy.state)
        except (TypeError, ValueError) as error:
            raise InputError(f"policy: {self.job.policy['name']} must have only plain values in its state, such as "
                             f"numbers, texts, lists and dictionaries ({error})") from None
        return {"policy": self.policy.state, "row": self.row, **super().state(), **measured}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._set_policy(state["policy"])
        if self.measured is not None:
            self.measured.state, self._before, self._idle = state["measured"], state["before"], state["idle"]
        self.row = state["row"]
        super().load(state)

    def _set_policy(self, state: dict[str, Any]) -> None:
        self.policy.state.clear()
        self.policy.state.update(state)


def _merged(job: Job) -> Job:
    """The same job, with equal rounds merged into one segment."""
    names = [name for name in (*BY_CLIENT, "label_probabilities", "statement", "targets") if getattr(job, name).size]
    keys = [b"".join(getattr(job, name)[number].tobytes() for name in names) for number in range(job.rounds)]
    place = {key: number for number, key in reversed(list(enumerate(keys)))}
    first = sorted(place.values())
    segment = {number: position for position, number in enumerate(first)}
    kept: dict[str, Any] = {name: getattr(job, name)[first] for name in names}
    return replace(job, schedule=np.array([segment[place[key]] for key in keys]), **kept)
