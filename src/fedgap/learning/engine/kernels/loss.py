# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Cross-entropy and its gradient in one GPU kernel, client by client."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _cross_entropy(logits, labels, losses, towards, samples, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
                   BLOCK: tl.constexpr):
    """Compute one client's mean loss over its samples, and the gradient of that loss with respect to the logits."""
    client = tl.program_id(0)
    label = tl.arange(0, WIDTH)[None, :]
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, samples, BLOCK):
        sample = first + tl.arange(0, BLOCK)
        valid = sample < samples
        sample += client * samples
        at = sample[:, None] * CLASSES + label
        inside = valid[:, None] & (label < CLASSES)
        x = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
        top = tl.max(tl.where(label < CLASSES, x, -float("inf")), axis=1)
        powers = tl.where(label < CLASSES, tl.exp(x - top[:, None]), 0.0)
        sums = tl.sum(powers, axis=1)
        right = label == tl.load(labels + sample, mask=valid, other=0)[:, None]
        loss = tl.log(sums) + top - tl.sum(tl.where(right, x, 0.0), axis=1)
        total += tl.where(valid, loss, 0.0)
        gradient = (powers / sums[:, None] - right.to(tl.float32)) / samples
        tl.store(towards + at, gradient.to(towards.dtype.element_ty), mask=inside)
    tl.store(losses + client, tl.sum(total, axis=0) / samples)


def cross_entropy(logits: Tensor, labels: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """The mean loss of each client's samples, (G, n) float32, and the gradient of the sum of these losses with respect
    to the logits.

    ``logits`` are (G, n·Z, classes) and ``labels`` (G, n·Z), with the n clients of a model one after the other."""
    models, samples, classes = logits.shape
    logits = logits.contiguous()
    losses, towards = torch.empty(models, clients, device=logits.device), torch.empty_like(logits)
    width = triton.next_power_of_2(classes)
    _cross_entropy[models * clients,](logits, labels.contiguous(), losses, towards, samples // clients, CLASSES=classes,
                                      WIDTH=width, BLOCK=max(1, min(64, 8192 // width)))
    return losses, towards
