"""From global weights to a stack of G pruned models, and from the stack's logits to sums of masked gradients."""

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
    """What the computation of a pass depends on besides its tensors.

    ``run``: the run of each model, ascending. ``clients``: the number n of clients per model. ``each``: whether the
    gradient of every model is needed, not only their sum. ``local``: the local steps, if any; then each model has one
    client."""

    run: tuple[int, ...]
    clients: int
    each: bool = False
    local: LocalTraining | None = None


class PassInput(NamedTuple):
    """The tensors of a pass with G models of n clients each.

    ``weights``, ``ranks`` (R, M) and ``buffers`` (R, B) of the runs; ``run`` (G,) and ``keeps`` (G,), each model's run
    and its number of kept parameters; ``inputs`` (G, n·Z, *shape) and ``labels`` (G, n·Z). With local steps ``inputs``
    are (G, τ, Z, *shape), ``labels`` (G, τ, Z), and ``rates`` (R,) is the clients' learning rate of each run; otherwise
    ``rates`` is empty. ``counted`` (G, B), only if n = 1, is 1 for buffers that enter the sum and 0 for others; it is
    empty if all enter."""

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
    """Sums for each run over the models of a pass whose losses and gradient are finite.

    ``gradient`` (R, M); ``accepted`` (R,) int64, the number of clients summed; ``kept`` (R,) int32, the largest number
    of parameters that any of these models keeps. ``losses`` (G, n); ``finite`` (G,), whether a model's losses and
    gradient are finite. ``gradients`` (G, M): the masked gradient of each model, summed over its n clients, if
    ``Shape.each`` is set; otherwise (0, M)."""

    gradient: Tensor
    accepted: Tensor
    kept: Tensor
    losses: Tensor
    finite: Tensor
    gradients: Tensor


class PruningSteps(Protocol):
    """The first step of a pass (from global weights to pruned models) and its last step (from logits to sums of
    gradients)."""

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the pruned models' parameters by name, which gradients are computed for, and a second value that
        :meth:`sums` needs."""

    def sums(self, logits: Tensor, leaves: dict[str, Tensor], given: PassInput, shape: Shape, of: Tensor) -> Sums:
        """Compute the sums from the logits (G, n·Z, classes) of ``leaves``; ``of`` is the second return value of
        :meth:`leaves`.

        A model's gradient is the sum over its clients of the gradient of the client's mean loss."""

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """Split the weights (G, M) of G models into parameters by name, which gradients are computed for. They may be
        views."""

    def gradients(self, logits: Tensor, leaves: dict[str, Tensor], labels: Tensor,
                  clients: int) -> tuple[Tensor, Tensor]:
        """The clients' mean losses (G, n), and for each model the unmasked gradient (G, M) of their sum, in new
        memory."""


class PlainPruning:
    """:class:`PruningSteps` with torch's operations; ``spread`` and ``collect`` convert between flat weights and a
    stack's parameters."""

    def __init__(self, spread: Callable[[Tensor], dict[str, Tensor]],
                 collect: Callable[[Sequence[Tensor]], Tensor]) -> None:
        self.spread, self._collect = spread, collect

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """See :class:`PruningSteps`; the second return value is the masks (G, M)."""
        masks = masks_of(given, shape)
        return self.spread(rows_of(given.weights, given, shape) * masks), masks

    def sums(self, logits: Tensor, leaves: dict[str, Tensor], given: PassInput, shape: Shape, of: Tensor) -> Sums:
        """See :class:`PruningSteps`."""
        losses, gradients = self.gradients(logits, leaves, given.labels, shape.clients)
        with torch.no_grad():
            return sums_of(gradients.mul_(of), losses, given, shape)

    def gradients(self, logits: Tensor, leaves: dict[str, Tensor], labels: Tensor,
                  clients: int) -> tuple[Tensor, Tensor]:
        """See :class:`PruningSteps`."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses = losses.reshape(len(logits), clients, -1).mean(-1)
        by_leaf = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
        with torch.no_grad():
            return losses.detach(), self._collect(by_leaf)


def masks_of(given: PassInput, shape: Shape) -> Tensor:
    """The mask of each model (G, M) as numbers 0 and 1, because a CPU multiplies by them faster than by booleans."""
    return (rows_of(given.ranks, given, shape) < given.keeps[:, None]).to(given.weights.dtype)


def sums_of(gradients: Tensor, losses: Tensor, given: PassInput, shape: Shape) -> Sums:
    """Sum masked gradients (G, M) with losses (G, n) over the models whose values are finite."""
    finite = gradients.abs().amax(1).isfinite() & losses.isfinite().all(1)
    accepted, runs = finite_rows(gradients, finite), len(given.weights)
    clients = torch.zeros(runs, dtype=torch.int64, device=finite.device)
    clients = clients.index_add(0, given.run, finite.long(), alpha=shape.clients)
    kept = torch.zeros(runs, dtype=torch.int32, device=finite.device)
    kept = kept.scatter_reduce(0, given.run, given.keeps * finite, "amax")
    return Sums(sum_by_run(accepted, shape.run, runs), clients, kept, losses, finite,
                gradients if shape.each else gradients.new_empty(0, gradients.shape[1]))


def finite_rows(values: Tensor, finite: Tensor) -> Tensor:
    """``values`` (G, ·) with 0 in the rows of models that are not ``finite`` (G,)."""
    if values.device.type == "cpu" and bool(finite.all()):  # not checked on a GPU, because that would wait for it
        return values
    return torch.where(finite[:, None], values, 0.0)


def sum_by_run(values: Tensor, run: tuple[int, ...], runs: int) -> Tensor:
    """The sum (R, ·) of the rows of each run. The rows of a run must be neighbours; the order of summation is fixed."""
    counts = [len(list(rows)) for _, rows in groupby(run)]
    owners = [owner for owner, _ in groupby(run)]
    if owners == list(range(runs)) and len(set(counts)) == 1:
        return values.reshape(runs, counts[0], -1).sum(1)
    total = values.new_zeros(runs, values.shape[1])
    for owner, part in zip(owners, torch.split(values, counts)):
        total[owner] = part.sum(0)
    return total


def rows_of(values: Tensor, given: PassInput, shape: Shape) -> Tensor:
    """The row of ``values`` (R, M) for each model, (G, M); if all models belong to one run, a single row that
    broadcasts."""
    if len(set(shape.run)) == 1:
        return values[shape.run[0] : shape.run[0] + 1]
    return torch.index_select(values, 0, given.run)
