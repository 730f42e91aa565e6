"""The mini-batches of the runs: which samples each client computes on, drawn many rounds ahead on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgap.learning.data import draw_batches
from fedgap.learning.data.batches import draw_weighted_batches
from fedgap.learning.data.label_sampling import cumulative_probabilities
from fedgap.learning.structure import Structure
from fedgap.running.run_accounts import RoundOutline, RunAccounts

_BLOCK, _BLOCK_CPU = 2**21, 2**18  # samples that are drawn in advance at once; fewer on a CPU, whose caches are small
_AHEAD = 256  # maximum number of rounds that are drawn in advance


@dataclass(frozen=True, eq=False)
class ClientTasks:
    """The K updates that clients compute in a round: for each run, those of the clients whose updates arrive.

    ``run`` and ``ratios`` are each task's run and pruning ratio. ``heard`` are the runs with at least one task, and
    ``slices`` the ranges of their tasks. ``table`` (8, K) has for each task the key of the batches, the number of
    samples D̂_n and their offset, the batch size Z_n, the key of the upload, the run, the number of kept weights, and
    the offset of the samples' cumulative probabilities. ``sizes`` are the Z_n, ``width`` is the largest of them, and
    ``even`` says whether all are equal."""

    run: tuple[int, ...]
    ratios: tuple[float, ...]
    heard: tuple[int, ...]
    slices: tuple[slice, ...]
    table: NDArray[np.int64]
    sizes: list[int]
    width: int
    even: bool


@dataclass(frozen=True, eq=False)
class RoundBatches:
    """The tasks of a round with their mini-batches: one tensor each, or lists if batch sizes differ.

    ``table`` (9, K), on the device, is the tasks' table with the number of the round as an additional row."""

    tasks: ClientTasks
    inputs: Tensor | list[Tensor]
    labels: Tensor | list[Tensor]
    table: Tensor


class Batches:
    """Provides the mini-batches of the runs. A block of several rounds is drawn and sent to the device at once."""

    def __init__(self, accounts: Sequence[RunAccounts], inputs: Tensor, labels: Tensor, structure: Structure) -> None:
        job = accounts[0].job
        self._accounts, self._inputs, self._labels, self._structure = accounts, inputs, labels, structure
        self._steps = None if job.learner.local.is_gradient else job.local_steps
        parts: dict[int, int] = {}  # offset of each distinct partition
        self._starts, arrays, total = list[int](), [np.empty(0, dtype=np.int64)], 0
        for account in accounts:
            indices = account.job.indices
            if id(indices) not in parts:
                parts[id(indices)] = total
                arrays.append(indices)
                total += len(indices)
            self._starts.append(parts[id(indices)])
        self._indices = torch.from_numpy(np.concatenate(arrays)).to(inputs.device)
        self._cumulative_starts = [np.zeros(account.job.ratio.shape, dtype=np.int64) for account in accounts]
        self._cumulative = self._cumulative_probabilities() if job.label_probabilities.size else None
        samples = sum(int((account.job.selected * account.job.batch_size).sum(1).max()) for account in accounts)
        block = _BLOCK_CPU if inputs.device.type == "cpu" else _BLOCK
        self._ahead = max(1, min(_AHEAD, block // max(1, samples * (self._steps or 1))))  # rounds
        self._faulty = any(account.faulty for account in accounts)
        self._met: dict[tuple[RoundOutline, ...], ClientTasks] = {}
        self._first, self._block = 0, list[ClientTasks]()
        self._rows: list[int] = []
        self._table = self._index = self._batch_labels = torch.empty(0)

    def _cumulative_probabilities(self) -> Tensor:
        """The cumulative probabilities of all clients' samples in one vector; equal ones are stored once."""
        labels, tables, total = self._labels.cpu().numpy(), list[NDArray[np.float64]](), 0
        known: dict[tuple[int, int, bytes], int] = {}
        for account, starts in zip(self._accounts, self._cumulative_starts, strict=True):
            job = account.job
            for segment, client in zip(*np.nonzero(job.selected), strict=True):
                wanted = job.label_probabilities[segment, client]
                key = id(job.indices), int(client), wanted.tobytes()
                if key not in known:
                    known[key], first = total, int(job.offsets[client])
                    own = labels[job.indices[first:first + int(job.sizes[client])]]
                    tables.append(cumulative_probabilities(own, wanted))
                    total += len(own)
                starts[segment, client] = known[key]
        return torch.from_numpy(np.concatenate(tables)).to(self._inputs.device)

    def _make_tasks(self, outlines: Sequence[RoundOutline]) -> ClientTasks:
        tables: list[NDArray[np.int64]] = []
        for row, outline in enumerate(outlines):
            table = self._accounts[row].table[:, outline.arrived]
            table[2] += self._starts[row]
            keeps = np.array([self._structure.keep_count(ratio) for ratio in outline.ratios], dtype=np.int64)
            starts = self._cumulative_starts[row][outline.segment, outline.arrived]
            tables.append(np.concatenate([table, [np.full_like(keeps, row), keeps, starts]]))
        whole = np.concatenate(tables, axis=1)
        sizes = whole[3].tolist()
        ends = np.cumsum([len(outline.ratios) for outline in outlines]).tolist()
        return ClientTasks(tuple(row for row, outline in enumerate(outlines) for _ in outline.ratios),
                           tuple(ratio for outline in outlines for ratio in outline.ratios),
                           tuple(row for row, outline in enumerate(outlines) if outline.ratios),
                           tuple(slice(end - len(outline.ratios), end) for outline, end
                                 in zip(outlines, ends, strict=True) if outline.ratios),
                           whole, sizes, max(sizes, default=0), len(set(sizes)) <= 1)

    def tasks(self, outlines: tuple[RoundOutline, ...]) -> ClientTasks:
        """The clients' tasks in a round. They are cached, because rounds repeat unless clients may drop out."""
        if self._faulty:
            return self._make_tasks(outlines)
        if outlines not in self._met:
            if len(self._met) >= 1024:
                self._met.clear()
            self._met[outlines] = self._make_tasks(outlines)
        return self._met[outlines]

    def take(self, number: int) -> RoundBatches:
        """The tasks and mini-batches of round ``number``. With local steps each task has τ mini-batches, (τ, Z)."""
        if not self._first <= number < self._first + len(self._block):
            self._draw(number)
        place = number - self._first
        tasks, rows = self._block[place], slice(self._rows[place], self._rows[place + 1])
        index, labels, table = self._index[rows], self._batch_labels[rows], self._table[:, rows]
        if tasks.even:
            if tasks.width < index.shape[-1]:
                index, labels = index[..., :tasks.width], labels[..., :tasks.width]
            return RoundBatches(tasks, self._inputs[index], labels, table)
        return RoundBatches(
            tasks, [self._inputs[row[..., :size]] for row, size in zip(index, tasks.sizes, strict=True)],
            [row[..., :size] for row, size in zip(labels, tasks.sizes, strict=True)], table)

    def _draw(self, number: int) -> None:
        """Draw a block of rounds, starting with ``number``, as far as the plans of all runs reach."""
        end = min(number + self._ahead, *(account.job.rounds for account in self._accounts))
        self._first = number
        self._block = [self.tasks(tuple(account.outline(s) for account in self._accounts)) for s in range(number, end)]
        counts = [len(tasks.run) for tasks in self._block]
        self._rows = [0, *np.cumsum(counts).tolist()]
        table = np.concatenate([tasks.table for tasks in self._block], axis=1)
        given = torch.from_numpy(np.concatenate([table, np.repeat(np.arange(number, end), counts)[None]]))
        device = self._inputs.device
        if device.type == "cuda":  # a copy from pageable memory would wait until the GPU is idle
            given = given.pin_memory()
        self._table = given.to(device, non_blocking=True)
        keys, sizes, starts, batch, *_, cumulative_starts, rounds = self._table
        width = max(tasks.width for tasks in self._block)
        if self._cumulative is None:
            drawn = draw_batches(keys, rounds, sizes, batch, width, self._steps)
        else:
            drawn = draw_weighted_batches(keys, rounds, sizes, cumulative_starts, self._cumulative, width, self._steps)
        self._index = self._indices[starts.reshape(-1, *[1] * (drawn.dim() - 1)) + drawn]
        self._batch_labels = self._labels[self._index]
