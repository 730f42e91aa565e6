"""The mean of updates that arrive one after another, without storing them.

On a CPU it equals ``torch.stack(updates).sum(0) / k`` (equal weights) or
:func:`~fedgap.learning.aggregators.weighted_mean`, bit for bit, if the updates are added in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS, _STEP_BITS = 4, 4
"""torch adds rows up in blocks of 2⁴, blocks of blocks, and so on, in four levels (``cascade_sum`` in ATEN)."""
_VECTOR = 64
"""Columns of one of torch's vector operations, at most; torch adds up the last columns in another order."""


class RunningSum:
    """Σ of rows (M,) as ``torch.sum`` over a stack of them computes it; holds four rows and the last few columns."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._main = max(0, (size // _VECTOR - 1) * _VECTOR)
        self._levels = [torch.zeros(self._main) for _ in range(_LEVELS)]
        self._last: list[Tensor] = []  # of each row fewer than 2·_VECTOR columns, which torch itself adds up

    def add(self, row: Tensor) -> None:
        """Add the next row."""
        self._levels[0] += row[:self._main]
        self._last.append(row[self._main:].clone())
        self.count += 1
        if self.count % (1 << _STEP_BITS):
            return
        for level in range(1, _LEVELS):
            self._levels[level] += self._levels[level - 1]
            self._levels[level - 1].zero_()
            if self.count >> (_STEP_BITS * level) & ((1 << _STEP_BITS) - 1):
                return

    def total(self) -> Tensor:
        """The sum so far, (M,)."""
        main = self._levels[0]
        for level in self._levels[1:]:
            main = main + level
        return torch.cat([main, torch.stack(self._last).sum(0)])


class RunningMean:
    """The mean of updates (M,) and where any client kept a weight, from updates that are added in the clients' order.

    ``weighted``: as :func:`~fedgap.learning.aggregators.weighted_mean`, otherwise all count alike.
    """

    def __init__(self, size: int, *, weighted: bool) -> None:
        self.known = torch.zeros(size, dtype=torch.bool)
        self._weighted: Tensor | None = torch.zeros(size) if weighted else None
        self._plain = RunningSum(0 if weighted else size)
        self._weights: list[float] = []

    def add(self, update: Tensor, mask: Tensor, weight: float = 1.0) -> None:
        """Add the next client's update; ``mask`` says which weights it kept."""
        self.known |= mask
        self._weights.append(weight)
        if self._weighted is None:
            self._plain.add(update)
        else:
            self._weighted += torch.tensor(weight, dtype=update.dtype) * update

    def mean(self) -> Tensor:
        """The mean so far, (M,); it may be infinite where finite updates are too large."""
        if self._weighted is None:
            return self._plain.total() / len(self._weights)
        total = torch.tensor(self._weights, dtype=self._weighted.dtype).sum()
        return self._weighted / torch.where(total > 0, total, 1)
