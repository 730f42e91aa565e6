"""The flat view ω ∈ R^M of a module: one fixed order of all trainable parameters, and one of all buffers."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter and each floating-point buffer of a module lies in the two flat vectors.

    The order is that of ``module.named_parameters()`` (and ``named_buffers()``), each tensor row-major. ``size`` is the
    paper's M. Frozen parameters and integer buffers (such as BatchNorm's batch counter) are not included and keep the
    values that the module has."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    buffer_names: tuple[str, ...]
    buffer_shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of ``module``."""
        parameters = [(n, p.shape) for n, p in module.named_parameters() if p.requires_grad]
        buffers = [(n, b.shape) for n, b in module.named_buffers() if b.is_floating_point()]
        return cls(tuple(n for n, _ in parameters), tuple(s for _, s in parameters),
                   tuple(n for n, _ in buffers), tuple(s for _, s in buffers))

    @property
    def size(self) -> int:
        """M, the number of trainable parameters."""
        return sum(map(prod, self.shapes))

    @property
    def buffer_size(self) -> int:
        """B, the number of buffer entries (BatchNorm's running means and variances)."""
        return sum(map(prod, self.buffer_shapes))

    def weights(self, module: nn.Module) -> Tensor:
        """A copy of the weights ω of ``module``, shape (M,)."""
        parameters = dict(module.named_parameters())
        return _join([parameters[n].detach() for n in self.names])

    def buffers(self, module: nn.Module) -> Tensor:
        """A copy of the buffers of ``module``, shape (B,)."""
        buffers = dict(module.named_buffers())
        return _join([buffers[n].detach() for n in self.buffer_names])

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of ``flat`` (..., M) by parameter name, each of shape (..., *its shape)."""
        return _split(flat, self.names, self.shapes)

    def split_buffers(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of ``flat`` (..., B) by buffer name."""
        return _split(flat, self.buffer_names, self.buffer_shapes)

    def join(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """The inverse of :meth:`split` for tensors with ``lead`` leading dimensions: shape (*leading, M)."""
        return _join([tensors[n] for n in self.names], lead)

    def join_buffers(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """The inverse of :meth:`split_buffers`."""
        return _join([tensors[n] for n in self.buffer_names], lead)

    @torch.no_grad()
    def load(self, module: nn.Module, weights: Tensor, buffers: Tensor | None = None) -> None:
        """Write ω (M,) and, if given, the buffers (B,) into ``module``."""
        parameters, targets = dict(module.named_parameters()), dict(module.named_buffers())
        for name, value in self.split(weights).items():
            parameters[name].copy_(value)
        if buffers is not None:
            for name, value in self.split_buffers(buffers).items():
                targets[name].copy_(value)


def _join(tensors: list[Tensor], lead: int = 0) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    return torch.cat([t.flatten(lead) if t.dim() > lead else t.unsqueeze(-1) for t in tensors], dim=-1)


def _split(flat: Tensor, names: tuple[str, ...], shapes: tuple[torch.Size, ...]) -> dict[str, Tensor]:
    if not names:
        return {}
    pieces = torch.split(flat, [prod(s) for s in shapes], dim=-1)
    return {n: p.reshape(*flat.shape[:-1], *s) for n, p, s in zip(names, pieces, shapes)}
