"""From flat weights to the memory a grouped convolution reads, and back, in one gather each way."""

from collections.abc import Sequence
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
        self.names = [layout.names[i] for i in order]
        self.shapes = [layout.shapes[i] for i in order]
        self.matrices = sum(len(shape) >= 2 for shape in self.shapes)
        self._indices: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def spread(self, pruned: Tensor) -> dict[str, Tensor]:
        """The leaves by name, each (G, *shape), as the module has it; kernels are channels last in memory."""
        models = pruned.shape[0]
        index, _ = self._index(models, pruned.device)
        layered = pruned.detach().reshape(-1).index_select(0, index)
        sizes = [models * prod(shape) for shape in self.shapes]
        split = sum(sizes[: self.matrices])
        blocks = [*torch.split(layered[:split].to(self.dtype), sizes[: self.matrices]),
                  *torch.split(layered[split:], sizes[self.matrices :])]
        return {name: _view(block, models, shape).requires_grad_()
                for name, block, shape in zip(self.names, blocks, self.shapes)}

    def collect(self, gradients: Sequence[Tensor]) -> Tensor:
        """The leaves' gradients, in the order of :meth:`spread`, as (G, M) in the weights' dtype."""
        models = gradients[0].shape[0]
        flat = [_memory(gradient) for gradient in gradients]
        vectors = flat[self.matrices :]
        matrices = torch.cat(flat[: self.matrices])
        layered = torch.cat([matrices.to(vectors[0].dtype), *vectors]) if vectors else matrices
        _, inverse = self._index(models, layered.device)
        return layered.index_select(0, inverse).reshape(models, -1)

    def _index(self, models: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each arranged entry comes from, and where each flat entry went."""
        if (models, device) not in self._indices:
            places = self.layout.split(torch.arange(self.layout.size, dtype=torch.int32))
            starts = torch.arange(models, dtype=torch.int32)[:, None] * self.layout.size
            index = torch.cat([(starts + _memory(places[name][None])).reshape(-1) for name in self.names])
            inverse = torch.empty_like(index)
            inverse[index.long()] = torch.arange(len(index), dtype=torch.int32)
            self._indices = {(models, device): (index.to(device), inverse.to(device))}
        return self._indices[models, device]


def _memory(tensor: Tensor) -> Tensor:
    """(G, *shape) as a flat vector in the order of memory: kernels with the input channel innermost."""
    return (tensor.permute(0, 1, 3, 4, 2) if tensor.dim() == 5 else tensor).reshape(-1)


def _view(block: Tensor, models: int, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return block.reshape(models, *shape)
    out, inside, height, width = shape
    return block.reshape(models, out, height, width, inside).permute(0, 1, 4, 2, 3)
