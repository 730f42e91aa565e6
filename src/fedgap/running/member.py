"""One run's own part of the loop: its batches, its ledger, and what a round of each of its segments costs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedgap.learning.codec import upload_bytes
from fedgap.learning.data import batch_indices, batch_keys
from fedgap.learning.importance import Importance
from fedgap.learning.masks import keep_count
from fedgap.running.events import Event, finite_or_none
from fedgap.running.faults import attend
from fedgap.running.job import Job
from fedgap.running.ledger import Ledger
from fedgap.streams import stream, stream_seed

TRAINING_SAMPLE = 2000
"""Training samples on which the generalization gap's training loss is taken, at most."""
_BLOCK = 2**20  # batch positions drawn ahead at a time


class Batches:
    """A run's mini-batches as indices into the training set, drawn some rounds ahead."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.clients = np.flatnonzero(job.selected.any(axis=0))
        self.row = np.full(len(job.names), -1)
        self.row[self.clients] = np.arange(len(self.clients))
        self.keys = batch_keys(job.seed, self.clients.tolist())
        self.width = int(job.batch_size[self.clients].max())
        self.ahead = max(1, min(64, _BLOCK // (len(self.clients) * self.width)))
        self.start = -1
        self.block: NDArray[np.int64] = np.empty((0, 0, 0), dtype=np.int64)

    def take(self, round_number: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k, Z) indices; a client of a smaller batch uses the first Z_n of its row."""
        if self.start < 0 or not self.start <= round_number < self.start + self.ahead:
            self._draw(round_number)
        return np.asarray(self.block[round_number - self.start, self.row[clients]])

    def _draw(self, start: int) -> None:
        job, rounds = self.job, np.arange(start, start + self.ahead)
        drawn = np.zeros((self.ahead, len(self.clients), self.width), dtype=np.int64)
        for batch in np.unique(job.batch_size[self.clients]):
            rows = np.flatnonzero(job.batch_size[self.clients] == batch)
            members = self.clients[rows]
            position = batch_indices(self.keys[rows], rounds, job.sizes[members], int(batch))
            drawn[:, rows, :batch] = job.indices[position + job.offsets[members][:, None]]
        self.start, self.block = start, drawn


class Member:
    """One run's own part of the loop: its job, its ledger, its batches, and what a round of each segment costs."""

    def __init__(self, job: Job, device: torch.device, size: int) -> None:
        self.job, self.ledger, self.batches = job, Ledger(job), Batches(job)
        self.importance = Importance(**job.importance, seeds=(stream_seed(job.seed, "selection"),))
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

    def stopped(self, round_number: int) -> str:
        """"" while the run goes on, else why it ends before round ``round_number``."""
        if round_number >= self.job.rounds:
            return "all rounds are done"
        return self.ledger.affords(*self.planned[self.job.schedule[round_number]])

    def charge(self, round_number: int) -> tuple[Event, NDArray[np.int64]]:
        """Books a round; returns its event so far, and the clients whose gradients arrive."""
        job, ledger, segment = self.job, self.ledger, int(self.job.schedule[round_number])
        went = attend(self.work[segment], job.faults, job.seed, round_number)
        bits = float(self.bits[segment, went.arrived].sum())
        charge = ledger.charge(went, self.broadcast_j, bits)
        chosen = np.flatnonzero(job.selected[segment])
        event: Event = {
            "round": round_number, "clients": chosen.tolist(), "pruning_ratio": job.ratio[segment, chosen].tolist(),
            "energy_j": charge.energy_j, "delay_s": charge.delay_s, "energy_total_j": ledger.energy_j,
            "delay_total_s": ledger.delay_s, "train_loss": None,
            "client_energy_j": charge.client_j[chosen].tolist(), "client_delay_s": charge.client_s[chosen].tolist(),
            "broadcast_j": charge.broadcast_j, "uploaded_bits": bits,
            "statement": finite_or_none(job.statement[segment])}
        for name, missing in (("dropped", went.dropped), ("late", went.late)):
            if missing.any():
                event[name] = np.flatnonzero(missing).tolist()
        return event, np.flatnonzero(went.arrived)
