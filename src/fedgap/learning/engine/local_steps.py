"""The local steps of a round, stacked: every client trains its own pruned model, all of them side by side.

After the first step every client has different weights, so a step is a pass over G models with one client each.
Batches, weights, updates and momentum are tensors on the device, and the host reads no value between steps, so that a
GPU can record all steps of a round in one graph."""

import torch
from torch import Tensor

from fedgap.learning.contract import CLIP_MARGIN, LocalTraining
from fedgap.learning.engine.forwards import Forward
from fedgap.learning.engine.pruned_models import PassInput, Shape, Sums, masks_of, rows_of, sums_of


def take_steps(forward: Forward, shape: Shape, given: PassInput, local: LocalTraining) -> tuple[Sums, Tensor]:
    """Compute all local steps; returns the sums of the clients' updates, and each client's buffers (G, B) after its
    last step."""
    masks = masks_of(given, shape)
    start = rows_of(given.weights, given, shape) * masks
    rates = given.rates.index_select(0, given.run)[:, None]
    buffers = given.buffers.index_select(0, given.run)
    weights = start.clone() if local.proximal else start
    update = torch.zeros_like(start)
    velocity: Tensor | None = None
    losses = []
    for step in range(local.steps):
        leaves = forward.pruning.spread(weights)
        logits = forward(leaves, buffers, given.inputs[:, step], True)
        loss, direction = forward.pruning.gradients(logits, leaves, given.labels[:, step], 1)
        losses.append(loss)
        with torch.no_grad():
            direction.mul_(masks)
            if local.proximal and step:
                direction.add_(weights - start, alpha=local.proximal)
            if local.clip_norm is not None:
                norm = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
                direction.mul_((local.clip_norm / (norm + CLIP_MARGIN)).clamp_(max=1.0))
            if local.momentum:
                direction = velocity = direction if velocity is None else direction.add_(velocity, alpha=local.momentum)
            update.add_(direction)
            if step < local.steps - 1:
                weights.addcmul_(direction, rates, value=-1.0)
    with torch.no_grad():
        return sums_of(update, torch.stack(losses).mean(0), given, shape), buffers
