"""How a stack of G models with own weights is evaluated on G batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgap.learning.engine.arrange import Arrangement
from fedgap.learning.models.layout import Layout

Tensors = Mapping[str, Tensor]


class Forward(Protocol):
    """A stack of models."""

    at_once: bool
    """Whether G > 1 models in one call cost less than G calls."""

    def spread(self, pruned: Tensor) -> dict[str, Tensor]:
        """The parameters by name from flat weights (G, M), each (G, *shape), as the leaves to differentiate by."""

    def collect(self, gradients: Sequence[Tensor]) -> Tensor:
        """The leaves' gradients as flat gradients (G, M) in the weights' dtype."""

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """Logits (G, S, classes) of ``inputs`` (G, S, *shape).

        In training BatchNorm takes each model's own batch statistics and updates ``buffers`` (G, B) in place.
        """


class Generic:
    """Any module: one model after the other (``vectorised`` False), or under :func:`torch.func.vmap`."""

    def __init__(self, module: nn.Module, layout: Layout, dtype: torch.dtype, *, vectorised: bool) -> None:
        self.module, self.layout, self.dtype, self.at_once = module, layout, dtype, vectorised
        self.counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}

    def spread(self, pruned: Tensor) -> dict[str, Tensor]:
        """Views of ``pruned``."""
        return {name: view.detach().requires_grad_() for name, view in self.layout.split(pruned).items()}

    def collect(self, gradients: Sequence[Tensor]) -> Tensor:
        """Flattened and joined."""
        return torch.cat([g.flatten(1) for g in gradients], dim=1)

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

    def spread(self, pruned: Tensor) -> dict[str, Tensor]:
        """Views of ``pruned``; matrices and kernels in the compute dtype, vectors (biases) as they are."""
        return {name: (v.detach().to(self.dtype) if v.dim() > 2 else v.detach()).requires_grad_()
                for name, v in self.layout.split(pruned).items()}

    def collect(self, gradients: Sequence[Tensor]) -> Tensor:
        """Flattened and joined; bfloat16 is promoted."""
        return torch.cat([g.flatten(1) for g in gradients], dim=1)

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        return self.body(parameters, buffers, inputs.to(self.dtype), training)


class Grouped:
    """A hand-written stack by grouped convolutions, whose parameters are rearranged for them."""

    at_once = True

    def __init__(self, body: Body, layout: Layout, dtype: torch.dtype) -> None:
        self.body, self.dtype = body, dtype
        arrangement = Arrangement(layout, dtype)
        self.spread, self.collect = arrangement.spread, arrangement.collect

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """See :class:`Forward`."""
        return self.body(parameters, buffers, inputs.to(self.dtype), training)
