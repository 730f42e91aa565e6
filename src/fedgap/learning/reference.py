"""Reference implementation of a round, as the paper describes it: a plain loop over clients.

It is slow, but simple enough to be clearly correct; the stacked engine is tested against it."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedgap.learning.contract import CLIP_MARGIN, LocalTraining, RoundInput, RoundOutput, mean_buffers
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import Channels


@dataclass(frozen=True)
class _ClientModel:
    """One client's pruned model: its module, the weights and buffers it starts from, and which of the whole model's
    weights and buffers these are."""

    module: nn.Module
    layout: Layout
    start: Tensor
    mask: Tensor
    """(M,) bool: the weights that are kept."""
    buffers: Tensor
    counted: Tensor | None
    """(B,) bool: the whole model's buffer entries that the client has; None if it has all of them."""

    @property
    def smaller(self) -> bool:
        return self.counted is not None

    def whole_update(self, update: Tensor) -> Tensor:
        """Expand an update of the client's kept weights to the whole model, (M,), with 0 for pruned weights."""
        return update.new_zeros(self.mask.shape).masked_scatter(self.mask, update) if self.smaller else update

    def whole_buffers(self, buffers: Tensor, before: Tensor) -> Tensor:
        """The whole model's buffers (B,) with the client's values; entries that the client does not have stay as
        ``before``."""
        return buffers if self.counted is None else before.masked_scatter(self.counted, buffers)


def _client_model(module: nn.Module, layout: Layout, round_input: RoundInput, job: int, keep: int) -> _ClientModel:
    run, structure = round_input.run[job], round_input.structure
    mask = round_input.ranks[run] < keep
    weights, buffers = round_input.weights[run], round_input.buffers[run]
    if not isinstance(structure, Channels):
        return _ClientModel(module, layout, weights * mask, mask, buffers, None)
    small, counted = structure.small_module(structure.widths_of(keep)), structure.buffer_mask(mask)
    return _ClientModel(small, Layout.of(small), weights[mask], mask, buffers[counted], counted)


def gradients(module: nn.Module, round_input: RoundInput, *, bfloat16: bool = False) -> RoundOutput:
    """Compute the masked gradients of one FedSGD round, one client after the other.

    Computes in the dtype of the weights; ``bfloat16`` computes matrix products in bfloat16. ``module`` must have the
    weights' dtype; the values of its weights are not used. For the result see
    :class:`~fedgap.learning.contract.RoundOutput`."""
    one_step = replace(round_input, inputs=[batch[None] for batch in round_input.inputs],
                       labels=[batch[None] for batch in round_input.labels])
    rates = round_input.weights.new_zeros(len(round_input.weights))  # the one step is not taken
    return updates(module, one_step, LocalTraining(), rates, bfloat16=bfloat16)


def updates(module: nn.Module, round_input: RoundInput, local: LocalTraining, rates: Tensor, *,
            bfloat16: bool = False) -> RoundOutput:
    """Compute a round with local steps; ``rates`` (R,) is each run's learning rate η. The formulas are in
    :mod:`fedgap.learning.contract`."""
    round_input.check_steps(local, rates)
    layout, keeps = Layout.of(module), round_input.keeps
    device = round_input.weights.device
    losses, finite, client_updates, client_buffers = [], [], [], []
    counted: list[Tensor | None] = []
    frozen = {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
    for job, run in enumerate(round_input.run):
        model = _client_model(module, layout, round_input, job, keeps[job])
        model.module.train()
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        buffers |= {name: value.clone() for name, value in model.layout.split_buffers(model.buffers).items()}
        start = weights = model.start
        step_losses: list[Tensor] = []
        direction = update = torch.zeros_like(start)
        for inputs, labels in zip(round_input.inputs[job], round_input.labels[job], strict=True):
            weights = weights.detach().requires_grad_()
            with torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext():
                state = {**frozen, **model.layout.split(weights), **buffers}
                logits = functional_call(model.module, state, (inputs,))
            loss = functional.cross_entropy(logits.to(weights.dtype), labels)
            objective = loss
            if local.proximal:
                objective = loss + local.proximal / 2 * (weights - start).square().sum()
            (gradient,) = torch.autograd.grad(objective, weights)
            if not model.smaller:
                gradient = gradient * model.mask
            if local.clip_norm is not None:
                gradient = gradient * min(1.0, local.clip_norm / (float(gradient.norm()) + CLIP_MARGIN))
            direction = local.momentum * direction + gradient if local.momentum else gradient
            update = update + direction
            weights = weights - rates[run] * direction
            step_losses.append(loss.detach())
        client_losses = torch.stack(step_losses)
        losses.append(client_losses.mean())
        finite.append(bool(client_losses.isfinite().all()) and bool(update.isfinite().all()))
        client_updates.append(model.whole_update(update))
        after = model.layout.join_buffers(buffers).to(round_input.buffers)
        client_buffers.append(model.whole_buffers(after, round_input.buffers[run]))
        counted.append(model.counted)

    gradient, buffers_after = torch.zeros_like(round_input.weights), round_input.buffers.clone()
    accepted = torch.zeros(len(round_input.weights), dtype=torch.int64, device=device)
    kept = torch.zeros(len(round_input.weights), dtype=torch.int32, device=device)
    for run in range(len(round_input.weights)):
        jobs = [j for j, owner in enumerate(round_input.run) if owner == run and finite[j]]
        accepted[run] = len(jobs)
        if jobs:
            kept[run] = max(keeps[j] for j in jobs)
            gradient[run] = torch.stack([client_updates[j] for j in jobs]).sum(0) / len(jobs)
            masks = [own for j in jobs if (own := counted[j]) is not None]
            buffers_after[run] = mean_buffers(torch.stack([client_buffers[j] for j in jobs]),
                                              torch.stack(masks) if masks else None, round_input.buffers[run])
    return RoundOutput(gradient, torch.stack(losses), torch.tensor(finite, device=device), accepted, buffers_after,
                       torch.stack(client_updates), kept, torch.stack(client_buffers))


@torch.no_grad()
def evaluate(module: nn.Module, weights: Tensor, buffers: Tensor, inputs: Tensor, labels: Tensor) -> list[Evaluation]:
    """Loss and accuracy of each run's model on the samples ``inputs`` (T, *shape) with ``labels`` (T,).

    ``weights`` (R, M) and ``buffers`` (R, B) hold one row per run; the result has one entry per run."""
    layout = Layout.of(module)
    module.eval()
    results = []
    for run in range(len(weights)):
        state = {**layout.split(weights[run]), **layout.split_buffers(buffers[run])}
        logits = functional_call(module, state, (inputs,))
        right = (logits.argmax(1) == labels).float().mean()
        results.append(Evaluation(float(functional.cross_entropy(logits, labels)), float(right), len(labels)))
    return results
