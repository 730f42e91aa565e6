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
    _waiting: frozenset[int] = field(default=frozenset(), repr=False)  # rows without a gradient where others have one

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
        scores = (self._gradient * factor).abs()
        for row in self._waiting:
            scores[row] = weights[row].abs()
        return scores

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor, heard: Sequence[int] | None = None) -> None:
        """Take in round s: ω^(s) before its update, the global gradient v^(s), and where v^(s) is known; all (R, M).

        ``known`` is True where at least one accepted client kept the weight. ``heard`` names the runs of which any
        client was heard in this round, all unless given; the others have learned nothing new.
        """
        rows = range(len(weights)) if heard is None else heard
        if self.rule != "taylor" or not len(rows):
            return
        gradient, before, own = gradient.detach(), self._gradient, None
        waiting = frozenset(range(len(weights))) if before is None else self._waiting
        if not self.remember:
            # A kept weight whose unit was silent in this round's batches has v = 0 too. It must not lose its place to
            # one that everybody pruned, or the tie-break by index would undo the lock-in, for the first layers only.
            new = torch.where(known & (gradient == 0), _SILENT, gradient)
        elif before is None:
            new = gradient.clone()
        else:
            new = torch.where(known, gradient, before)
            for row in waiting.intersection(rows):
                new[row] = gradient[row]
        if not self.current_weights:
            own = weights.detach().clone()
        if before is not None and len(rows) < len(weights):
            for row in set(range(len(weights))).difference(rows):
                new[row] = before[row]
                if own is not None and self._weights is not None:
                    own[row] = self._weights[row]
        self._gradient, self._weights, self._waiting = new, own, waiting.difference(rows)

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these runs only."""
        self.seeds = [self.seeds[row] for row in rows] if self.seeds else ()
        if self._gradient is None:
            return
        waiting = frozenset(place for place, row in enumerate(rows) if row in self._waiting)
        if len(waiting) == len(rows):
            self._gradient, self._weights, self._waiting = None, None, frozenset()
            return
        self._gradient, self._waiting = self._gradient[rows], waiting
        self._weights = None if self._weights is None else self._weights[rows]

    def state(self, row: int = 0) -> dict[str, Tensor]:
        """What a checkpoint of one run must hold, (1, M) each."""
        if row in self._waiting:
            return {}
        tensors = {"gradient": self._gradient, "weights": self._weights}
        return {name: tensor[row:row + 1] for name, tensor in tensors.items() if tensor is not None}

    def load(self, *states: dict[str, Tensor]) -> None:
        """Restore :meth:`state`, one for each run."""
        def stacked(name: str) -> Tensor | None:
            some = next((state[name] for state in states if name in state), None)
            return None if some is None else torch.cat([state.get(name, torch.zeros_like(some)) for state in states])

        self._gradient, self._weights = stacked("gradient"), stacked("weights")
        self._waiting = (frozenset() if self._gradient is None else
                         frozenset(row for row, state in enumerate(states) if "gradient" not in state))


def _uniform(seed: int, round: int, like: Tensor) -> Tensor:
    key = hashlib.blake2b(f"{seed}/{round}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.rand(like.shape[-1], generator=generator).to(like)
