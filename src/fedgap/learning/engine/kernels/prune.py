# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Masking and rearranging in one GPU kernel: a stack's weights are written once, and its gradients are read once while
they are summed.

A kernel works through the entries of one rearranged model; see
:meth:`~fedgap.learning.engine.arrange.Arrangement.table`. A *program* is one instance of a kernel; its second grid
index is its run."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgap.learning.engine.arrange import Arrangement, Leaves
from fedgap.learning.engine.kernels.loss import cross_entropy
from fedgap.learning.engine.pruned_models import PassInput, Shape, Sums

_TILE = {"AT_ONCE": 2, "BLOCK": 256}
"""Models that a program processes at once, and its number of entries. Both are small, for many parallel programs."""


@triton.jit
def _entries(table, size, BLOCK: tl.constexpr):
    """This program's entries: their numbers, a mask of those that exist, the weights they belong to, and the first
    entry and the size of their tensors."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < size
    parameter = tl.load(table + entry, mask=inside, other=0)
    first = tl.load(table + size + entry, mask=inside, other=0)
    return entry, inside, parameter, first, tl.load(table + 2 * size + entry, mask=inside, other=0)


@triton.jit
def _of_run(run, models, MODELS: tl.constexpr):
    """The numbers of all models, a mask of those in this program's run, and the first and last (exclusive) of these."""
    model = tl.arange(0, MODELS)
    owner = tl.load(run + model, mask=model < models, other=-1)
    mine = owner == tl.program_id(1)
    first = tl.sum(((owner >= 0) & (owner < tl.program_id(1))).to(tl.int32), axis=0)
    return model, mine, first, first + tl.sum(mine.to(tl.int32), axis=0)


@triton.jit
def _of_run_entries(table, ranks, models, size, BLOCK: tl.constexpr):
    """This program's entries of its run: a mask of those that exist, their weights, the positions of these among all
    runs' weights, their ranks, their addresses in the first model, and the distance to the next model's."""
    entry, inside, parameter, first, stride = _entries(table, size, BLOCK)
    of = tl.program_id(1).to(tl.int64) * size + parameter
    return (inside, parameter, of, tl.load(ranks + of, mask=inside, other=0), entry + (models - 1) * first, stride)


@triton.jit
def _some(first, stop, keeps, at, stride, inside, AT_ONCE: tl.constexpr):
    """The next ``AT_ONCE`` models, as a column: their numbers, how many weights they keep, the addresses of their
    entries, and a mask of those that exist."""
    model = first + tl.arange(0, AT_ONCE)[:, None]
    keep = tl.load(keeps + model, mask=model < stop, other=0)
    return model, keep, at[None, :] + model * stride[None, :], (model < stop) & inside[None, :]


@triton.jit
def _leaves(weights, ranks, run, keeps, table, matrices, vectors, bad, size, split, models, MODELS: tl.constexpr,
            AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """Write the pruned weights of one run's models for some entries: the weight if the model keeps it, else 0. Also
    sets ``bad`` to 0."""
    model, mine, start, stop = _of_run(run, models, MODELS)
    inside, _parameter, of, rank, at, stride = _of_run_entries(table, ranks, models, size, BLOCK)
    weight = tl.load(weights + of, mask=inside, other=0.0)
    for first in range(start, stop, AT_ONCE):
        _model, keep, to, there = _some(first, stop, keeps, at, stride, inside, AT_ONCE)
        value = tl.where(rank[None, :] < keep, weight[None, :], 0.0)
        tl.store(matrices + to, value.to(matrices.dtype.element_ty), mask=there & (to < split))
        tl.store(vectors + to - split, value, mask=there & (to >= split))
    if tl.program_id(0) == 0:
        tl.store(bad + model, 0, mask=mine)


@triton.jit
def _masked(matrices, vectors, at, split, inside, rank, keep):
    """A model's gradient, unmasked and masked."""
    value = tl.load(matrices + at, mask=inside & (at < split), other=0.0).to(tl.float32)
    value += tl.load(vectors + at - split, mask=inside & (at >= split), other=0.0)
    return value, tl.where(rank < keep, value, 0.0)


@triton.jit
def _sum(matrices, vectors, table, ranks, run, keeps, bad, sums, each, size, split, models, EACH: tl.constexpr,
         MODELS: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the masked gradients of one run's models for some entries. A model with an entry that is not finite is marked
    ``bad``."""
    _, _, start, stop = _of_run(run, models, MODELS)
    inside, parameter, of, rank, at, stride = _of_run_entries(table, ranks, models, size, BLOCK)
    total = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for first in range(start, stop, AT_ONCE):
        model, keep, to, there = _some(first, stop, keeps, at, stride, inside, AT_ONCE)
        value, masked = _masked(matrices, vectors, to, split, there, rank[None, :], keep)
        tl.store(bad + model + tl.zeros((AT_ONCE, BLOCK), tl.int32), 1, mask=~(tl.abs(value) < float("inf")))
        total += masked
        if EACH:
            tl.store(each + model.to(tl.int64) * size + parameter[None, :], masked, mask=there)
    tl.store(sums + of, tl.sum(total, axis=0), mask=inside)


@triton.jit
def _settle(matrices, vectors, table, ranks, run, keeps, bad, losses, sums, accepted, kept, finite, size, split, models,
            clients, MODELS: tl.constexpr, BLOCK: tl.constexpr):
    """Decide which models count: those that are not ``bad`` and have finite losses. If some do not, compute the run's
    sum again without them."""
    model, mine, start, stop = _of_run(run, models, MODELS)
    wrong = tl.load(bad + model, mask=mine, other=0)
    for client in range(clients):
        loss = tl.load(losses + model * clients + client, mask=mine, other=0.0)
        wrong |= (~(tl.abs(loss) < float("inf"))).to(tl.int32)
    fine = mine & (wrong == 0)
    count = tl.sum(fine.to(tl.int32), axis=0)
    if tl.program_id(0) == 0:
        tl.store(finite + model, fine.to(tl.uint8), mask=mine)
        tl.store(accepted + tl.program_id(1), count.to(tl.int64) * clients)
        keep = tl.load(keeps + model, mask=fine, other=0)
        tl.store(kept + tl.program_id(1), tl.max(keep, axis=0))
    if count < stop - start:
        inside, _parameter, of, rank, at, stride = _of_run_entries(table, ranks, models, size, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for one in range(start, stop):
            if tl.sum((fine & (model == one)).to(tl.int32), axis=0) > 0:
                _, masked = _masked(matrices, vectors, at + one * stride, split, inside, rank, tl.load(keeps + one))
                total += masked
        tl.store(sums + of, total, mask=inside)


class KernelPruning:
    """:class:`~fedgap.learning.engine.pruned_models.PruningSteps` with Triton kernels, for a stack with an
    :class:`Arrangement`; float32 only."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement

    def leaves(self, given: PassInput, shape: Shape) -> tuple[Leaves, Tensor]:
        """See :class:`PruningSteps`. The second value marks models whose gradient is not finite (none so far).

        Masks are computed again from ``keeps`` when they are needed, which is cheaper than storing them."""
        models, (runs, size) = len(shape.run), given.weights.shape
        device = given.weights.device
        split = models * self.arrangement.matrix_size
        matrices = torch.empty(split, dtype=self.arrangement.dtype, device=device)
        vectors = torch.empty(models * size - split, device=device)
        bad = torch.empty(models, dtype=torch.int32, device=device)
        _leaves[triton.cdiv(size, _TILE["BLOCK"]), runs](
            given.weights, given.ranks, given.run, given.keeps, self.arrangement.table(device), matrices, vectors, bad,
            size, split, models, MODELS=triton.next_power_of_2(models), **_TILE)
        return Leaves(self.arrangement, matrices, vectors, models), bad

    def spread(self, weights: Tensor) -> Leaves:
        """See :class:`PruningSteps`."""
        models = len(weights)
        index, _ = self.arrangement.index(models, weights.device)
        layered, split = weights.reshape(-1).index_select(0, index), models * self.arrangement.matrix_size
        return Leaves(self.arrangement, layered[:split].to(self.arrangement.dtype), layered[split:], models)

    def gradients(self, logits: Tensor, leaves: dict[str, Tensor], labels: Tensor,
                  clients: int) -> tuple[Tensor, Tensor]:
        """See :class:`PruningSteps`."""
        losses, matrices, vectors = _backward(logits, leaves, labels, clients)
        _, inverse = self.arrangement.index(len(logits), logits.device)
        return losses, torch.cat([matrices.to(vectors.dtype), vectors]).index_select(0, inverse).view(len(logits), -1)

    def sums(self, logits: Tensor, leaves: dict[str, Tensor], given: PassInput, shape: Shape, of: Tensor) -> Sums:
        """See :class:`PruningSteps`."""
        losses, matrices, vectors = _backward(logits, leaves, given.labels, shape.clients)
        models, (runs, size) = len(shape.run), given.weights.shape
        device = given.weights.device
        total = torch.empty(runs, size, device=device)
        each = torch.empty(models if shape.each else 0, size, device=device)
        accepted = torch.empty(runs, dtype=torch.int64, device=device)
        kept = torch.empty(runs, dtype=torch.int32, device=device)
        finite = torch.empty(models, dtype=torch.bool, device=device)
        common = (matrices, vectors, self.arrangement.table(device), given.ranks, given.run, given.keeps, of)
        grid, block = (triton.cdiv(size, _TILE["BLOCK"]), runs), triton.next_power_of_2(models)
        _sum[grid](*common, total, each if shape.each else total, size, matrices.numel(), models, EACH=shape.each,
                   MODELS=block, **_TILE)
        _settle[grid](*common, losses, total, accepted, kept, finite.view(torch.uint8), size, matrices.numel(), models,
                      shape.clients, MODELS=block, BLOCK=_TILE["BLOCK"])
        return Sums(total, accepted, kept, losses, finite, each)


def _backward(logits: Tensor, leaves: dict[str, Tensor], labels: Tensor,
              clients: int) -> tuple[Tensor, Tensor, Tensor]:
    """The clients' mean losses (G, n), and the gradients of matrices and of vectors in rearranged memory."""
    assert isinstance(leaves, Leaves)
    losses, towards = cross_entropy(logits.detach(), labels, clients)
    by_leaf = torch.autograd.grad(logits, list(leaves.values()), towards, materialize_grads=True, allow_unused=True)
    return losses, *leaves.flat(by_leaf)
