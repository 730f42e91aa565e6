"""How a stack of G models with own weights is evaluated on G batches."""

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
    """A stack of models."""

    at_once: bool
    """Whether G > 1 models in one call cost less than G calls."""

    pruning: PruningSteps
    """How its parameters come from the global weights, and masked gradients from its parameters'."""

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """The parameters by name, each (G, *shape), from flat weights (G, M)."""

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """Logits (G, S, classes) of ``inputs`` (G, S, *shape).

        In training BatchNorm takes each model's own batch statistics and updates ``buffers`` (G, B) in place.
        """


class Generic:
    """Any module: one model after the other (``vectorised`` False), or under :func:`torch.func.vmap`."""

    def __init__(self, module: nn.Module, layout: Layout, dtype: torch.dtype, *, vectorised: bool) -> None:
        self.module, self.layout, self.dtype, self.at_once = module, layout, dtype, vectorised
        self.counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}
        self.pruning: PruningSteps = PlainPruning(self.spread, _join)

    def spread(self, weights: Tensor) -> dict[str, Tensor]:
        """Views of ``weights``."""
        return {name: view.detach().requires_grad_() for name, view in self.layout.split(weights).items()}

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        self.module.train(training)
        if inputs.dim() == 5 and not self.at_once:
            inputs = inputs.flatten(0, 1).contiguous(memory_format=torch.channels_last).reshape(inputs.shape)
        count = inputs.shape[0]
        # Copies: autograd watches what it has read, and vmap updates no strided view in place.
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
        """Views of ``weights``; matrices and kernels in the compute dtype, vectors (biases) as they are."""
        return {name: (v.detach().to(self.dtype) if v.dim() > 2 else v.detach()).requires_grad_()
                for name, v in self.layout.split(weights).items()}

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        return self.body(parameters, buffers, inputs.to(self.dtype), training)


class Grouped:
    """A hand-written stack by grouped convolutions, whose parameters are rearranged for them.

    ``kernels`` says that Triton is there: weights and gradients are then masked and rearranged in one.
    """

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
    """Leaves' gradients, each (G, *shape), side by side: (G, M). bfloat16 is promoted."""
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
