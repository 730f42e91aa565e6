"""The server's update: how an aggregated direction moves the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass
class GradientStep:
    """The server's update ω ← ω − η·v of R runs. ``rates`` are the runs' η, shape (R, 1)."""

    rates: Tensor

    def __call__(self, weights: Tensor, direction: Tensor) -> Tensor:
        """The weights (R, M) after a step along ``direction`` (R, M)."""
        return weights - self.rates * direction

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with these runs only."""
        self.rates = self.rates[rows]
