"""Rearrange flat weights into the memory layout that a grouped convolution reads, and back, with one gather each
way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from fedgap.learning.models.layout import Layout


class Arrangement:
    """Rearranges the flat weights (G, M) of G models layer by layer, with kernels in channels-last order.

    A grouped convolution needs one layer's kernels of all G models side by side, with the input channel innermost; in
    flat weights, one model's layers are side by side. Copying layer by layer would take hundreds of tiny GPU kernels.
    Matrices and convolution kernels come first, in ``dtype``; vectors (biases, normalisation) follow in the dtype of
    the weights."""

    def __init__(self, layout: Layout, dtype: torch.dtype) -> None:
        self.layout, self.dtype = layout, dtype
        order = sorted(range(len(layout.names)), key=lambda i: len(layout.shapes[i]) < 2)
        self._names = [layout.names[i] for i in order]
        self._shapes = [layout.shapes[i] for i in order]
        self._matrices = sum(len(shape) >= 2 for shape in self._shapes)
        self.matrix_size = sum(prod(shape) for shape in self._shapes[: self._matrices])
        self._indices: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}  # never dropped: graphs read them
        self._tables: dict[torch.device, Tensor] = {}  # never dropped either

    def spread(self, pruned: Tensor) -> dict[str, Tensor]:
        """The parameters by name, each (G, *shape) as in the module, with gradients enabled. Kernels are channels last
        in memory."""
        models = pruned.shape[0]
        index, _ = self.index(models, pruned.device)
        layered = pruned.detach().reshape(-1).index_select(0, index)
        split = models * self.matrix_size
        views = self.views(layered[:split].to(self.dtype), layered[split:], models)
        return {name: view.requires_grad_() for name, view in views.items()}

    def collect(self, gradients: Sequence[Tensor]) -> Tensor:
        """Join the gradients of the parameters, in the order of :meth:`spread`, to (G, M) in the dtype of the
        weights."""
        models = gradients[0].shape[0]
        matrices, vectors = self.flat(gradients)
        layered = torch.cat([matrices.to(vectors.dtype), vectors])
        _, inverse = self.index(models, layered.device)
        return layered.index_select(0, inverse).reshape(models, -1)

    def views(self, matrices: Tensor, vectors: Tensor, models: int) -> dict[str, Tensor]:
        """Views (G, *shape) of rearranged memory by parameter name."""
        sizes = [models * prod(shape) for shape in self._shapes]
        blocks = [*torch.split(matrices, sizes[: self._matrices]), *torch.split(vectors, sizes[self._matrices :])]
        return {name: _view(block, models, shape) for name, block, shape in zip(self._names, blocks, self._shapes)}

    def flat(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`views`: all matrices and kernels as one vector, and all vectors as another."""
        memory = [_memory(tensor) for tensor in tensors]
        return torch.cat(memory[: self._matrices]), torch.cat(memory[self._matrices :])

    def index(self, models: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Two index vectors, int32: where each rearranged entry comes from in (G, M), and where each entry of (G, M)
        goes."""
        if (models, device) not in self._indices:
            places = self.layout.split(torch.arange(self.layout.size, dtype=torch.int32))
            starts = torch.arange(models, dtype=torch.int32)[:, None] * self.layout.size
            index = torch.cat([(starts + _memory(places[name][None])).reshape(-1) for name in self._names])
            inverse = torch.empty_like(index)
            inverse[index.long()] = torch.arange(len(index), dtype=torch.int32)
            self._indices[models, device] = index.to(device), inverse.to(device)
        return self._indices[models, device]

    def table(self, device: torch.device) -> Tensor:
        """(3, M) int32: for each entry e of one rearranged model, the index of its weight in ω, the first entry o of
        its tensor, and the tensor's size s.

        In a stack of G models, entry e of model g is at e + (G − 1)·o + g·s."""
        if device not in self._tables:
            sizes = torch.tensor([prod(shape) for shape in self._shapes], dtype=torch.int32)
            firsts = sizes.cumsum(0, dtype=torch.int32) - sizes
            source, _ = self.index(1, torch.device("cpu"))
            self._tables[device] = torch.stack([source, firsts.repeat_interleave(sizes),
                                                sizes.repeat_interleave(sizes)]).to(device)
        return self._tables[device]


def _memory(tensor: Tensor) -> Tensor:
    """(G, *shape) as a flat vector in memory order: kernels with the input channel innermost."""
    return (tensor.permute(0, 1, 3, 4, 2) if tensor.dim() == 5 else tensor).reshape(-1)


def _view(block: Tensor, models: int, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return block.reshape(models, *shape)
    out, inside, height, width = shape
    return block.reshape(models, out, height, width, inside).permute(0, 1, 4, 2, 3)


class Leaves(dict[str, Tensor]):
    """Parameters by name, each (G, *shape), in rearranged memory. Gradients are computed with respect to them.

    A backward pass may write the gradients into ``homes``, tensors with the same memory layout, which saves a copy.
    This is correct only if a parameter is used once, because a second gradient would replace the first. The memory is
    allocated when it is first used."""

    def __init__(self, arrangement: Arrangement, matrices: Tensor, vectors: Tensor, models: int) -> None:
        views = arrangement.views(matrices, vectors, models)
        super().__init__({name: view.requires_grad_() for name, view in views.items()})
        self._arrangement, self._memory, self._models = arrangement, (matrices, vectors), models

    @cached_property
    def _side_by_side(self) -> tuple[Tensor, Tensor]:
        matrices, vectors = (torch.empty_like(memory) for memory in self._memory)
        return matrices, vectors

    @cached_property
    def homes(self) -> dict[str, Tensor]:
        """The tensors into which gradients may be written, by parameter name."""
        return self._arrangement.views(*self._side_by_side, self._models)

    def hold(self, gradients: Sequence[Tensor]) -> bool:
        """Whether all these gradients, in order, were written into ``homes``."""
        return "homes" in self.__dict__ and all(
            own.data_ptr() == home.data_ptr() for own, home in zip(gradients, self.homes.values()))

    def flat(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients, in order, in the form of :meth:`Arrangement.flat`; without copying if they were written into
        ``homes``."""
        return self._side_by_side if self.hold(gradients) else self._arrangement.flat(gradients)


def home(parameters: Mapping[str, Tensor], name: str) -> Tensor | None:
    """The tensor into which the gradient of this parameter may be written, or None if there is none."""
    return parameters.homes[name] if isinstance(parameters, Leaves) else None
