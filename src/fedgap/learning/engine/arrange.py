"""From flat weights to the memory a grouped convolution reads, and back, in one gather each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from fedgap.learning.models.layout import Layout


class Arrangement:
    """Flat weights (G, M) rearranged layer by layer, kernels channels last.

    A grouped convolution wants one layer's kernels of all G models side by side, with the input channel innermost; flat
    weights have one model's layers side by side. Copying layer by layer would be hundreds of tiny kernels. Matrices and
    kernels come first, in ``dtype``; vectors (biases, normalisation) follow in the weights' own.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype) -> None:
        self.layout, self.dtype = layout, dtype
        order = sorted(range(len(layout.names)), key=lambda i: len(layout.shapes[i]) < 2)
        self._names = [layout.names[i] for i in order]
        self._shapes = [layout.shapes[i] for i in order]
        self._matrices = sum(len(shape) >= 2 for shape in self._shapes)
        self.matrix_size = sum(prod(shape) for shape in self._shapes[: self._matrices])
        self._indices: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}  # for ever: CUDA graphs read them
        self._tables: dict[torch.device, Tensor] = {}  # likewise

    def spread(self, pruned: Tensor) -> dict[str, Tensor]:
        """The leaves by name, each (G, *shape), as the module has it; kernels are channels last in memory."""
        models = pruned.shape[0]
        index, _ = self.index(models, pruned.device)
        layered = pruned.detach().reshape(-1).index_select(0, index)
        split = models * self.matrix_size
        views = self.views(layered[:split].to(self.dtype), layered[split:], models)
        return {name: view.requires_grad_() for name, view in views.items()}

    def collect(self, gradients: Sequence[Tensor]) -> Tensor:
        """The leaves' gradients, in the order of :meth:`spread`, as (G, M) in the weights' dtype."""
        models = gradients[0].shape[0]
        matrices, vectors = self.flat(gradients)
        layered = torch.cat([matrices.to(vectors.dtype), vectors])
        _, inverse = self.index(models, layered.device)
        return layered.index_select(0, inverse).reshape(models, -1)

    def views(self, matrices: Tensor, vectors: Tensor, models: int) -> dict[str, Tensor]:
        """Arranged memory by name, each (G, *shape)."""
        sizes = [models * prod(shape) for shape in self._shapes]
        blocks = [*torch.split(matrices, sizes[: self._matrices]), *torch.split(vectors, sizes[self._matrices :])]
        return {name: _view(block, models, shape) for name, block, shape in zip(self._names, blocks, self._shapes)}

    def flat(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`views`: all matrices and kernels, all vectors."""
        memory = [_memory(tensor) for tensor in tensors]
        return torch.cat(memory[: self._matrices]), torch.cat(memory[self._matrices :])

    def index(self, models: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each arranged entry comes from in (G, M), and where each entry of (G, M) went; int32."""
        if (models, device) not in self._indices:
            places = self.layout.split(torch.arange(self.layout.size, dtype=torch.int32))
            starts = torch.arange(models, dtype=torch.int32)[:, None] * self.layout.size
            index = torch.cat([(starts + _memory(places[name][None])).reshape(-1) for name in self._names])
            inverse = torch.empty_like(index)
            inverse[index.long()] = torch.arange(len(index), dtype=torch.int32)
            self._indices[models, device] = index.to(device), inverse.to(device)
        return self._indices[models, device]

    def table(self, device: torch.device) -> Tensor:
        """(3, M) int32: for each entry e of one arranged model the parameter it is, its leaf's first entry o, and the
        leaf's size s. In a stack of G, model g has it at e + (G − 1)·o + g·s."""
        if device not in self._tables:
            sizes = torch.tensor([prod(shape) for shape in self._shapes], dtype=torch.int32)
            firsts = sizes.cumsum(0, dtype=torch.int32) - sizes
            source, _ = self.index(1, torch.device("cpu"))
            self._tables[device] = torch.stack([source, firsts.repeat_interleave(sizes),
                                                sizes.repeat_interleave(sizes)]).to(device)
        return self._tables[device]


def _memory(tensor: Tensor) -> Tensor:
    """(G, *shape) as a flat vector in the order of memory: kernels with the input channel innermost."""
    return (tensor.permute(0, 1, 3, 4, 2) if tensor.dim() == 5 else tensor).reshape(-1)


def _view(block: Tensor, models: int, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return block.reshape(models, *shape)
    out, inside, height, width = shape
    return block.reshape(models, out, height, width, inside).permute(0, 1, 4, 2, 3)


class Leaves(dict[str, Tensor]):
    """Parameters by name, each (G, *shape), in arranged memory. Gradients are computed with respect to them.

    Their gradients may be written to ``homes``, which have the memory layout of the parameters, but only if a parameter
    is used once, because a second gradient would replace the first. The memory is allocated when it is first used.
    """

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
        """Where gradients may be written, by name."""
        return self._arrangement.views(*self._side_by_side, self._models)

    def hold(self, gradients: Sequence[Tensor]) -> bool:
        """Whether the gradients, in order, all were written there."""
        return "homes" in self.__dict__ and all(
            own.data_ptr() == home.data_ptr() for own, home in zip(gradients, self.homes.values()))

    def flat(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients, in order, as :meth:`Arrangement.flat` has them; without copying where they were written so."""
        return self._side_by_side if self.hold(gradients) else self._arrangement.flat(gradients)


def home(parameters: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Where the gradient of this parameter may be written, or None."""
    return parameters.homes[name] if isinstance(parameters, Leaves) else None
