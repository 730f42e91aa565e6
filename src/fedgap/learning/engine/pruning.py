"""From global weights to a stack of pruned models, and from its gradients back to masked ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """What a pass's kernels depend on besides its tensors: each model's run, in order, and the clients a model."""

    run: tuple[int, ...]
    clients: int


class PassInput(NamedTuple):
    """The tensors of a pass of G models with n clients each.

    ``weights``, ``ranks`` (R, M), ``buffers`` (R, B); ``run`` (G,) and ``keeps`` (G,), each model's run and count of
    kept parameters; ``inputs`` (G, n·Z, *shape) and ``labels`` (G, n·Z).
    """

    weights: Tensor
    ranks: Tensor
    buffers: Tensor
    run: Tensor
    keeps: Tensor
    inputs: Tensor
    labels: Tensor


class Pruning(Protocol):
    """The two ends of a pass."""

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """The pruned models' parameters by name, to be differentiated by, and what :meth:`gradients` needs of it."""

    def gradients(self, by_leaf: Sequence[Tensor], given: PassInput, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The masked gradients (G, M) from the leaves', and which models' are finite (G,)."""


class PlainPruning:
    """By torch's own operations, around a stack's ``spread`` and ``collect``."""

    def __init__(self, spread: Callable[[Tensor], dict[str, Tensor]],
                 collect: Callable[[Sequence[Tensor]], Tensor]) -> None:
        self._spread, self._collect = spread, collect

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """See :class:`Pruning`; ``kept`` are the masks (G, M)."""
        # As numbers: a CPU multiplies them faster than truth values.
        masks = (_rows(given.ranks, given, shape) < given.keeps[:, None]).to(given.weights.dtype)
        return self._spread(_rows(given.weights, given, shape) * masks), masks

    def gradients(self, by_leaf: Sequence[Tensor], given: PassInput, kept: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Pruning`."""
        gradients = self._collect(by_leaf).mul_(kept)
        return gradients, gradients.abs().amax(1).isfinite()


def _rows(values: Tensor, given: PassInput, shape: Shape) -> Tensor:
    """Each model's row of (R, M); of one run, one row that broadcasts."""
    if len(set(shape.run)) == 1:
        return values[shape.run[0] : shape.run[0] + 1]
    return torch.index_select(values, 0, given.run)
