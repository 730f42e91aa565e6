# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""BatchNorm, an optional addition, and ReLU in one GPU kernel.

Between two convolutions a residual network normalises, adds its shortcut and rectifies. As separate operations these
read and write each activation five times forward and seven times backward, and this memory traffic, not arithmetic,
takes most of a round with small images. Here the forward pass reads each activation twice and writes it once.

An activation (S, C, H, W), channels last, is a matrix of P = S·H·W rows and C columns; a column is one channel of one
client's model, so its statistics are that client's. A *program* is one instance of a kernel, and a *stretch* is the
range of rows that it processes."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILES = {"ROWS": 128, "COLUMNS": 32, "num_warps": 4}
"""Rows and columns that a program loads at once, and its warps."""
STRETCHES = 64
"""The largest number of programs that share the sums of a column."""
PROGRAMS = 528
"""Number of programs at the same time: four per multiprocessor of an H200."""


@triton.jit
def _stretch(rows, rows_each):
    """The first row of this program's stretch, and the row after its last."""
    start = tl.program_id(1) * rows_each
    return start, tl.minimum(start + rows_each, rows)


@triton.jit
def _tile(at, stop, column, columns, inside, ROWS: tl.constexpr):
    """For the rows from ``at`` on: a mask of the entries that exist, and their offsets."""
    row = at + tl.arange(0, ROWS)
    return (row[:, None] < stop) & inside[None, :], row[:, None].to(tl.int64) * columns + column[None, :]


@triton.jit
def _sums_of(sums, stretches, column, columns, inside, STRETCHES: tl.constexpr):
    """Add up the two sums of each column over all stretches."""
    stretch = tl.arange(0, STRETCHES)
    parts = sums + stretch[:, None] * 2 * columns + column[None, :]
    there = (stretch[:, None] < stretches) & inside[None, :]
    one = tl.sum(tl.load(parts, mask=there, other=0.0), axis=0)
    two = tl.sum(tl.load(parts + columns, mask=there, other=0.0), axis=0)
    return one, two


@triton.jit
def _moments(x, sums, rows, columns, rows_each, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute Σ(x − x₀) and Σ(x − x₀)² over a stretch of rows. Subtracting x₀, the column's first entry, keeps the
    variance accurate."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    first = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    start, stop = _stretch(rows, rows_each)
    one = tl.zeros((COLUMNS,), tl.float32)
    two = tl.zeros((COLUMNS,), tl.float32)
    for at in range(start, stop, ROWS):
        here, where = _tile(at, stop, column, columns, inside, ROWS)
        tile = tl.load(x + where, mask=here, other=0.0).to(tl.float32)
        shifted = tl.where(here, tile - first[None, :], 0.0)
        one += tl.sum(shifted, axis=0)
        two += tl.sum(shifted * shifted, axis=0)
    out = sums + tl.program_id(1) * 2 * columns + column
    tl.store(out, one, mask=inside)
    tl.store(out + columns, two, mask=inside)


@triton.jit
def _rectified(x, factor, offset, residual, z, column, inside, rows, columns, rows_each, RESIDUAL: tl.constexpr,
               KEEP_NAN: tl.constexpr, ROWS: tl.constexpr):
    """Write z = relu(factor·x + offset [+ residual]) for the program's stretch of rows. ``KEEP_NAN`` says whether NaN
    stays NaN."""
    start, stop = _stretch(rows, rows_each)
    for at in range(start, stop, ROWS):
        here, where = _tile(at, stop, column, columns, inside, ROWS)
        y = tl.load(x + where, mask=here, other=0.0).to(tl.float32) * factor[None, :] + offset[None, :]
        if RESIDUAL:
            # Round after normalising and before adding, as separate bfloat16 kernels would.
            y = y.to(z.dtype.element_ty).to(tl.float32) + tl.load(residual + where, mask=here, other=0.0).to(tl.float32)
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) if KEEP_NAN else tl.maximum(y, 0.0)
        tl.store(z + where, y.to(z.dtype.element_ty), mask=here)


@triton.jit
def _normalise(x, weight, bias, residual, sums, stretches, z, saved, statistics, rows, columns, rows_each, epsilon,
               RESIDUAL: tl.constexpr, STRETCHES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write z = relu(factor·x + offset [+ residual]), where factor = weight/√(variance + ε) and offset = bias −
    factor·mean."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    one, two = _sums_of(sums, stretches, column, columns, inside, STRETCHES)
    shift = one / rows
    mean = tl.load(x + column, mask=inside, other=0.0).to(tl.float32) + shift
    variance = tl.maximum(two / rows - shift * shift, 0.0)
    scale = 1.0 / tl.sqrt(variance + epsilon)
    factor = tl.load(weight + column, mask=inside, other=0.0) * scale
    offset = tl.load(bias + column, mask=inside, other=0.0) - mean * factor
    if tl.program_id(1) == 0:
        tl.store(saved + column, mean, mask=inside)
        tl.store(saved + columns + column, scale, mask=inside)
        tl.store(statistics + column, mean, mask=inside)
        tl.store(statistics + columns + column, variance * (rows / (rows - 1.0)), mask=inside)
    _rectified(x, factor, offset, residual, z, column, inside, rows, columns, rows_each, RESIDUAL, False, ROWS)


@triton.jit
def _gradient_sums(x, z, gradient, weight, bias, saved, sums, rows, columns, rows_each, RESIDUAL: tl.constexpr,
                   ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute Σg and Σg·x̂ over a stretch of rows, where g is the gradient where z > 0 (else 0) and x̂ the normalised
    input."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    mean = tl.load(saved + column, mask=inside, other=0.0)
    scale = tl.load(saved + columns + column, mask=inside, other=0.0)
    factor = tl.load(weight + column, mask=inside, other=0.0) * scale
    offset = tl.load(bias + column, mask=inside, other=0.0) - mean * factor
    start, stop = _stretch(rows, rows_each)
    one = tl.zeros((COLUMNS,), tl.float32)
    two = tl.zeros((COLUMNS,), tl.float32)
    for at in range(start, stop, ROWS):
        here, where = _tile(at, stop, column, columns, inside, ROWS)
        value = tl.load(x + where, mask=here, other=0.0).to(tl.float32)
        g = tl.load(gradient + where, mask=here, other=0.0).to(tl.float32)
        if RESIDUAL:
            g = tl.where(tl.load(z + where, mask=here, other=0.0).to(tl.float32) > 0.0, g, 0.0)
        else:  # computing the sign of z from x is cheaper than reading z
            g = tl.where(value * factor[None, :] + offset[None, :] > 0.0, g, 0.0)
        one += tl.sum(g, axis=0)
        two += tl.sum(g * (value - mean[None, :]) * scale[None, :], axis=0)
    out = sums + tl.program_id(1) * 2 * columns + column
    tl.store(out, one, mask=inside)
    tl.store(out + columns, two, mask=inside)


@triton.jit
def _gradients(x, z, gradient, weight, bias, saved, sums, stretches, to_x, to_residual, to_affine, rows, columns,
               rows_each, RESIDUAL: tl.constexpr, STRETCHES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the gradients: factor·(g − mean(g) − x̂·mean(g·x̂)) of x, g of the residual, Σg·x̂ and Σg of weight and
    bias."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    mean = tl.load(saved + column, mask=inside, other=0.0)
    scale = tl.load(saved + columns + column, mask=inside, other=0.0)
    one, two = _sums_of(sums, stretches, column, columns, inside, STRETCHES)
    if tl.program_id(1) == 0:
        tl.store(to_affine + column, two, mask=inside)
        tl.store(to_affine + columns + column, one, mask=inside)
    factor = tl.load(weight + column, mask=inside, other=0.0) * scale
    offset = tl.load(bias + column, mask=inside, other=0.0) - mean * factor
    one = one / rows
    two = two / rows
    start, stop = _stretch(rows, rows_each)
    for at in range(start, stop, ROWS):
        here, where = _tile(at, stop, column, columns, inside, ROWS)
        value = tl.load(x + where, mask=here, other=0.0).to(tl.float32)
        g = tl.load(gradient + where, mask=here, other=0.0).to(tl.float32)
        if RESIDUAL:
            g = tl.where(tl.load(z + where, mask=here, other=0.0).to(tl.float32) > 0.0, g, 0.0)
            tl.store(to_residual + where, g.to(to_residual.dtype.element_ty), mask=here)
        else:
            g = tl.where(value * factor[None, :] + offset[None, :] > 0.0, g, 0.0)
        normal = (value - mean[None, :]) * scale[None, :]
        result = factor[None, :] * (g - one[None, :] - normal * two[None, :])
        tl.store(to_x + where, result.to(to_x.dtype.element_ty), mask=here)


@triton.jit
def _scaled(x, factor, offset, residual, z, rows, columns, rows_each, RESIDUAL: tl.constexpr, ROWS: tl.constexpr,
            COLUMNS: tl.constexpr):
    """Write z = relu(factor·x + offset [+ residual]) with given factor and offset."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    scale = tl.load(factor + column, mask=inside, other=0.0)
    shift = tl.load(offset + column, mask=inside, other=0.0)
    # NaN must stay NaN, or a model that has diverged would seem to work.
    _rectified(x, scale, shift, residual, z, column, inside, rows, columns, rows_each, RESIDUAL, True, ROWS)


def rectify(x: Tensor, factor: Tensor, offset: Tensor, residual: Tensor | None) -> Tensor:
    """relu(factor·x + offset [+ residual]) of x (S, C, H, W), channels last, without gradients.

    This is BatchNorm with running statistics, which are part of factor and offset."""
    columns, rows, z = x.shape[1], x.numel() // x.shape[1], torch.empty_like(x)
    grid, each = _division(x, 4 * STRETCHES)
    _scaled[grid](x, factor, offset, x if residual is None else residual, z, rows, columns, each,
                  RESIDUAL=residual is not None, **TILES)
    return z


def _division(x: Tensor, stretches: int) -> tuple[tuple[int, int], int]:
    """The grid (blocks of columns, stretches of rows), with at most ``stretches`` stretches, and the number of rows per
    stretch."""
    columns, rows = x.shape[1], x.numel() // x.shape[1]
    blocks = triton.cdiv(columns, TILES["COLUMNS"])
    wanted = max(1, min(stretches, PROGRAMS // blocks))
    rows_each = triton.cdiv(triton.cdiv(rows, wanted), TILES["ROWS"]) * TILES["ROWS"]
    return (blocks, triton.cdiv(rows, rows_each)), rows_each


class NormaliseRectify(torch.autograd.Function):
    """relu(batch_norm(x) [+ residual]) of x (S, C, H, W), channels last, with the batch's statistics.

    Returns z and the statistics (2, C): mean and unbiased variance of each channel, which take no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None,
                epsilon: float) -> tuple[Tensor, Tensor]:
        """Compute z and the statistics; see the class docstring."""
        columns, rows = x.shape[1], x.numel() // x.shape[1]
        grid, each = _division(x, STRETCHES)
        wide, few = _division(x, 4 * STRETCHES)
        sums = torch.empty(grid[1], 2, columns, device=x.device)
        saved, statistics = torch.empty(2, columns, device=x.device), torch.empty(2, columns, device=x.device)
        z = torch.empty_like(x)
        _moments[grid](x, sums, rows, columns, each, **TILES)
        _normalise[wide](x, weight, bias, x if residual is None else residual, sums, grid[1], z, saved, statistics,
                         rows, columns, few, epsilon, RESIDUAL=residual is not None,
                         STRETCHES=triton.next_power_of_2(grid[1]), **TILES)
        ctx.save_for_backward(x, z, weight, bias, saved)
        ctx.residual = residual is not None
        ctx.mark_non_differentiable(statistics)
        return z, statistics

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """Compute the gradients of x, weight, bias and residual."""
        x, z, weight, bias, saved = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        columns, rows = x.shape[1], x.numel() // x.shape[1]
        grid, each = _division(x, STRETCHES)
        wide, few = _division(x, 4 * STRETCHES)
        sums = torch.empty(grid[1], 2, columns, device=x.device)
        to_x, affine = torch.empty_like(x), torch.empty(2, columns, device=x.device)
        to_residual = torch.empty_like(x) if ctx.residual else None
        _gradient_sums[grid](x, z, gradient, weight, bias, saved, sums, rows, columns, each, RESIDUAL=ctx.residual,
                             **TILES)
        _gradients[wide](x, z, gradient, weight, bias, saved, sums, grid[1], to_x,
                         x if to_residual is None else to_residual, affine, rows, columns, few, RESIDUAL=ctx.residual,
                         STRETCHES=triton.next_power_of_2(grid[1]), **TILES)
        return to_x, affine[0], affine[1], to_residual, None
