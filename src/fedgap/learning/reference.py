"""The round as the paper writes it: a plain loop over clients. Slow, and obviously right."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedgap.learning.contract import RoundInput, RoundOutput
from fedgap.learning.masks import mask
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models.layout import Layout


def gradients(module: nn.Module, round_input: RoundInput, *, bfloat16: bool = False) -> RoundOutput:
    """The contract's output, one client after the other, in the weights' dtype, or with products in bfloat16.

    ``module`` has that dtype too; its own weights are not used.
    """
    layout = Layout.of(module)
    device = round_input.weights.device
    losses, finite, client_gradients, client_buffers = [], [], [], []
    module.train()
    for job, run in enumerate(round_input.run):
        keep = mask(round_input.ranks[run], round_input.ratios[job])
        pruned = (round_input.weights[run] * keep).requires_grad_()
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        buffers |= {name: value.clone() for name, value in layout.split_buffers(round_input.buffers[run]).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            logits = functional_call(module, {**layout.split(pruned), **buffers}, (round_input.inputs[job],))
        loss = functional.cross_entropy(logits.to(pruned.dtype), round_input.labels[job])
        (gradient,) = torch.autograd.grad(loss, pruned)
        gradient = gradient * keep
        losses.append(loss.detach())
        finite.append(bool(loss.isfinite()) and bool(gradient.isfinite().all()))
        client_gradients.append(gradient)
        client_buffers.append(layout.join_buffers(buffers).to(round_input.buffers))

    gradient, buffers_after = torch.zeros_like(round_input.weights), round_input.buffers.clone()
    accepted = torch.zeros(len(round_input.weights), dtype=torch.int64, device=device)
    kept, keeps = torch.zeros(len(round_input.weights), dtype=torch.int32, device=device), round_input.keeps
    for run in range(len(round_input.weights)):
        jobs = [j for j, owner in enumerate(round_input.run) if owner == run and finite[j]]
        accepted[run] = len(jobs)
        if jobs:
            kept[run] = max(keeps[j] for j in jobs)
            gradient[run] = torch.stack([client_gradients[j] for j in jobs]).sum(0) / len(jobs)
            buffers_after[run] = torch.stack([client_buffers[j] for j in jobs]).sum(0) / len(jobs)
    return RoundOutput(gradient, torch.stack(losses), torch.tensor(finite, device=device), accepted, buffers_after,
                       torch.stack(client_gradients), kept)


@torch.no_grad()
def evaluate(module: nn.Module, weights: Tensor, buffers: Tensor, inputs: Tensor, labels: Tensor) -> list[Evaluation]:
    """Each run's model, weights (R, M) and buffers (R, B), on samples (T, *shape) with labels (T,)."""
    layout = Layout.of(module)
    module.eval()
    results = []
    for run in range(len(weights)):
        state = {**layout.split(weights[run]), **layout.split_buffers(buffers[run])}
        logits = functional_call(module, state, (inputs,))
        right = (logits.argmax(1) == labels).float().mean()
        results.append(Evaluation(float(functional.cross_entropy(logits, labels)), float(right), len(labels)))
    return results
