"""The arithmetic of one pass: pruned weights, losses, masked gradients or updates, and sums over clients."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedgap.learning.engine.forwards import Forward
from fedgap.learning.engine.local_steps import take_steps
from fedgap.learning.engine.pruned_models import PassInput, Shape, finite_rows, sum_by_run


class PassOutput(NamedTuple):
    """The fields of :class:`~fedgap.learning.engine.pruned_models.Sums`, and BatchNorm buffers.

    ``buffers`` (R, B) is the sum over the finite models of each run. ``client_buffers`` (G, B) has those of each model
    if ``Shape.each`` is set; otherwise it is (0, B)."""

    gradient: Tensor
    buffers: Tensor
    accepted: Tensor
    kept: Tensor
    losses: Tensor
    finite: Tensor
    gradients: Tensor
    client_buffers: Tensor


def compute(forward: Forward, shape: Shape, given: PassInput) -> PassOutput:
    """Compute one pass: the gradient of each model, or all its local steps."""
    if shape.local is None:
        leaves, of = forward.pruning.leaves(given, shape)
        client_buffers = given.buffers.index_select(0, given.run)
        logits = forward(leaves, client_buffers, given.inputs, True)
        sums = forward.pruning.sums(logits, leaves, given, shape, of)
    else:
        sums, client_buffers = take_steps(forward, shape, given, shape.local)
    with torch.no_grad():
        counted = client_buffers * given.counted if given.counted.numel() else client_buffers
        buffers = sum_by_run(finite_rows(counted, sums.finite), shape.run, len(given.weights))
        return PassOutput(buffers=buffers, client_buffers=client_buffers if shape.each else client_buffers[:0],
                          **sums._asdict())


def finish(total: PassOutput, before: Tensor) -> PassOutput:
    """Turn the sums over all clients of a round into means. A run without accepted clients keeps its buffers
    ``before``."""
    divisor = total.accepted.clamp(min=1)[:, None]
    buffers = torch.where(total.accepted[:, None] > 0, total.buffers / divisor, before)
    return total._replace(gradient=total.gradient / divisor, buffers=buffers)


def compute_round(forward: Forward, shape: Shape, given: PassInput) -> PassOutput:
    """Compute a round that consists of one pass."""
    return finish(compute(forward, shape, given), given.buffers)
