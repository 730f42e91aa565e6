"""Importance of a weight: Q = (v·ρ)², the first-order estimate of the squared loss change when it is removed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_SILENT = 1e-30
"""Stands for a known gradient of 0: below every real one, above that of a weight nobody kept."""
RULES = ("taylor", "magnitude", "random")
"""``taylor`` is the paper's; ``magnitude`` and ``random`` are comparisons."""


@dataclass
class Importance:
    """What a round's ranking needs from earlier rounds, for R runs at once.

    ``taylor``: Q_m = (v_m·ρ_m)² with v the previous round's global gradient. ``current_weights`` False, as printed,
    takes the previous round's weight ρ^(s−1) too; True, the repair, the current ρ^(s). Before any gradient is known
    the ranking is by magnitude. ``remember`` False, as printed, takes v of the previous round alone, so that a weight
    that every client pruned has v = 0 and stays pruned for ever; True (part of the repair ``dense_first``) keeps each
    weight's last known gradient. ``random`` draws anew each round from ``seeds``, one for each run.
    """

    rule: str = "taylor"
    current_weights: bool = True
    remember: bool = True
    seeds: Sequence[int] = ()
    _gradient: Tensor | None = field(default=None, repr=False)
    _weights: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"importance rule {self.rule!r} is not known; it is one of {', '.join(RULES)}")

    def scores(self, weights: Tensor, round: int) -> Tensor:
        """√Q of every weight, shape (R, M), for round s = ``round`` at weights ω^(s) (R, M).

        The root ranks as Q does, and does not underflow in float32 where two small factors are squared.
        """
        if self.rule == "random":
            return torch.stack([_uniform(seed, round, weights) for seed in self.seeds])
        if self.rule == "magnitude" or self._gradient is None:
            return weights.abs()
        factor = weights if self.current_weights or self._weights is None else self._weights
        return (self._gradient * factor).abs()

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor) -> None:
        """Take in round s: ω^(s) before its update, the global gradient v^(s), and where v^(s) is known; all (R, M).

        ``known`` is True where at least one accepted client kept the weight.
        """
        if self.rule != "taylor":
            return
        if not self.remember:
            # A kept weight whose unit was silent in this round's batches has v = 0 too. It must not lose its place to
            # one that everybody pruned, or the tie-break by index would undo the lock-in, for the first layers only.
            gradient = torch.where(known & (gradient == 0), _SILENT, gradient)
        elif self._gradient is not None:
            gradient = torch.where(known, gradient, self._gradient)
        self._gradient = gradient.detach().clone()
        if not self.current_weights:
            self._weights = weights.detach().clone()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        tensors = {"gradient": self._gradient, "weights": self._weights}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore :meth:`state`."""
        self._gradient, self._weights = state.get("gradient"), state.get("weights")


def _uniform(seed: int, round: int, like: Tensor) -> Tensor:
    key = hashlib.blake2b(f"{seed}/{round}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.rand(like.shape[-1], generator=generator).to(like)
