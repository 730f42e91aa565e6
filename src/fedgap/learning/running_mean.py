"""The mean of updates that arrive one after another, computed without storing them.

On a CPU the result equals ``torch.stack(updates).sum(0) / k`` (equal weights) or
:func:`~fedgap.learning.aggregators.weighted_mean` bit for bit, if the updates are added in the same order."""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS, _STEP_BITS = 4, 4
"""torch sums rows in blocks of 2⁴, then blocks of blocks, and so on, in four levels (``cascade_sum`` in ATen)."""
_VECTOR = 64
"""Upper limit of the columns that torch adds in one vector operation. Torch sums the columns that are left over at
the end in another order."""


class RunningSum:
    """Adds rows (M,) one at a time; the sum has the same bits as ``torch.sum`` over all rows stacked.

    Memory does not grow by a whole row per addition: it holds four partial sums, and of every row only the last few
    columns, which torch sums in another order."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._main = max(0, (size // _VECTOR - 1) * _VECTOR)
        self._levels = [torch.zeros(self._main) for _ in range(_LEVELS)]
        self._last: list[Tensor] = []  # fewer than 2·_VECTOR columns of each row, which total() lets torch sum

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
    """Computes the mean of clients' updates (M,), which must be added in the order of the clients.

    ``known`` (M,) says for each weight whether any client kept it. With ``weighted`` the mean is
    :func:`~fedgap.learning.aggregators.weighted_mean`; otherwise all clients count equally."""

    def __init__(self, size: int, *, weighted: bool) -> None:
        self.known = torch.zeros(size, dtype=torch.bool)
        self._weighted: Tensor | None = torch.zeros(size) if weighted else None
        self._plain = RunningSum(0 if weighted else size)
        self._weights: list[float] = []

    def add(self, update: Tensor, mask: Tensor, weight: float = 1.0) -> None:
        """Add the next client's update (M,); ``mask`` (M,) says which weights it kept, ``weight`` how much it
        counts."""
        self.known |= mask
        self._weights.append(weight)
        if self._weighted is None:
            self._plain.add(update)
        else:
            self._weighted += torch.tensor(weight, dtype=update.dtype) * update

    def mean(self) -> Tensor:
        """The mean so far, (M,). It can be infinite even if all updates are finite, because large updates overflow when
        they are summed."""
        if self._weighted is None:
            return self._plain.total() / len(self._weights)
        total = torch.tensor(self._weights, dtype=self._weighted.dtype).sum()
        return self._weighted / torch.where(total > 0, total, 1)
