# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Masking and rearranging in one: a stack's weights are read once and written once, and so are its gradients."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgap.learning.engine.arrange import Arrangement
from fedgap.learning.engine.pruning import PassInput, Shape

_BLOCK = 1024


@triton.jit
def _leaves(weights, ranks, run, keeps, index, matrices, vectors, size, split, total, BLOCK: tl.constexpr):
    """Arranged entry ← its weight where the model keeps it, else 0."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    source = tl.load(index + at, mask=inside, other=0)
    model, parameter = source // size, source % size
    of = tl.load(run + model, mask=inside, other=0) * size + parameter
    kept = tl.load(ranks + of, mask=inside, other=0) < tl.load(keeps + model, mask=inside, other=0)
    value = tl.load(weights + of, mask=inside & kept, other=0.0)
    tl.store(matrices + at, value.to(matrices.dtype.element_ty), mask=at < split)
    tl.store(vectors + at - split, value, mask=inside & (at >= split))


@triton.jit
def _gradients(matrices, vectors, inverse, ranks, run, keeps, gradients, bad, size, split, BLOCK: tl.constexpr):
    """Flat entry ← its arranged gradient where the model keeps it, else 0; and whether any was not finite."""
    model = tl.program_id(1)
    parameter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = parameter < size
    start = model.to(tl.int64) * size
    at = tl.load(inverse + start + parameter, mask=inside, other=0)
    value = tl.load(matrices + at, mask=inside & (at < split), other=0.0).to(tl.float32)
    value += tl.load(vectors + at - split, mask=inside & (at >= split), other=0.0)
    finite = tl.abs(value) < float("inf")
    tl.store(bad + model * tl.num_programs(0) + tl.program_id(0), tl.sum((~finite).to(tl.int32), axis=0))
    kept = tl.load(ranks + tl.load(run + model) * size + parameter, mask=inside, other=0) < tl.load(keeps + model)
    tl.store(gradients + start + parameter, tl.where(kept, value, 0.0), mask=inside)


class KernelPruning:
    """:class:`~fedgap.learning.engine.pruning.Pruning` for a stack with an :class:`Arrangement`, in float32."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement

    def leaves(self, given: PassInput, shape: Shape) -> tuple[dict[str, Tensor], Tensor]:
        """See :class:`Pruning`; the masks are found again from ``keeps``, which is cheaper than keeping them."""
        models, size = len(shape.run), given.weights.shape[1]
        index, _ = self.arrangement.index(models, given.weights.device)
        split, total = models * self.arrangement.matrix_size, models * size
        matrices = torch.empty(split, dtype=self.arrangement.dtype, device=index.device)
        vectors = torch.empty(total - split, device=index.device)
        _leaves[triton.cdiv(total, _BLOCK),](given.weights, given.ranks, given.run, given.keeps, index, matrices,
                                             vectors, size, split, total, BLOCK=_BLOCK)
        return self.arrangement.views(matrices, vectors, models), given.keeps

    def gradients(self, by_leaf: Sequence[Tensor], given: PassInput, kept: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Pruning`."""
        models, size = len(kept), given.weights.shape[1]
        matrices, vectors = self.arrangement.flat(by_leaf)
        _, inverse = self.arrangement.index(models, matrices.device)
        gradients = torch.empty(models, size, device=matrices.device)
        blocks = triton.cdiv(size, _BLOCK)
        bad = torch.empty(models, blocks, dtype=torch.int32, device=matrices.device)
        _gradients[blocks, models](matrices, vectors, inverse, given.ranks, given.run, kept, gradients, bad, size,
                                   matrices.numel(), BLOCK=_BLOCK)
        return gradients, bad.sum(1) == 0
