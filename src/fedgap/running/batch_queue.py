"""The runs' mini-batches: which samples each client of a round computes on, drawn many rounds ahead on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgap.learning.data import draw_batches
from fedgap.running.run_accounts import RoundOutline, RunAccounts

_BLOCK, _BLOCK_CPU = 2**21, 2**18  # samples drawn ahead at a time; a CPU's caches are small
_AHEAD = 256  # rounds, at most


@dataclass(frozen=True, eq=False)
class ClientTasks:
    """The K gradients that the clients of a round compute: each run's clients that arrive, in the runs' order.

    ``heard`` are the runs of which any client arrives. ``table`` (4, K): key, samples D̂_n, where they begin, batch size
    Z_n. ``sizes`` are these Z_n; ``width`` is the largest and ``even`` says that they are equal.
    """

    run: tuple[int, ...]
    ratios: tuple[float, ...]
    heard: tuple[int, ...]
    table: NDArray[np.int64]
    sizes: list[int]
    width: int
    even: bool

    @staticmethod
    def of(outlines: Sequence[RoundOutline], accounts: Sequence[RunAccounts], starts: Sequence[int]) -> ClientTasks:
        """``starts``: where each run's samples begin among those of all runs."""
        tables: list[NDArray[np.int64]] = []
        for outline, account, start in zip(outlines, accounts, starts, strict=True):
            table = account.table[:, outline.arrived]
            table[2] += start
            tables.append(table)
        whole = np.concatenate(tables, axis=1)
        sizes = whole[3].tolist()
        return ClientTasks(tuple(row for row, outline in enumerate(outlines) for _ in outline.ratios),
                           tuple(ratio for outline in outlines for ratio in outline.ratios),
                           tuple(row for row, outline in enumerate(outlines) if outline.ratios),
                           whole, sizes, max(sizes, default=0), len(set(sizes)) <= 1)


class Batches:
    """The runs' mini-batches, in blocks of rounds: a block is drawn and sent to the device at once."""

    def __init__(self, accounts: Sequence[RunAccounts], inputs: Tensor, labels: Tensor) -> None:
        self._accounts, self._inputs, self._labels = accounts, inputs, labels
        parts: dict[int, int] = {}  # where each distinct partition begins
        self._starts, arrays, total = list[int](), [np.empty(0, dtype=np.int64)], 0
        for account in accounts:
            indices = account.job.indices
            if id(indices) not in parts:
                parts[id(indices)] = total
                arrays.append(indices)
                total += len(indices)
            self._starts.append(parts[id(indices)])
        self._indices = torch.from_numpy(np.concatenate(arrays)).to(inputs.device)
        samples = sum(int((account.job.selected * account.job.batch_size).sum(1).max()) for account in accounts)
        block = _BLOCK_CPU if inputs.device.type == "cpu" else _BLOCK
        self._ahead = max(1, min(_AHEAD, block // max(1, samples)))  # rounds
        self._faulty = any(account.faulty for account in accounts)
        self._met: dict[tuple[RoundOutline, ...], ClientTasks] = {}
        self._first, self._block = 0, list[ClientTasks]()
        self._rows: list[int] = []
        self._index = self._batch_labels = torch.empty(0)

    def tasks(self, outlines: tuple[RoundOutline, ...]) -> ClientTasks:
        """The clients' tasks in a round; a plan's rounds repeat unless somebody may be missing, so they are kept."""
        if self._faulty:
            return ClientTasks.of(outlines, self._accounts, self._starts)
        if outlines not in self._met:
            if len(self._met) >= 1024:
                self._met.clear()
            self._met[outlines] = ClientTasks.of(outlines, self._accounts, self._starts)
        return self._met[outlines]

    def take(self, number: int) -> tuple[ClientTasks, Tensor | list[Tensor], Tensor | list[Tensor]]:
        """The tasks of round ``number`` with inputs and labels: one tensor each, or lists where batch sizes differ."""
        if not self._first <= number < self._first + len(self._block):
            self._draw(number)
        place = number - self._first
        tasks, rows = self._block[place], slice(self._rows[place], self._rows[place + 1])
        index, labels = self._index[rows], self._batch_labels[rows]
        if tasks.even:
            if tasks.width < index.shape[1]:
                index, labels = index[:, :tasks.width], labels[:, :tasks.width]
            return tasks, self._inputs[index], labels
        return (tasks, [self._inputs[row[:size]] for row, size in zip(index, tasks.sizes, strict=True)],
                [row[:size] for row, size in zip(labels, tasks.sizes, strict=True)])

    def _draw(self, number: int) -> None:
        """Draw the block of rounds from ``number`` on, as far as all runs' plans go."""
        end = min(number + self._ahead, *(account.job.rounds for account in self._accounts))
        self._first = number
        self._block = [self.tasks(tuple(account.outline(s) for account in self._accounts)) for s in range(number, end)]
        counts = [len(tasks.run) for tasks in self._block]
        self._rows = [0, *np.cumsum(counts).tolist()]
        table = np.concatenate([tasks.table for tasks in self._block], axis=1)
        given = torch.from_numpy(np.concatenate([table, np.repeat(np.arange(number, end), counts)[None]]))
        device = self._inputs.device
        if device.type == "cuda":  # from pageable memory the copy would wait for the GPU's queue to empty
            given = given.pin_memory()
        keys, sizes, starts, batch, rounds = given.to(device, non_blocking=True)
        drawn = draw_batches(keys, rounds, sizes, batch, max(tasks.width for tasks in self._block))
        self._index = self._indices[starts[:, None] + drawn]
        self._batch_labels = self._labels[self._index]
