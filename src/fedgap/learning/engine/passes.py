"""The arithmetic of one pass: masks, pruned weights, losses, masked gradients, sums over clients."""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from fedgap.learning.engine.forwards import Forward
from fedgap.learning.models.layout import Layout


@dataclass(frozen=True)
class Shape:
    """What a pass's kernels depend on besides its tensors: each model's run, and the clients a model."""

    run: tuple[int, ...]
    clients: int


@dataclass(frozen=True)
class PassOutput:
    """Sums over the clients of the pass that are finite, by run; losses (G, n); flags (G,); gradients (G, M) if
    asked."""

    gradient: Tensor
    buffers: Tensor
    losses: Tensor
    finite: Tensor
    client_gradients: Tensor | None


def compute(forward: Forward, layout: Layout, shape: Shape, weights: Tensor, ranks: Tensor, buffers: Tensor,
            keeps: Tensor, inputs: Tensor, labels: Tensor, per_client: bool) -> PassOutput:
    """One pass: ``weights``, ``ranks`` (R, M), ``buffers`` (R, B), ``keeps`` (G,), ``inputs`` (G, n·Z, *shape).

    Model g's gradient is the sum over its n clients of the gradient of the client's mean loss, times the mask.
    """
    rows = list(shape.run) if len(set(shape.run)) > 1 else slice(shape.run[0], shape.run[0] + 1)  # one run: broadcast
    models = len(shape.run)
    mask = (ranks[rows] < keeps[:, None]).to(weights.dtype)
    leaves = forward.spread(weights[rows] * mask)
    own_buffers = buffers[list(shape.run)]
    logits = forward(leaves, layout.split_buffers(own_buffers), inputs, True).to(weights.dtype)
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    losses = losses.reshape(models, shape.clients, -1).mean(-1)
    leaf_gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
    with torch.no_grad():
        gradient = forward.collect(leaf_gradients).mul_(mask)
        finite = gradient.abs().amax(1).isfinite() & losses.isfinite().all(1)
        accepted_gradient = gradient
        if gradient.device.type != "cpu" or not bool(finite.all()):  # a GPU is not asked: that would wait for it
            accepted_gradient = torch.where(finite[:, None], gradient, 0.0)
            own_buffers = torch.where(finite[:, None], own_buffers, 0.0)
        gradient_sum = _sum_by_run(accepted_gradient, shape.run, weights)
        buffer_sum = _sum_by_run(own_buffers, shape.run, buffers)
    return PassOutput(gradient_sum, buffer_sum, losses.detach(), finite, gradient if per_client else None)


def _sum_by_run(values: Tensor, run: tuple[int, ...], like: Tensor) -> Tensor:
    """Σ over the rows of each run, shape (R, ·); rows of a run are neighbours, and the order of summation is fixed."""
    total = torch.zeros_like(like)
    start = 0
    for owner, rows in groupby(run):
        stop = start + len(list(rows))
        total[owner] = values[start:stop].sum(0)
        start = stop
    return total
