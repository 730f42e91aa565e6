"""What the loop keeps for one run: its ledger, who takes part in each of its rounds, and what a round costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgap.arrays import Floats
from fedgap.learning.data import batch_keys
from fedgap.learning.stochastic_rounding import upload_keys
from fedgap.learning.structure import Structure
from fedgap.running.events import Event, round_event
from fedgap.running.faults import Attendance, attend
from fedgap.running.job import RATE_STEPS, Job
from fedgap.running.label_probabilities import target_changes
from fedgap.running.ledger import Charge, Ledger
from fedgap.running.stopping import DivergenceRule, Progress, StoppingRule
from fedgap.streams import stream
from fedgap.upload_size import bits_per_value, upload_bytes

if TYPE_CHECKING:
    from fedgap.running.ruled_steering import RuledSteering
    from fedgap.running.steering import Steering

TRAINING_SAMPLE = 2000
"""Maximum number of training samples for the training loss in the generalization gap."""


@dataclass(frozen=True, eq=False)
class RoundOutline:
    """The part of one run's round that does not depend on earlier rounds. Without faults, all rounds of a segment share
    one outline."""

    arrived: NDArray[np.int64]
    """The numbers of the clients whose updates arrive."""
    segment: int
    ratios: tuple[float, ...]
    """The pruning ratios of these clients."""
    charge: Charge
    event: Event
    """The round's event, without its number and totals. Rounds may share its lists."""


class RunAccounts:
    """One run's job and ledger, and for each segment of its plan who takes part and what a round costs."""

    def __init__(self, job: Job, device: torch.device, structure: Structure,
                 steering: Steering | RuledSteering | None = None) -> None:
        """``steering`` decides the rounds if the job has a policy."""
        self.ledger, self.progress, self._structure = Ledger(job), Progress(), structure
        self.steering = steering
        self._decided: dict[str, Any] | None = None  # the decision from which the present job was made
        self._targets: list[Floats] = []  # targets of the rounds so far, if batches follow a drifting target
        self._rules = StoppingRule(job.stop.get("accuracy"), patience=job.stop.get("patience"))
        self.divergence = DivergenceRule(job.extra["classes"]) if job.stop.get("diverged") else None
        sample = stream(job.seed, "target", len(job.names)).permutation(len(job.indices))[:TRAINING_SAMPLE]
        self.sample = torch.from_numpy(job.indices[np.sort(sample)]).to(device)
        """Indices of the training samples on which the model is evaluated; empty in a deployment, whose nodes have the
        samples."""
        self.uncounted: list[Event] = []
        """The cost of, and reason for, each failed attempt since the last counted round; the next event includes it."""
        self.good: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        """The model's tensors, round and progress after the last evaluation with a finite loss."""
        self.recovery: dict[str, Any] = {}
        """If rounds were undone because the model was not finite: the ``reason``, and what was changed."""
        self._take(job)

    def _take(self, job: Job) -> None:
        """Use the segments of this job for the rounds from now on."""
        self.job, structure = job, self._structure
        size = structure.size
        segments = range(len(job.selected))
        if job.accounting == "measured":
            self.bits = np.array([[8.0 * upload_bytes(structure.keep_count(ratio), job.upload_bits) for ratio in row]
                                  for row in job.ratio])
            self.work = [job.work(g, self.bits[g], 32.0 * size) for g in segments]
            self.broadcast_j = job.broadcast_j(32.0 * size)
        else:
            self.bits = job.kept_share * job.gradient_bits * (bits_per_value(job.upload_bits) / 32.0)
            self.work = [job.work(g) for g in segments]
            self.broadcast_j = job.broadcast_j()
        self.planned = [(work.energy_j + self.broadcast_j, work.delay_s) for work in self.work]
        no_key = np.zeros_like(job.sizes)
        self.table = np.stack([no_key, job.sizes, job.offsets, job.batch_size, no_key])
        """(5, N): for each client the random key of its mini-batches (0 if it is never selected), its number of samples
        D̂_n, their offset, its batch size Z_n, and the random key of its uploads."""
        ever = np.flatnonzero(job.selected.any(axis=0))
        self.table[0, ever] = batch_keys(job.seed, ever.tolist()).view(np.int64)
        self.table[4, ever] = upload_keys(job.seed, ever.tolist()).view(np.int64)
        self._schedule, self.faulty = job.schedule.tolist(), job.faults.any
        self._prunes = [any(structure.keep_count(ratio) < size for ratio in job.ratio[g, job.selected[g]].tolist())
                        for g in segments]
        self._outlines: dict[int, RoundOutline] = {}  # by segment; with faults by round, until charged

    def stopped(self, round_number: int) -> str:
        """The reason why the run ends before round ``round_number``, or "" while it continues.

        In a deployment the run also continues while its steering could not yet decide the round."""
        if self.steering is not None and not self.progress.ended:
            self.steering.decide(round_number, self.ledger)
            if self.steering.ended or self.steering.undecided(round_number):
                return self.steering.ended
            if self.steering.decided[round_number] is not self._decided:
                self._decided = self.steering.decided[round_number]
                self._take(self.steering.round_job(round_number))
                if "rate_factor" in self.recovery:
                    self._scale_rate(self.recovery["rate_factor"])
        if round_number >= len(self._schedule):
            return "all rounds are done"
        return self.progress.ended or self.ledger.affords(*self.planned[self._schedule[round_number]])

    def segment(self, round_number: int) -> int:
        """The number of the plan's segment that this round belongs to."""
        return int(self._schedule[round_number])

    def prunes(self, round_number: int) -> bool:
        """Whether any selected client prunes in this round, even if it drops out later."""
        return self._prunes[self.segment(round_number)]

    def ratios(self, round_number: int) -> list[float]:
        """The pruning ratios of the clients selected in a round."""
        if self.steering is not None:
            return self.steering.ratios(round_number)
        segment = self.segment(round_number)
        return list(self.job.ratio[segment, self.job.selected[segment]].tolist())

    def target(self, round_number: int) -> Floats | None:
        """The target's label distribution (C,) in a round; None if it does not drift."""
        if self.steering is not None:
            return self.steering.target(round_number)
        targets = self.job.targets
        return np.asarray(targets[self.segment(round_number)]) if targets.size else None

    def leaves_target(self, round_number: int) -> bool:
        """Whether the batches follow a drifting target that has moved away from that of the previous rounds."""
        if self.job.batches != "target" or self.target(round_number) is None:
            return False
        del self._targets[round_number:]  # rounds that are decided again
        self._targets += [target for number in range(len(self._targets), round_number + 1)
                          if (target := self.target(number)) is not None]
        return round_number in target_changes(self._targets)

    def outline(self, round_number: int) -> RoundOutline:
        """The outline of a simulated round, which may be in the future."""
        segment = self._schedule[round_number]
        key = round_number if self.faulty else segment
        if key not in self._outlines:
            attendance = attend(self.work[segment], self.job.faults, self.job.seed, round_number)
            self._outlines[key] = self.outline_of(segment, attendance)
        return self._outlines[key]

    def outline_of(self, segment: int, attendance: Attendance) -> RoundOutline:
        """The outline of a round of this segment with this attendance."""
        bits = float(self.bits[segment, attendance.arrived].sum())
        charge = Charge.of(attendance, self.broadcast_j, bits)
        arrived = np.flatnonzero(attendance.arrived)
        return RoundOutline(arrived, segment, tuple(self.job.ratio[segment, arrived].tolist()), charge,
                            round_event(self.job, segment, charge))

    def book(self, round_number: int, outline: RoundOutline) -> Event:
        """Charge a round to the ledger and return its event, still without losses and evaluations."""
        self.ledger.book(outline.charge)
        if self.faulty:
            self._outlines.pop(round_number, None)
        decided = {} if self.steering is None else self.steering.decided[round_number]["event"]
        event = outline.event | {"round": round_number, "energy_total_j": self.ledger.energy_j,
                                 "delay_total_s": self.ledger.delay_s, **decided}
        if self.uncounted:  # a round's cost includes that of its failed attempts
            for key in ("energy_j", "delay_s"):
                event[key] += sum(spent[key] for spent in self.uncounted)
            event["uncounted"], self.uncounted = self.uncounted, []
        return event

    def charge_uncounted(self, attendance: Attendance, bits: float, reason: str) -> None:
        """Charge a failed attempt at a round to the ledger. The broadcast is not charged if no client delivered."""
        charge = Charge.of(attendance, self.broadcast_j if attendance.arrived.any() else 0.0, bits)
        self.ledger.book(charge)
        self.uncounted.append({"reason": reason, "energy_j": charge.energy_j, "delay_s": charge.delay_s})

    def take_back(self, events: Sequence[Event], reason: str, changed: str) -> None:
        """Record that rounds which were already charged are undone. Their cost stays charged."""
        self.uncounted.append({"reason": reason, "changed": changed, "rounds": [event["round"] for event in events],
                               "energy_j": sum(event["energy_j"] for event in events),
                               "delay_s": sum(event["delay_s"] for event in events)})
        self.recovery.setdefault("reason", reason)

    def halve_rate(self) -> str:
        """Train the rest of the run at half the rate. Returns a sentence that says what was changed."""
        before = self.job.learner.server_rate if self.job.learner.server.adaptive else self.job.learning_rate
        self.recovery["rate_factor"] = self.recovery.get("rate_factor", 1.0) / 2
        self._scale_rate(0.5)
        return f"the rate was halved from {before:g} to {before / 2:g}"

    def _scale_rate(self, factor: float) -> None:
        """Multiply the rate that determines how far a round moves the model: the server's if its optimiser is adaptive,
        else the clients'."""
        job = self.job
        if job.learner.server.adaptive:
            self.job = replace(job, server={**job.server, "rate": factor * job.learner.server_rate})
        else:
            self.job = replace(job, learning_rate=factor * job.learning_rate)

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint must hold."""
        steering = {} if self.steering is None else {"steering": self.steering.state()}
        return {"ledger": self.ledger.state(), "progress": asdict(self.progress), "uncounted": self.uncounted,
                "recovery": self.recovery, **steering}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.ledger.load(state["ledger"])
        self.progress = Progress(**state.get("progress", {}))  # checkpoints of fedgap 0.1 lack these keys
        self.uncounted, self.recovery = state.get("uncounted", []), state.get("recovery", {})
        if "rate_factor" in self.recovery:
            self._scale_rate(self.recovery["rate_factor"])
        if self.steering is not None:
            self.steering.load(state["steering"])

    def rate_place(self, round_number: int) -> int:
        """The position of a round in the rate schedule: its number or, with a policy, the spent share of the budgets
        times RATE_STEPS."""
        if self.steering is None:
            return round_number
        job, ledger = self.job, self.ledger
        share = max(ledger.energy_j / job.energy_budget_j, ledger.delay_s / job.delay_budget_s)
        return min(RATE_STEPS - 1, int(share * RATE_STEPS))

    def whole_job(self, rounds: int) -> Job:
        """The job for the summary. If a policy decides the rounds, it contains the ``rounds`` that were trained."""
        return self.job if self.steering is None else self.steering.whole_job(rounds)

    def judge(self, event: Event, all_rejected: bool) -> None:
        """Apply the stopping rules to an evaluated round. ``all_rejected`` says that none of its updates was
        accepted."""
        learner = self.job.learner
        rate, key = ((learner.server_rate, "scenario.learning.server.rate") if learner.server.adaptive else
                     (learner.rate, "scenario.learning.rate"))
        written = rate / self.recovery.get("rate_factor", 1.0)  # the rate in the experiment, to which the advice refers
        self.progress.judge(self._rules, self.divergence, event, all_rejected=all_rejected, rate=written, key=key)

    def reject(self, event: Event, clients: Sequence[int]) -> None:
        """Record the clients whose updates were not accepted in a round, if any."""
        if clients:
            event["rejected"] = list(clients)
            self.ledger.rejected[list(clients)] += 1
