# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""A valid 5×5 convolution, its bias, 2×2 max-pooling and ReLU in one, for a stack of models.

LeNet-5's layers are so small that a round is all launches and intermediate results. Here a pooled pixel's four
candidates are computed together: all see parts of one 6×6 window of the input, so that the window (36·C entries) times
the kernel, shifted to the pooling window's four corners (4·O columns), is one matrix product. Only the maximum is
written, with the corner it came from, or 4 where ReLU lets no gradient through. Activations are (G, S, H, W, C),
kernels (G, O, 5, 5, C).
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgap.learning.engine.kernels.rounding import operand


class Tile(NamedTuple):
    """How a product is cut: pooled pixels and window entries of a program (at once), and its warps."""

    pixels: int
    entries: int
    warps: int

    @property
    def options(self) -> dict[str, int]:
        """As a kernel wants them. One stage: loops are short, and shared memory is better spent on more programs."""
        return {"BLOCK": self.pixels, "ENTRIES": self.entries, "num_warps": self.warps, "num_stages": 1}


FORWARD = {1: Tile(128, 16, 4), 6: Tile(64, 32, 4)}
"""By the input's channels, as they were fastest on an H200 with six runs stacked; others as :data:`OTHERS`."""
OTHERS = Tile(64, 64, 4)
"""And in all gradients."""
PROGRAMS = 512
"""Of the kernels' gradient: where models are fewer, stretches of pixels are summed apart from each other."""


@triton.jit
def _window(pixel, entry, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INSIDE: tl.constexpr):
    """Offsets, within a model's activations, of a pooled pixel's window and of an entry within a window."""
    across: tl.constexpr = (WIDTH - 4) // 2
    down: tl.constexpr = (HEIGHT - 4) // 2
    sample, rest = pixel // (across * down), pixel % (across * down)
    corner = ((sample * HEIGHT + 2 * (rest // across)) * WIDTH + 2 * (rest % across)) * INSIDE
    return corner, (entry // (6 * INSIDE)) * (WIDTH * INSIDE) + entry % (6 * INSIDE)


@triton.jit
def _kernels(weight, model, entry, column, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """Addresses of the shifted kernels' values at (entry, column = corner·COLUMNS + channel), and where there is
    one."""
    corner, out = column // COLUMNS, column % COLUMNS
    row = entry // (6 * INSIDE) - corner // 2
    step = (entry // INSIDE) % 6 - corner % 2
    there = (row >= 0) & (row < 5) & (step >= 0) & (step < 5) & (out < OUTSIDE)
    return weight + (model * OUTSIDE + out) * (25 * INSIDE) + (row * 5 + step) * INSIDE + entry % INSIDE, there


@triton.jit
def _by_corner(place, gradient, pixel, valid, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient (pixels, corner·COLUMNS + channel) before pooling and ReLU: it goes to the corner that won."""
    out = tl.arange(0, COLUMNS)
    of = pixel[:, None] * OUTSIDE + out[None, :]
    inside = valid[:, None] & (out < OUTSIDE)[None, :]
    g = tl.load(gradient + of, mask=inside, other=0.0)
    won = tl.load(place + of, mask=inside, other=4)[:, None, :] == tl.arange(0, 4)[None, :, None]
    return tl.reshape(tl.where(won, g[:, None, :], 0.0).to(g.dtype), (BLOCK, 4 * COLUMNS))


@triton.jit
def _forward(x, weight, bias, z, place, pixels, model_size, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
             INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
             ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """One model, a block of pooled pixels."""
    model = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < pixels
    column = tl.arange(0, 4 * COLUMNS)
    total = tl.zeros((BLOCK, 4 * COLUMNS), tl.float32)
    for first in range(0, 36 * INSIDE, ENTRIES):
        entry = first + tl.arange(0, ENTRIES)
        window, step = _window(pixel, entry, HEIGHT, WIDTH, INSIDE)
        tile = tl.load(x + model * model_size + window[:, None] + step[None, :],
                       mask=valid[:, None] & (entry < 36 * INSIDE)[None, :], other=0.0)
        address, there = _kernels(weight, model, entry[:, None], column[None, :], INSIDE, OUTSIDE, COLUMNS)
        kernel = tl.load(address, mask=there, other=0.0)
        total = tl.dot(operand(tile, PRECISION), operand(kernel, PRECISION), total, input_precision=PRECISION)
    corners = tl.reshape(total, (BLOCK, 4, COLUMNS))
    best, where = tl.max(corners, axis=1, return_indices=True)  # the first of equals, as in torch
    lost = tl.sum((corners != corners).to(tl.int32), axis=1) > 0
    out = tl.arange(0, COLUMNS)
    best += tl.load(bias + model * OUTSIDE + out, mask=out < OUTSIDE, other=0.0).to(tl.float32)[None, :]
    best = tl.where(lost | (best != best), float("nan"), tl.maximum(best, 0.0))
    to = (model * pixels + pixel)[:, None] * OUTSIDE + out[None, :]
    inside = valid[:, None] & (out < OUTSIDE)[None, :]
    tl.store(z + to, best.to(z.dtype.element_ty), mask=inside)
    tl.store(place + to, tl.where(best > 0.0, where, 4).to(tl.int8), mask=inside)


@triton.jit
def _by_window(x, place, gradient, sums, pixels, model_size, each, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
               INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
               ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """One model, some window entries, a stretch of pixels: Σ window·g by corner. Entry 36·C is 1, for the bias."""
    stretch, model = tl.program_id(0), tl.program_id(1)
    entry = tl.program_id(2) * ENTRIES + tl.arange(0, ENTRIES)
    column = tl.arange(0, 4 * COLUMNS)
    total = tl.zeros((ENTRIES, 4 * COLUMNS), tl.float32)
    stop = tl.minimum((stretch + 1) * each, pixels)
    for at in range(stretch * each, stop, BLOCK):
        pixel = at + tl.arange(0, BLOCK)
        valid = pixel < stop
        window, step = _window(pixel, entry, HEIGHT, WIDTH, INSIDE)
        tile = tl.load(x + model * model_size + window[:, None] + step[None, :],
                       mask=valid[:, None] & (entry < 36 * INSIDE)[None, :], other=0.0)
        tile = tl.where((entry == 36 * INSIDE)[None, :], 1.0, tile).to(x.dtype.element_ty)
        g = _by_corner(place, gradient, model * pixels + pixel, valid, OUTSIDE, COLUMNS, BLOCK)
        total = tl.dot(tl.trans(operand(tile, PRECISION)), operand(g, PRECISION), total, input_precision=PRECISION)
    to = (stretch * tl.num_programs(1) + model) * (36 * INSIDE + 1) + entry
    tl.store(sums + to[:, None] * (4 * COLUMNS) + column[None, :], total, mask=(entry <= 36 * INSIDE)[:, None])


@triton.jit
def _combine(sums, to_weight, to_bias, stretches, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr,
             BLOCK: tl.constexpr):
    """Σ over stretches and corners: the kernels' gradient (O, 5, 5, C), and after it the biases' (O,).

    Neighbours in ``at`` are channels of one kernel entry, which are neighbours in ``sums``; entry 25·C is the bias.
    """
    model = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    out, entry = at % OUTSIDE, at // OUTSIDE
    is_bias = entry == 25 * INSIDE
    inside = entry <= 25 * INSIDE
    tap = entry // INSIDE
    total = tl.zeros((BLOCK,), tl.float32)
    for stretch in range(stretches):
        start = sums + (stretch * tl.num_programs(1) + model) * (36 * INSIDE + 1) * (4 * COLUMNS) + out
        for corner in tl.static_range(4):
            of = ((tap // 5 + corner // 2) * 6 + tap % 5 + corner % 2) * INSIDE + entry % INSIDE
            of = tl.where(is_bias, 36 * INSIDE, of)
            total += tl.load(start + of * (4 * COLUMNS) + corner * COLUMNS, mask=inside, other=0.0)
    tl.store(to_weight + (model * OUTSIDE + out) * (25 * INSIDE) + entry, total.to(to_weight.dtype.element_ty),
             mask=inside & ~is_bias)
    tl.store(to_bias + model * OUTSIDE + out, total.to(to_bias.dtype.element_ty), mask=is_bias)


@triton.jit
def _windows(weight, place, gradient, windows, pixels, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
             COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """One model, a block of pooled pixels, some window entries: what each pixel gives back to its window."""
    model = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry = tl.program_id(2) * ENTRIES + tl.arange(0, ENTRIES)
    column = tl.arange(0, 4 * COLUMNS)
    g = _by_corner(place, gradient, model * pixels + pixel, pixel < pixels, OUTSIDE, COLUMNS, BLOCK)
    address, there = _kernels(weight, model, entry[None, :], column[:, None], INSIDE, OUTSIDE, COLUMNS)
    kernel = tl.load(address, mask=there & (entry < 36 * INSIDE)[None, :], other=0.0)
    result = tl.dot(operand(g, PRECISION), operand(kernel, PRECISION), input_precision=PRECISION)
    to = (model * pixels + pixel)[:, None] * (36 * INSIDE) + entry[None, :]
    tl.store(windows + to, result, mask=(pixel < pixels)[:, None] & (entry < 36 * INSIDE)[None, :])


@triton.jit
def _gather(windows, to_x, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INSIDE: tl.constexpr,
            BLOCK: tl.constexpr):
    """An input entry's gradient: the sum over the (at most nine) windows that see it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    across: tl.constexpr = (WIDTH - 4) // 2
    down: tl.constexpr = (HEIGHT - 4) // 2
    channel, pixel = at % INSIDE, at // INSIDE
    image, row, step = pixel // (HEIGHT * WIDTH), (pixel // WIDTH) % HEIGHT, pixel % WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for up in tl.static_range(3):
        for back in tl.static_range(3):
            y, x = row // 2 - up, step // 2 - back
            seen = (at < count) & (y >= 0) & (y < down) & (x >= 0) & (x < across)
            entry = ((row - 2 * y) * 6 + step - 2 * x) * INSIDE + channel
            total += tl.load(windows + ((image * down + y) * across + x) * (36 * INSIDE) + entry, mask=seen, other=0.0)
    tl.store(to_x + at, total.to(to_x.dtype.element_ty), mask=at < count)


class ConvolvePool(torch.autograd.Function):
    """relu(max_pool(conv(x) + bias)) of x (G, S, H, W, C), H and W even, kernels (G, O, C, 5, 5) channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See the class."""
        models, samples, height, width, inside = x.shape
        outside, down, across = weight.shape[1], (height - 4) // 2, (width - 4) // 2
        pixels = samples * down * across
        ctx.channels = {"INSIDE": inside, "OUTSIDE": outside, "COLUMNS": max(4, int(triton.next_power_of_2(outside)))}
        ctx.image = {"HEIGHT": height, "WIDTH": width}
        ctx.precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
        tile = FORWARD.get(inside, OTHERS)
        z = torch.empty(models, samples, down, across, outside, dtype=x.dtype, device=x.device)
        place = torch.empty(z.shape, dtype=torch.int8, device=x.device)
        _forward[triton.cdiv(pixels, tile.pixels), models](
            x, weight, bias, z, place, pixels, samples * height * width * inside, **ctx.image, **ctx.channels,
            **tile.options, PRECISION=ctx.precision)
        ctx.save_for_backward(x, weight, bias, place)
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """See the class."""
        x, weight, bias, place = ctx.saved_tensors
        gradient = gradient.contiguous()
        models, samples, height, width, inside = x.shape
        outside, pixels = place.shape[-1], samples * place.shape[2] * place.shape[3]
        tile, columns = OTHERS, ctx.channels["COLUMNS"]
        parts = triton.cdiv(36 * inside + 1, tile.entries)
        stretches = min(max(1, PROGRAMS // (models * parts)), triton.cdiv(pixels, tile.pixels))
        each = triton.cdiv(triton.cdiv(pixels, stretches), tile.pixels) * tile.pixels
        stretches = triton.cdiv(pixels, each)
        sums = torch.empty(stretches, models, 36 * inside + 1, 4 * columns, device=x.device)
        _by_window[stretches, models, parts](
            x, place, gradient, sums, pixels, samples * height * width * inside, each, **ctx.image, **ctx.channels,
            **tile.options, PRECISION=ctx.precision)
        to_weight = torch.empty(models, outside, 5, 5, inside, dtype=weight.dtype, device=x.device)
        to_bias = torch.empty_like(bias)
        _combine[triton.cdiv(outside * (25 * inside + 1), 128), models](sums, to_weight, to_bias, stretches,
                                                                        **ctx.channels, BLOCK=128)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = torch.empty_like(x)
            windows = torch.empty(models, pixels, 36 * inside, device=x.device)
            _windows[triton.cdiv(pixels, tile.pixels), models, triton.cdiv(36 * inside, tile.entries)](
                weight, place, gradient, windows, pixels, **ctx.channels, **tile.options, PRECISION=ctx.precision)
            _gather[triton.cdiv(x.numel(), 256),](windows, to_x, x.numel(), **ctx.image, INSIDE=inside, BLOCK=256)
        return to_x, to_weight.permute(0, 1, 4, 2, 3), to_bias
