"""The runs' mini-batches: which samples each job of a round computes on, drawn many rounds ahead on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgap.learning.data import draw_batches
from fedgap.running.run_accounts import Member, Turn

_BLOCK, _BLOCK_CPU = 2**21, 2**18  # samples drawn ahead at a time; a CPU's caches are small
_AHEAD = 256  # rounds, at most


@dataclass(frozen=True, eq=False)
class Jobs:
    """The K jobs of a round: of each member's clients that arrive, in the members' order.

    ``heard`` are the members of whom anybody arrives. ``pruned``: whether any selected client of theirs prunes, whoever
    vanished. ``table`` (4, K): key, samples D̂_n, where they begin, batch size Z_n. ``sizes`` are these Z_n; ``width``
    is the largest and ``even`` says that they are equal.
    """

    run: tuple[int, ...]
    ratios: tuple[float, ...]
    heard: tuple[int, ...]
    pruned: bool
    table: NDArray[np.int64]
    sizes: list[int]
    width: int
    even: bool

    @staticmethod
    def of(turns: Sequence[Turn], members: Sequence[Member], starts: Sequence[int]) -> Jobs:
        """``starts``: where each member's samples begin among all members'."""
        tables: list[NDArray[np.int64]] = []
        for turn, member, start in zip(turns, members, starts, strict=True):
            table = member.table[:, turn.arrived]
            table[2] += start
            tables.append(table)
        whole = np.concatenate(tables, axis=1)
        sizes = whole[3].tolist()
        return Jobs(tuple(row for row, turn in enumerate(turns) for _ in turn.ratios),
                    tuple(ratio for turn in turns for ratio in turn.ratios),
                    tuple(row for row, turn in enumerate(turns) if turn.ratios), any(turn.pruned for turn in turns),
                    whole, sizes, max(sizes, default=0), len(set(sizes)) <= 1)


class Batches:
    """The members' mini-batches, in blocks of rounds: a block is drawn and sent to the device at once."""

    def __init__(self, members: Sequence[Member], inputs: Tensor, labels: Tensor) -> None:
        self.members, self._inputs, self._labels = members, inputs, labels
        parts: dict[int, int] = {}  # where each distinct partition begins
        self._starts, arrays, total = list[int](), [np.empty(0, dtype=np.int64)], 0
        for member in members:
            own = member.job.indices
            if id(own) not in parts:
                parts[id(own)] = total
                arrays.append(own)
                total += len(own)
            self._starts.append(parts[id(own)])
        self._indices = torch.from_numpy(np.concatenate(arrays)).to(inputs.device)
        samples = sum(int((member.job.selected * member.job.batch_size).sum(1).max()) for member in members)
        block = _BLOCK_CPU if inputs.device.type == "cpu" else _BLOCK
        self._ahead = max(1, min(_AHEAD, block // max(1, samples)))  # rounds
        self._faulty = any(member.faulty for member in members)
        self._met: dict[tuple[Turn, ...], Jobs] = {}
        self._first, self._block = 0, list[Jobs]()
        self._rows: list[int] = []
        self._index = self._own_labels = torch.empty(0)

    def jobs(self, turns: tuple[Turn, ...]) -> Jobs:
        """The jobs of a round; a plan's rounds repeat unless somebody may be missing, so they are kept."""
        if self._faulty:
            return Jobs.of(turns, self.members, self._starts)
        if turns not in self._met:
            if len(self._met) >= 1024:
                self._met.clear()
            self._met[turns] = Jobs.of(turns, self.members, self._starts)
        return self._met[turns]

    def take(self, number: int) -> tuple[Jobs, Tensor | list[Tensor], Tensor | list[Tensor]]:
        """The jobs of round ``number`` with inputs and labels: one tensor each, or lists where batch sizes differ."""
        if not self._first <= number < self._first + len(self._block):
            self._draw(number)
        place = number - self._first
        jobs, own = self._block[place], slice(self._rows[place], self._rows[place + 1])
        index, labels = self._index[own], self._own_labels[own]
        if jobs.even:
            if jobs.width < index.shape[1]:
                index, labels = index[:, :jobs.width], labels[:, :jobs.width]
            return jobs, self._inputs[index], labels
        return (jobs, [self._inputs[row[:size]] for row, size in zip(index, jobs.sizes, strict=True)],
                [row[:size] for row, size in zip(labels, jobs.sizes, strict=True)])

    def _draw(self, number: int) -> None:
        """The block of rounds from ``number`` on, as far as all members' plans go."""
        end = min(number + self._ahead, *(member.job.rounds for member in self.members))
        self._first = number
        self._block = [self.jobs(tuple(member.turn(s) for member in self.members)) for s in range(number, end)]
        counts = [len(jobs.run) for jobs in self._block]
        self._rows = [0, *np.cumsum(counts).tolist()]
        table = np.concatenate([jobs.table for jobs in self._block], axis=1)
        given = torch.from_numpy(np.concatenate([table, np.repeat(np.arange(number, end), counts)[None]]))
        device = self._inputs.device
        if device.type == "cuda":  # from pageable memory the copy would wait for the GPU's queue to empty
            given = given.pin_memory()
        keys, sizes, starts, batch, rounds = given.to(device, non_blocking=True)
        drawn = draw_batches(keys, rounds, sizes, batch, max(jobs.width for jobs in self._block))
        self._index = self._indices[starts[:, None] + drawn]
        self._own_labels = self._labels[self._index]
