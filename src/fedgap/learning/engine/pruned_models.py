"""From global weights to a stack of pruned models, and from its logits to sums of masked gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedgap.learning.contract import LocalTraining


@dataclass(frozen=True)
class Shape:
    """What the kernels of a pass depend on besides its tensors: the run of each model in ascending order (the models of
    a run are found by counting those of the runs before), the number of clients per model, whether each model's
    gradient is needed, and the local steps, if any; with local steps a model has one client."""

    run: tuple[int, ...]
    clients: int
    each: bool = False
    local: LocalTraining | None = None


class PassInput(NamedTuple):
    """The tensors of a pass of G models with n clients each.

    ``weights``, ``ranks`` (R, M), ``buffers`` (R, B); ``run`` (G,) and ``keeps`` (G,), each model's run and count of
    kept parameters; ``inputs`` (G, n·Z, *shape) and ``labels`` (G, n·Z). With local steps ``inputs`` are
    (G, τ, Z, *shape), ``labels`` (G, τ, Z) and ``rates`` (R,) each run's rate of its clients' steps; else (0,).
    ``counted`` (G, B), where n = 1, is 1 for buffers that count in the sum and 0 for others; (0,) if all count.
    """

    weights: Tensor
    ranks: Tensor
    buffers: Tensor
    run: Tensor
    keeps: Tensor
    inputs: Tensor
    labels: Tensor
    rates: Tensor
    counted: Tensor


class Sums(NamedTuple):
    """Sums over the finite models of a pass, by run: gradients (R, M), and their clients (R,) int64.

    ``kept`` (R,) int32: the most parameters that any of them keeps. ``losses`` (G, n); ``finite`` (G,): whether a
    model's losses and gradient all are. ``gradients`` (G, M): the masked gradient of each model, summed over its n
    clients, where it was asked for; else (0, M).
    """

    gradient: Tensor
    accepted: Tensor
    kept: Tensor
    losses: Tensor
    finite: Tensor
    gradients: Tensor


class PruningSteps(Protocol):
    """The first and the last step of a pass."""

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """The pruned models' parameters by name, which will be differentiated, and a second value for :meth:`sums`."""

    def sums(self, logits: Tensor, leaves: dict[str, Tensor], given: PassInput, shape: Shape, of: Tensor) -> Sums:
        """Sums from the logits (G, n·Z, classes) of ``leaves``; ``of`` is the second return value of :meth:`leaves`.

        A model's gradient is the sum over its clients of the gradient of the client's mean loss.
        """

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """The parameters by name, to be differentiated by, of models with own weights (G, M); may be views of them."""

    def gradients(self, logits: Tensor, leaves: dict[str, Tensor], labels: Tensor,
                  clients: int) -> tuple[Tensor, Tensor]:
        """The clients' mean losses (G, n), and each model's gradient (G, M) of their sum, unmasked, in new memory."""


class PlainPruning:
    """By torch's own operations, around a stack's ``spread`` and ``collect``."""

    def __init__(self, spread: Callable[[Tensor], dict[str, Tensor]],
                 collect: Callable[[Sequence[Tensor]], Tensor]) -> None:
        self.spread, self._collect = spread, collect

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """See :class:`Pruning`; the second return value are the masks (G, M)."""
        masks = masks_of(given, shape)
        return self.spread(rows_of(given.weights, given, shape) * masks), masks

    def sums(self, logits: Tensor, leaves: dict[str, Tensor], given: PassInput, shape: Shape, of: Tensor) -> Sums:
        """See :class:`Pruning`."""
        losses, gradients = self.gradients(logits, leaves, given.labels, shape.clients)
        with torch.no_grad():
            return sums_of(gradients.mul_(of), losses, given, shape)

    def gradients(self, logits: Tensor, leaves: dict[str, Tensor], labels: Tensor,
                  clients: int) -> tuple[Tensor, Tensor]:
        """See :class:`Pruning`."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses = losses.reshape(len(logits), clients, -1).mean(-1)
        by_leaf = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
        with torch.no_grad():
            return losses.detach(), self._collect(by_leaf)


def masks_of(given: PassInput, shape: Shape) -> Tensor:
    """Each model's mask (G, M), as numbers: a CPU multiplies them faster than truth values."""
    return (rows_of(given.ranks, given, shape) < given.keeps[:, None]).to(given.weights.dtype)


def sums_of(gradients: Tensor, losses: Tensor, given: PassInput, shape: Shape) -> Sums:
    """Sums over finite models of masked gradients (G, M) with losses (G, n)."""
    finite = gradients.abs().amax(1).isfinite() & losses.isfinite().all(1)
    accepted, runs = finite_rows(gradients, finite), len(given.weights)
    clients = torch.zeros(runs, dtype=torch.int64, device=finite.device)
    clients = clients.index_add(0, given.run, finite.long(), alpha=shape.clients)
    kept = torch.zeros(runs, dtype=torch.int32, device=finite.device)
    kept = kept.scatter_reduce(0, given.run, given.keeps * finite, "amax")
    return Sums(sum_by_run(accepted, shape.run, runs), clients, kept, losses, finite,
                gradients if shape.each else gradients.new_empty(0, gradients.shape[1]))


def finite_rows(values: Tensor, finite: Tensor) -> Tensor:
    """``values`` (G, ·), with 0 in the rows of models that are not finite (G,)."""
    if values.device.type == "cpu" and bool(finite.all()):  # not checked on a GPU, because that would wait for it
        return values
    return torch.where(finite[:, None], values, 0.0)


def sum_by_run(values: Tensor, run: tuple[int, ...], runs: int) -> Tensor:
    """Σ over the rows of each run, shape (R, ·); rows of a run are neighbours, and the order of summation is fixed."""
    counts = [len(list(rows)) for _, rows in groupby(run)]
    owners = [owner for owner, _ in groupby(run)]
    if owners == list(range(runs)) and len(set(counts)) == 1:
        return values.reshape(runs, counts[0], -1).sum(1)
    total = values.new_zeros(runs, values.shape[1])
    for owner, part in zip(owners, torch.split(values, counts)):
        total[owner] = part.sum(0)
    return total


def rows_of(values: Tensor, given: PassInput, shape: Shape) -> Tensor:
    """Each model's row of (R, M); of one run, one row that broadcasts."""
    if len(set(shape.run)) == 1:
        return values[shape.run[0] : shape.run[0] + 1]
    return torch.index_select(values, 0, given.run)
