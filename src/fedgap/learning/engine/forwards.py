"""How a stack of G models with different weights is evaluated on G batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgap.learning.engine.arrange import Arrangement
from fedgap.learning.engine.pruned_models import PlainPruning, PruningSteps
from fedgap.learning.models.layout import Layout

Tensors = Mapping[str, Tensor]


class Forward(Protocol):
    """The forward pass of a stack of models."""

    at_once: bool
    """Whether G > 1 models in one call cost less than G calls."""

    pruning: PruningSteps
    """How the stack's parameters are computed from the global weights, and masked gradients from its logits."""

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """Split flat weights (G, M) into parameters by name, each (G, *shape)."""

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """Logits (G, S, classes) of ``inputs`` (G, S, *shape).

        In training, BatchNorm uses the statistics of each model's own batch, and updates ``buffers`` (G, B) in place.
        """


class Generic:
    """The forward pass of any module: one model after the other (``vectorised`` False), or all with
    :func:`torch.func.vmap`."""

    def __init__(self, module: nn.Module, layout: Layout, dtype: torch.dtype, *, vectorised: bool) -> None:
        self.module, self.layout, self.dtype, self.at_once = module, layout, dtype, vectorised
        self.counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}
        self.pruning: PruningSteps = PlainPruning(self.spread, _join)

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """Parameters by name, each (G, *shape): views of ``weights`` (G, M)."""
        return {name: view.detach().requires_grad_() for name, view in self.layout.split(weights).items()}

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        self.module.train(training)
        if inputs.dim() == 5 and not self.at_once:
            inputs = inputs.flatten(0, 1).contiguous(memory_format=torch.channels_last).reshape(inputs.shape)
        count = inputs.shape[0]
        # Copies, because autograd forbids changes to what it has read, and vmap cannot update a strided view in place.
        own = {name: buffer.clone() for name, buffer in self.layout.split_buffers(buffers).items()}
        state = {**parameters, **own, **{name: b.expand(count, *b.shape).clone() for name, b in self.counters.items()}}
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.dtype is torch.bfloat16,
                            cache_enabled=False):
            if self.at_once:
                logits = vmap(self._one)(state, inputs)
            else:
                logits = torch.stack([self._one({n: t[g] for n, t in state.items()}, inputs[g]) for g in range(count)])
        if own and training:
            buffers.copy_(self.layout.join_buffers(own, lead=1))
        return logits

    def _one(self, state: Tensors, inputs: Tensor) -> Tensor:
        return functional_call(self.module, dict(state), (inputs,))  # type: ignore[no-any-return]


Body = Callable[[Tensors, Tensor, Tensor, bool], Tensor]


class ByModel:
    """A hand-written stack whose parameters are plain views of the flat weights."""

    at_once = True

    def __init__(self, body: Body, layout: Layout, dtype: torch.dtype) -> None:
        self.body, self.layout, self.dtype = body, layout, dtype
        self.pruning: PruningSteps = PlainPruning(self.spread, _join)

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """Views of ``weights`` (G, M) by name; matrices and kernels are converted to the compute dtype, biases are
        not."""
        return {name: (v.detach().to(self.dtype) if v.dim() > 2 else v.detach()).requires_grad_()
                for name, v in self.layout.split(weights).items()}

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        return self.body(parameters, buffers, inputs.to(self.dtype), training)


class Grouped:
    """A hand-written stack by grouped convolutions, with parameters rearranged for them.

    ``kernels`` says whether Triton is available: weights and gradients are then masked and rearranged in one step."""

    at_once = True

    def __init__(self, body: Body, layout: Layout, dtype: torch.dtype, *, kernels: bool) -> None:
        self.body, self.dtype = body, dtype
        arrangement = Arrangement(layout, dtype)
        self.spread = arrangement.spread
        self.pruning: PruningSteps = PlainPruning(arrangement.spread, arrangement.collect)
        if kernels and dtype is not torch.float64:
            from fedgap.learning.engine.kernels.prune import KernelPruning
            self.pruning = KernelPruning(arrangement)

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        return self.body(parameters, buffers, inputs.to(self.dtype), training)


def _join(gradients: Sequence[Tensor]) -> Tensor:
    """Join gradients of parameters, each (G, *shape), to (G, M). Gradients in bfloat16 are promoted to the widest
    dtype."""
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
