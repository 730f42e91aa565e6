"""The arithmetic of one pass: pruned weights, losses, masked gradients, sums over clients."""

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedgap.learning.engine.forwards import Forward
from fedgap.learning.engine.pruning import PassInput, Shape


class PassOutput(NamedTuple):
    """Sums over the finite models of the pass, by run: gradients (R, M), buffers (R, B), and their clients (R,).

    ``kept`` (R,) int32: the most parameters that any of them keeps. ``losses`` (G, n); ``finite`` (G,): whether a
    model's losses and gradient all are. ``gradients`` (G, M): the masked gradient of each model, summed over its n
    clients.
    """

    gradient: Tensor
    buffers: Tensor
    accepted: Tensor
    kept: Tensor
    losses: Tensor
    finite: Tensor
    gradients: Tensor


def compute(forward: Forward, shape: Shape, given: PassInput) -> PassOutput:
    """One pass. A model's gradient is the sum over its clients of the gradient of the client's mean loss."""
    leaves, kept = forward.pruning.leaves(given, shape)
    own_buffers = given.buffers.index_select(0, given.run)
    logits = forward(leaves, own_buffers, given.inputs, True).to(given.weights.dtype)
    losses = functional.cross_entropy(logits.flatten(0, 1), given.labels.flatten(), reduction="none")
    losses = losses.reshape(len(shape.run), shape.clients, -1).mean(-1)
    by_leaf = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
    with torch.no_grad():
        gradients, finite = forward.pruning.gradients(by_leaf, given, kept)
        losses = losses.detach()
        finite = finite & losses.isfinite().all(1)
        accepted, runs = gradients, len(given.weights)
        if gradients.device.type != "cpu" or not bool(finite.all()):  # a GPU is not asked: that would wait for it
            accepted = torch.where(finite[:, None], gradients, 0.0)
            own_buffers = torch.where(finite[:, None], own_buffers, 0.0)
        clients = torch.zeros(runs, dtype=torch.int64, device=finite.device)
        clients = clients.index_add(0, given.run, finite.long(), alpha=shape.clients)
        kept = torch.zeros(runs, dtype=torch.int32, device=finite.device)
        kept = kept.scatter_reduce(0, given.run, given.keeps * finite, "amax")
        return PassOutput(_sum_by_run(accepted, shape.run, runs), _sum_by_run(own_buffers, shape.run, runs), clients,
                          kept, losses, finite, gradients)


def finish(total: PassOutput, before: Tensor) -> PassOutput:
    """Sums over all of a round's clients turned into means; a run without accepted clients keeps its buffers."""
    divisor = total.accepted.clamp(min=1)[:, None]
    buffers = torch.where(total.accepted[:, None] > 0, total.buffers / divisor, before)
    return total._replace(gradient=total.gradient / divisor, buffers=buffers)


def compute_round(forward: Forward, shape: Shape, given: PassInput) -> PassOutput:
    """A round that is one pass."""
    return finish(compute(forward, shape, given), given.buffers)


def _sum_by_run(values: Tensor, run: tuple[int, ...], runs: int) -> Tensor:
    """Σ over the rows of each run, shape (R, ·); rows of a run are neighbours, and the order of summation is fixed."""
    counts = [len(list(rows)) for _, rows in groupby(run)]
    owners = [owner for owner, _ in groupby(run)]
    if owners == list(range(runs)) and len(set(counts)) == 1:
        return values.reshape(runs, counts[0], -1).sum(1)
    total = values.new_zeros(runs, values.shape[1])
    for owner, part in zip(owners, torch.split(values, counts)):
        total[owner] = part.sum(0)
    return total
