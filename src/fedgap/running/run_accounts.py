"""One run's part of the loop: its ledger, who takes part in each of its rounds, and what the round costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedgap.learning.data import batch_keys
from fedgap.learning.masks import keep_count, prunes
from fedgap.learning.stochastic_rounding import upload_keys
from fedgap.running.events import Event, round_event
from fedgap.running.faults import Attendance, attend
from fedgap.running.job import RATE_STEPS, Job
from fedgap.running.ledger import Charge, Ledger
from fedgap.running.stopping import DivergenceRule, Progress, StoppingRule
from fedgap.streams import stream
from fedgap.upload_size import bits_per_value, upload_bytes

if TYPE_CHECKING:
    from fedgap.running.steering import Steering

TRAINING_SAMPLE = 2000
"""Training samples on which the generalization gap's training loss is taken, at most."""


@dataclass(frozen=True, eq=False)
class RoundOutline:
    """A round of one run as far as it does not depend on the rounds before it. Without faults all rounds of a segment
    share one outline."""

    arrived: NDArray[np.int64]
    """The clients whose updates arrive."""
    segment: int
    ratios: tuple[float, ...]
    """Their pruning ratios."""
    charge: Charge
    event: Event
    """The round's event, its number and totals still to be filled in. Rounds share its lists."""


class RunAccounts:
    """A run's job and ledger, and what a round of each segment is and costs."""

    def __init__(self, job: Job, device: torch.device, size: int, steering: Steering | None = None) -> None:
        """:param steering: decides the rounds, where the job has a policy."""
        self.ledger, self.progress, self._size = Ledger(job), Progress(), size
        self.steering = steering
        self._rules = StoppingRule(job.stop.get("accuracy"), patience=job.stop.get("patience"))
        self.divergence = DivergenceRule(job.extra["classes"]) if job.stop.get("diverged") else None
        sample = stream(job.seed, "target", len(job.names)).permutation(len(job.indices))[:TRAINING_SAMPLE]
        self.sample = torch.from_numpy(job.indices[np.sort(sample)]).to(device)
        """The training samples on which the model is evaluated; none where the nodes of a deployment have them."""
        self._take(job)

    def _take(self, job: Job) -> None:
        """Train the segments of this job from now on."""
        self.job, size = job, self._size
        segments = range(len(job.selected))
        if job.accounting == "measured":
            self.bits = np.array([[8.0 * upload_bytes(keep_count(ratio, size), job.upload_bits) for ratio in row]
                                  for row in job.ratio])
            self.work = [job.work(g, self.bits[g], 32.0 * size) for g in segments]
            self.broadcast_j = job.broadcast_j(32.0 * size)
        else:
            self.bits = (1.0 - job.ratio) * job.gradient_bits * (bits_per_value(job.upload_bits) / 32.0)
            self.work = [job.work(g) for g in segments]
            self.broadcast_j = job.broadcast_j()
        self.planned = [(work.energy_j + self.broadcast_j, work.delay_s) for work in self.work]
        no_key = np.zeros_like(job.sizes)
        self.table = np.stack([no_key, job.sizes, job.offsets, job.batch_size, no_key])
        """For each client the key of its mini-batches (if it is ever selected), D̂_n, where its samples begin, Z_n, and
        the key of its uploads: (5, N)."""
        ever = np.flatnonzero(job.selected.any(axis=0))
        self.table[0, ever] = batch_keys(job.seed, ever.tolist()).view(np.int64)
        self.table[4, ever] = upload_keys(job.seed, ever.tolist()).view(np.int64)
        self._schedule, self.faulty = job.schedule.tolist(), job.faults.any
        self._prunes = [prunes(job.ratio[g, job.selected[g]].tolist(), size) for g in segments]
        self._outlines: dict[int, RoundOutline] = {}  # by segment; with faults by round, until it is booked

    def stopped(self, round_number: int) -> str:
        """"" while the run continues, else why it ends before round ``round_number``."""
        if self.steering is not None and not self.progress.ended:
            self.steering.decide(round_number, self.ledger)
            if self.steering.ended:
                return self.steering.ended
            if self.job.rounds != round_number + 1:
                self._take(self.steering.round_job(round_number))
        if round_number >= len(self._schedule):
            return "all rounds are done"
        return self.progress.ended or self.ledger.affords(*self.planned[self._schedule[round_number]])

    def segment(self, round_number: int) -> int:
        """The plan's segment of a round."""
        return int(self._schedule[round_number])

    def prunes(self, round_number: int) -> bool:
        """Whether any selected client prunes in this round; the pruned model is theirs, even if they vanish."""
        return self._prunes[self.segment(round_number)]

    def ratios(self, round_number: int) -> list[float]:
        """The pruning ratios of the clients that a round selected."""
        if self.steering is not None:
            return self.steering.ratios(round_number)
        segment = self.segment(round_number)
        return list(self.job.ratio[segment, self.job.selected[segment]].tolist())

    def outline(self, round_number: int) -> RoundOutline:
        """What happens in a simulated round; it may lie ahead."""
        segment = self._schedule[round_number]
        key = round_number if self.faulty else segment
        if key not in self._outlines:
            attendance = attend(self.work[segment], self.job.faults, self.job.seed, round_number)
            self._outlines[key] = self.outline_of(segment, attendance)
        return self._outlines[key]

    def outline_of(self, segment: int, attendance: Attendance) -> RoundOutline:
        """A round of this segment with this attendance."""
        bits = float(self.bits[segment, attendance.arrived].sum())
        charge = Charge.of(attendance, self.broadcast_j, bits)
        arrived = np.flatnonzero(attendance.arrived)
        return RoundOutline(arrived, segment, tuple(self.job.ratio[segment, arrived].tolist()), charge,
                            round_event(self.job, segment, charge))

    def book(self, round_number: int, outline: RoundOutline) -> Event:
        """Charge the ledger with a round; returns its event, complete but for what was learned."""
        self.ledger.book(outline.charge)
        if self.faulty:
            self._outlines.pop(round_number, None)
        decided = {} if self.steering is None else self.steering.decided[round_number]["event"]
        return outline.event | {"round": round_number, "energy_total_j": self.ledger.energy_j,
                                "delay_total_s": self.ledger.delay_s, **decided}

    def rate_place(self, round_number: int) -> int:
        """Where the run stands in its rate schedule: at the round, or by the share of the budgets that is spent."""
        if self.steering is None:
            return round_number
        job, ledger = self.job, self.ledger
        share = max(ledger.energy_j / job.energy_budget_j, ledger.delay_s / job.delay_budget_s)
        return min(RATE_STEPS - 1, int(share * RATE_STEPS))

    def whole_job(self, rounds: int) -> Job:
        """The job with all its rounds, of which so many were trained."""
        return self.job if self.steering is None else self.steering.whole_job(rounds)

    def judge(self, event: Event, all_rejected: bool) -> None:
        """Let the rules for stopping see a round that was evaluated; ``all_rejected``: none of its updates counted."""
        learner = self.job.learner
        rate, key = ((learner.server_rate, "scenario.learning.server.rate") if learner.server.adaptive else
                     (learner.rate, "scenario.learning.rate"))
        self.progress.judge(self._rules, self.divergence, event, all_rejected=all_rejected, rate=rate, key=key)

    def reject(self, event: Event, clients: Sequence[int]) -> None:
        """Note the clients whose updates of a round were not accepted, if any."""
        if clients:
            event["rejected"] = list(clients)
            self.ledger.rejected[list(clients)] += 1
