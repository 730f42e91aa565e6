"""The round as the paper writes it: a plain loop over clients. Slow, and obviously right."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedgap.learning.contract import RoundInput, RoundOutput
from fedgap.learning.masks import mask
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models.layout import Layout


def gradients(module: nn.Module, round_input: RoundInput) -> RoundOutput:
    """The contract's output, one client after the other, in the dtype of the weights. ``module`` is not changed."""
    layout = Layout.of(module)
    runs = round_input.weights.shape[0]
    losses, finite, client_gradients, client_buffers = [], [], [], []
    module.train()
    for job, run in enumerate(round_input.run):
        keep = mask(round_input.ranks[run], round_input.ratios[job])
        pruned = (round_input.weights[run] * keep).requires_grad_()
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        buffers |= {name: value.clone() for name, value in layout.split_buffers(round_input.buffers[run]).items()}
        logits = functional_call(module, {**layout.split(pruned), **buffers}, (round_input.inputs[job],))
        loss = functional.cross_entropy(logits, round_input.labels[job])
        (gradient,) = torch.autograd.grad(loss, pruned)
        gradient = gradient * keep
        losses.append(loss.detach())
        finite.append(bool(loss.isfinite()) and bool(gradient.isfinite().all()))
        client_gradients.append(gradient)
        client_buffers.append(layout.join_buffers(buffers).to(round_input.buffers))

    gradient, buffers_after = torch.zeros_like(round_input.weights), round_input.buffers.clone()
    accepted = torch.zeros(runs, dtype=torch.int64)
    for run in range(runs):
        jobs = [j for j, owner in enumerate(round_input.run) if owner == run and finite[j]]
        accepted[run] = len(jobs)
        if jobs:
            gradient[run] = torch.stack([client_gradients[j] for j in jobs]).sum(0) / len(jobs)
            buffers_after[run] = torch.stack([client_buffers[j] for j in jobs]).sum(0) / len(jobs)
    return RoundOutput(gradient, torch.stack(losses), torch.tensor(finite), accepted, buffers_after,
                       torch.stack(client_gradients))


@torch.no_grad()
def evaluate(module: nn.Module, weights: Tensor, buffers: Tensor, inputs: Tensor, labels: Tensor) -> list[Evaluation]:
    """Each run's model, weights (R, M) and buffers (R, B), on samples (T, *shape) with labels (T,), in evaluation
    mode."""
    layout = Layout.of(module)
    module.eval()
    results = []
    for run in range(weights.shape[0]):
        state = {**layout.split(weights[run]), **layout.split_buffers(buffers[run])}
        logits = functional_call(module, state, (inputs,))
        right = (logits.argmax(1) == labels).float().mean()
        results.append(Evaluation(float(functional.cross_entropy(logits, labels)), float(right), len(labels)))
    return results
