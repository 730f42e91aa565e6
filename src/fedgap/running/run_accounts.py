"""One run's own part of the loop: its ledger, who takes part in each of its rounds, and what the round costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedgap.learning.codec import upload_bytes
from fedgap.learning.data import batch_keys
from fedgap.learning.masks import keep_count, prunes
from fedgap.running.events import Event, finite_or_none
from fedgap.running.faults import attend
from fedgap.running.job import Job
from fedgap.running.ledger import Charge, Ledger
from fedgap.streams import stream

TRAINING_SAMPLE = 2000
"""Training samples on which the generalization gap's training loss is taken, at most."""


@dataclass(frozen=True, eq=False)
class Turn:
    """A round of one run as far as it does not depend on the rounds before it. Without faults all rounds of a segment
    are one turn."""

    arrived: NDArray[np.int64]
    """The clients whose gradients arrive."""
    ratios: tuple[float, ...]
    """Theirs."""
    pruned: bool
    """Whether any selected client prunes."""
    charge: Charge
    event: Event
    """The round's event, its number and totals still to be filled in. Rounds share its lists."""


class Member:
    """One run's own part of the loop: its job, its ledger, and what a round of each segment is and costs."""

    def __init__(self, job: Job, device: torch.device, size: int) -> None:
        self.job, self.ledger = job, Ledger(job)
        sample = stream(job.seed, "target", len(job.names)).permutation(len(job.indices))[:TRAINING_SAMPLE]
        self.sample = torch.from_numpy(job.indices[np.sort(sample)]).to(device)
        segments = range(len(job.selected))
        if job.accounting == "measured":
            self.bits = np.array([[8.0 * upload_bytes(keep_count(ratio, size)) for ratio in row] for row in job.ratio])
            self.work = [job.work(g, self.bits[g], 32.0 * size) for g in segments]
            self.broadcast_j = job.broadcast_j(32.0 * size)
        else:
            self.bits = (1.0 - job.ratio) * job.gradient_bits
            self.work = [job.work(g) for g in segments]
            self.broadcast_j = job.broadcast_j()
        self.planned = [(float((w.compute_j + w.upload_j).sum()) + self.broadcast_j, float(w.client_s.max()))
                        for w in self.work]
        self.table = np.stack([np.zeros_like(job.sizes), job.sizes, job.offsets, job.batch_size])
        """For each client the key of its mini-batches (of those that are ever selected), D̂_n, where its samples begin,
        Z_n: (4, N)."""
        ever = np.flatnonzero(job.selected.any(axis=0))
        self.table[0, ever] = batch_keys(job.seed, ever.tolist()).view(np.int64)
        self._size, self._schedule, self.faulty = size, job.schedule.tolist(), job.faults.any
        self._turns: dict[int, Turn] = {}  # by segment; with faults by round, until it is booked

    def stopped(self, round_number: int) -> str:
        """"" while the run goes on, else why it ends before round ``round_number``."""
        if round_number >= len(self._schedule):
            return "all rounds are done"
        return self.ledger.affords(*self.planned[self._schedule[round_number]])

    def turn(self, round_number: int) -> Turn:
        """What happens in a round; it may lie ahead."""
        segment = self._schedule[round_number]
        key = round_number if self.faulty else segment
        if key not in self._turns:
            self._turns[key] = self._turn(round_number, segment)
        return self._turns[key]

    def book(self, round_number: int) -> tuple[Event, Turn]:
        """Books a round; returns its event so far."""
        turn, ledger = self.turn(round_number), self.ledger
        ledger.book(turn.charge)
        event = turn.event | {"round": round_number, "energy_total_j": ledger.energy_j,
                              "delay_total_s": ledger.delay_s}
        if self.faulty:
            del self._turns[round_number]
        return event, turn

    def _turn(self, round_number: int, segment: int) -> Turn:
        job = self.job
        went = attend(self.work[segment], job.faults, job.seed, round_number)
        charge = Charge.of(went, self.broadcast_j, float(self.bits[segment, went.arrived].sum()))
        chosen, arrived = np.flatnonzero(job.selected[segment]), np.flatnonzero(went.arrived)
        ratios = job.ratio[segment, chosen].tolist()
        event: Event = {
            "round": None, "clients": chosen.tolist(), "pruning_ratio": ratios,
            "energy_j": charge.energy_j, "delay_s": charge.delay_s, "energy_total_j": None,
            "delay_total_s": None, "train_loss": None,
            "client_energy_j": charge.client_j[chosen].tolist(), "client_delay_s": went.client_s[chosen].tolist(),
            "broadcast_j": charge.broadcast_j, "uploaded_bits": charge.uploaded_bits,
            "statement": finite_or_none(job.statement[segment])}
        for name, missing in (("dropped", went.dropped), ("late", went.late)):
            if missing.any():
                event[name] = np.flatnonzero(missing).tolist()
        return Turn(arrived, tuple(job.ratio[segment, arrived].tolist()), prunes(ratios, self._size), charge, event)
