# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""A valid 5×5 convolution, its bias, 2×2 max-pooling and ReLU in one GPU kernel, for a stack of models.

LeNet-5's layers are so small that kernel launches and intermediate results take most of a round. Here the four
candidates of a pooled pixel are computed together: they all see parts of one 6×6 window of the input, so the window
(36·C entries) times the convolution kernel, shifted to the four corners of the pooling window (4·O columns), is one
matrix product. If there are few entries, two neighbouring pixels share a window of 6×8. Only the maximum is written,
with the corner it came from, or 4 where ReLU lets no gradient through. Activations are (G, S, H, W, C), kernels (G, O,
5, 5, C). Addresses within a model use 32 bits.

In the kernels, a *program* is one instance of a Triton kernel, an *entry* is a number of a window, and a *stretch* is a
range of windows that one program works through."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgap.learning.engine.kernels.float_rounding import operand


class Tile(NamedTuple):
    """How a matrix product is divided: ``across`` pooled pixels share a window; a program takes ``windows`` windows and
    ``entries`` window entries at once, and runs on ``warps`` warps."""

    across: int
    windows: int
    entries: int
    warps: int

    def options(self, width: int) -> dict[str, int]:
        """The tile as options of a kernel for images of this width.

        There is one pipeline stage, because loops are short, and shared memory is better spent on more programs."""
        across = self.across if (width - 4) // 2 % self.across == 0 else 1
        return {"ACROSS": across, "BLOCK": self.windows, "ENTRIES": self.entries, "num_warps": self.warps,
                "num_stages": 1}


Tiles = dict[tuple[int, int], Tile]
FORWARD: Tiles = {(1, 4): Tile(2, 64, 16, 4), (1, 2): Tile(2, 64, 16, 4), (6, 4): Tile(1, 64, 32, 4),
                  (6, 2): Tile(1, 64, 32, 4)}
"""Tiles of the forward pass, by (channels of the input, bytes per number): the fastest ones on an H200 with six stacked
runs. Other sizes use :data:`OTHERS`."""
KERNELS: Tiles = {(1, 4): Tile(2, 32, 64, 4), (1, 2): Tile(2, 32, 64, 4)}
"""The same for the gradient of the convolution kernels."""
INPUTS: Tiles = {(6, 2): Tile(2, 64, 64, 4)}
"""The same for the gradient of the input."""
OTHERS = Tile(1, 64, 64, 4)
PROGRAMS = 512
"""Approximate number of programs that compute a gradient. With many models, a program takes several window blocks."""
_AT_ONCE = 8
"""Number of stretches whose sums are read together."""


@triton.jit
def _window(window, entry, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INSIDE: tl.constexpr, ACROSS: tl.constexpr):
    """Offsets, within a model's activations, of a window and of an entry within the window."""
    across: tl.constexpr = (WIDTH - 4) // 2 // ACROSS
    down: tl.constexpr = (HEIGHT - 4) // 2
    row: tl.constexpr = (2 * ACROSS + 4) * INSIDE
    sample, rest = window // (across * down), window % (across * down)
    corner = ((sample * HEIGHT + 2 * (rest // across)) * WIDTH + 2 * ACROSS * (rest % across)) * INSIDE
    return corner, (entry // row) * (WIDTH * INSIDE) + entry % row


@triton.jit
def _kernels(weight, model, entry, column, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr,
             ACROSS: tl.constexpr):
    """Addresses of the shifted kernels' values at (entry, column = (pixel·4 + corner)·COLUMNS + channel), and a mask of
    those that exist."""
    width: tl.constexpr = (2 * ACROSS + 4) * INSIDE
    pixel, corner, out = column // (4 * COLUMNS), column // COLUMNS % 4, column % COLUMNS
    row = entry // width - corner // 2
    within = entry % width - (2 * pixel + corner % 2) * INSIDE
    there = (row >= 0) & (row < 5) & (within >= 0) & (within < 5 * INSIDE) & (out < OUTSIDE)
    return weight + (model * OUTSIDE + out) * (25 * INSIDE) + row * (5 * INSIDE) + within, there


@triton.jit
def _pooled(window, valid, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr):
    """Offsets of the windows' pooled pixels (window, pixel·COLUMNS + channel) within a model, and a mask of those that
    exist."""
    column = tl.arange(0, ACROSS * COLUMNS)
    pixel, out = column // COLUMNS, column % COLUMNS
    return (window * (ACROSS * OUTSIDE))[:, None] + (pixel * OUTSIDE + out)[None, :], (
        valid[:, None] & (out < OUTSIDE)[None, :])


@triton.jit
def _by_corner(place, gradient, window, valid, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
               BLOCK: tl.constexpr):
    """The gradient before pooling and ReLU, (windows, (pixel·4 + corner)·COLUMNS + channel): it goes to the corner that
    was the maximum."""
    of, inside = _pooled(window, valid, OUTSIDE, COLUMNS, ACROSS)
    g = tl.reshape(tl.load(gradient + of, mask=inside, other=0.0), (BLOCK, ACROSS, 1, COLUMNS))
    won = tl.reshape(tl.load(place + of, mask=inside, other=4), (BLOCK, ACROSS, 1, COLUMNS))
    won = won == tl.arange(0, 4)[None, None, :, None]
    return tl.reshape(tl.where(won, g, 0.0).to(g.dtype), (BLOCK, ACROSS * 4 * COLUMNS))


@triton.jit
def _forward(x, weight, bias, z, place, windows, model_size, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
             INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
             BLOCK: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """Forward pass of one model for a block of windows."""
    model = tl.program_id(1)
    x += model.to(tl.int64) * model_size
    window = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = window < windows
    column = tl.arange(0, ACROSS * 4 * COLUMNS)
    entries: tl.constexpr = 6 * (2 * ACROSS + 4) * INSIDE
    total = tl.zeros((BLOCK, ACROSS * 4 * COLUMNS), tl.float32)
    for first in range(0, entries, ENTRIES):
        entry = first + tl.arange(0, ENTRIES)
        corner, step = _window(window, entry, HEIGHT, WIDTH, INSIDE, ACROSS)
        tile = tl.load(x + corner[:, None] + step[None, :], mask=valid[:, None] & (entry < entries)[None, :], other=0.0)
        address, there = _kernels(weight, model, entry[:, None], column[None, :], INSIDE, OUTSIDE, COLUMNS, ACROSS)
        kernel = tl.load(address, mask=there, other=0.0)
        total = tl.dot(operand(tile, PRECISION), operand(kernel, PRECISION), total, input_precision=PRECISION)
    corners = tl.reshape(total, (BLOCK, ACROSS, 4, COLUMNS))
    best, where = tl.max(corners, axis=2, return_indices=True)  # the first of equals, as in torch
    lost = tl.sum((corners != corners).to(tl.int32), axis=2) > 0
    out = tl.arange(0, COLUMNS)
    best += tl.load(bias + model * OUTSIDE + out, mask=out < OUTSIDE, other=0.0).to(tl.float32)[None, None, :]
    best = tl.where(lost | (best != best), float("nan"), tl.maximum(best, 0.0))
    to, inside = _pooled(window, valid, OUTSIDE, COLUMNS, ACROSS)
    to += model.to(tl.int64) * windows * (ACROSS * OUTSIDE)
    where = tl.reshape(tl.where(best > 0.0, where, 4).to(tl.int8), (BLOCK, ACROSS * COLUMNS))
    tl.store(z + to, tl.reshape(best.to(z.dtype.element_ty), (BLOCK, ACROSS * COLUMNS)), mask=inside)
    tl.store(place + to, where, mask=inside)


@triton.jit
def _by_window(x, place, gradient, sums, windows, model_size, each, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
               INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
               BLOCK: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """Gradient of the kernels for one model, some window entries and a stretch of windows: Σ window·g by pixel and
    corner.

    An additional entry after the last is 1 and gives the gradient of the bias."""
    stretch, model = tl.program_id(0), tl.program_id(1)
    first = model.to(tl.int64) * windows * (ACROSS * OUTSIDE)
    x += model.to(tl.int64) * model_size
    entry = tl.program_id(2) * ENTRIES + tl.arange(0, ENTRIES)
    column = tl.arange(0, ACROSS * 4 * COLUMNS)
    entries: tl.constexpr = 6 * (2 * ACROSS + 4) * INSIDE
    total = tl.zeros((ENTRIES, ACROSS * 4 * COLUMNS), tl.float32)
    stop = tl.minimum((stretch + 1) * each, windows)
    for at in range(stretch * each, stop, BLOCK):
        window = at + tl.arange(0, BLOCK)
        valid = window < stop
        corner, step = _window(window, entry, HEIGHT, WIDTH, INSIDE, ACROSS)
        tile = tl.load(x + corner[:, None] + step[None, :], mask=valid[:, None] & (entry < entries)[None, :], other=0.0)
        tile = tl.where((entry == entries)[None, :], 1.0, tile).to(x.dtype.element_ty)
        g = _by_corner(place + first, gradient + first, window, valid, OUTSIDE, COLUMNS, ACROSS, BLOCK)
        total = tl.dot(tl.trans(operand(tile, PRECISION)), operand(g, PRECISION), total, input_precision=PRECISION)
    to = (stretch * tl.num_programs(1) + model) * (entries + 1) + entry
    tl.store(sums + to[:, None] * (ACROSS * 4 * COLUMNS) + column[None, :], total, mask=(entry <= entries)[:, None])


@triton.jit
def _combine(sums, to_weight, to_bias, stretches, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr,
             ACROSS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    """Sum over stretches, pixels and corners: the gradient of the kernels (O, 5, 5, C), followed by that of the biases
    (O,).

    Neighbours in ``at`` are channels of one kernel entry, which are also neighbours in ``sums``; entry 25·C is the
    bias."""
    model = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    out, entry = at % OUTSIDE, at // OUTSIDE
    is_bias = entry == 25 * INSIDE
    inside = entry <= 25 * INSIDE
    tap = entry // INSIDE
    width: tl.constexpr = 2 * ACROSS + 4
    row: tl.constexpr = ACROSS * 4 * COLUMNS
    parts = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for first in range(0, stretches, AT_ONCE):
        stretch = first + tl.arange(0, AT_ONCE)
        start = (stretch * tl.num_programs(1) + model) * ((6 * width * INSIDE + 1) * row)
        there = (stretch < stretches)[:, None] & inside[None, :]
        for column in tl.static_range(4 * ACROSS):
            of = ((tap // 5 + column % 4 // 2) * width + tap % 5 + column // 4 * 2 + column % 2) * INSIDE
            of = tl.where(is_bias, 6 * width * INSIDE, of + entry % INSIDE) * row + column * COLUMNS + out
            parts += tl.load(sums + start[:, None] + of[None, :], mask=there, other=0.0)
    total = tl.sum(parts, axis=0)
    tl.store(to_weight + (model * OUTSIDE + out) * (25 * INSIDE) + entry, total.to(to_weight.dtype.element_ty),
             mask=inside & ~is_bias)
    tl.store(to_bias + model * OUTSIDE + out, total.to(to_bias.dtype.element_ty), mask=is_bias)


@triton.jit
def _windows(weight, place, gradient, parts, windows, each, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
             COLUMNS: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr, ENTRIES: tl.constexpr,
             PRECISION: tl.constexpr):
    """Gradient of the input for one model, some window entries and a stretch of windows, before overlapping windows are
    summed."""
    model = tl.program_id(1)
    entry = tl.program_id(2) * ENTRIES + tl.arange(0, ENTRIES)
    column = tl.arange(0, ACROSS * 4 * COLUMNS)
    entries: tl.constexpr = 6 * (2 * ACROSS + 4) * INSIDE
    address, there = _kernels(weight, model, entry[None, :], column[:, None], INSIDE, OUTSIDE, COLUMNS, ACROSS)
    kernel = operand(tl.load(address, mask=there & (entry < entries)[None, :], other=0.0), PRECISION)
    first = model.to(tl.int64) * windows * (ACROSS * OUTSIDE)
    parts += model.to(tl.int64) * windows * entries
    stop = tl.minimum((tl.program_id(0) + 1) * each, windows)
    for at in range(tl.program_id(0) * each, stop, BLOCK):
        window = at + tl.arange(0, BLOCK)
        g = _by_corner(place + first, gradient + first, window, window < stop, OUTSIDE, COLUMNS, ACROSS, BLOCK)
        result = tl.dot(operand(g, PRECISION), kernel, input_precision=PRECISION)
        to = window[:, None] * entries + entry[None, :]
        tl.store(parts + to, result, mask=(window < stop)[:, None] & (entry < entries)[None, :])


@triton.jit
def _gather(parts, to_x, windows, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INSIDE: tl.constexpr,
            ACROSS: tl.constexpr, BLOCK: tl.constexpr):
    """Gradient of some input entries of one model: the sum over the (at most nine) windows that contain the entry."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    across: tl.constexpr = (WIDTH - 4) // 2 // ACROSS
    down: tl.constexpr = (HEIGHT - 4) // 2
    width: tl.constexpr = 2 * ACROSS + 4
    parts += tl.program_id(1).to(tl.int64) * windows * (6 * width * INSIDE)
    channel, pixel = at % INSIDE, at // INSIDE
    image, row, step = pixel // (HEIGHT * WIDTH), (pixel // WIDTH) % HEIGHT, pixel % WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for up in tl.static_range(3):
        for back in tl.static_range((width + 2 * ACROSS - 1) // (2 * ACROSS)):
            y, x = row // 2 - up, step // (2 * ACROSS) - back
            within = step - 2 * ACROSS * x
            seen = (at < count) & (y >= 0) & (y < down) & (x >= 0) & (x < across) & (within < width)
            entry = ((row - 2 * y) * width + within) * INSIDE + channel
            total += tl.load(parts + ((image * down + y) * across + x) * (6 * width * INSIDE) + entry, mask=seen,
                             other=0.0)
    tl.store(to_x + tl.program_id(1).to(tl.int64) * count + at, total.to(to_x.dtype.element_ty), mask=at < count)


class ConvolvePool(torch.autograd.Function):
    """relu(max_pool(conv(x) + bias)) of x (G, S, H, W, C), H and W even, with kernels (G, O, C, 5, 5) in channels-last
    memory.

    The gradients of kernels and biases are written to ``weight_home`` and ``bias_home`` if these are given (both or
    none)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, weight_home: Tensor | None,
                bias_home: Tensor | None) -> Tensor:
        """Compute the activations; see the class docstring."""
        models, samples, height, width, inside = x.shape
        outside, down, across = weight.shape[1], (height - 4) // 2, (width - 4) // 2
        ctx.channels = {"INSIDE": inside, "OUTSIDE": outside, "COLUMNS": max(4, int(triton.next_power_of_2(outside)))}
        ctx.image = {"HEIGHT": height, "WIDTH": width}
        ctx.precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
        tile = _tile(FORWARD, x)
        z = torch.empty(models, samples, down, across, outside, dtype=x.dtype, device=x.device)
        place = torch.empty(z.shape, dtype=torch.int8, device=x.device)
        windows = samples * down * across // tile["ACROSS"]
        _forward[triton.cdiv(windows, tile["BLOCK"]), models](
            x, weight, bias, z, place, windows, samples * height * width * inside, **ctx.image, **ctx.channels, **tile,
            PRECISION=ctx.precision)
        ctx.save_for_backward(x, weight, bias, place)
        ctx.homes = weight_home, bias_home
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of input, kernels and biases."""
        x, weight, bias, place = ctx.saved_tensors
        gradient = gradient.contiguous()
        to_weight, to_bias = _of_kernels(ctx, x, weight, bias, place, gradient)
        to_x = _of_input(ctx, x, weight, place, gradient) if ctx.needs_input_grad[0] else None
        return to_x, to_weight, to_bias, None, None


def _tile(tiles: Tiles, x: Tensor) -> dict[str, int]:
    """The options of the tile for this input."""
    return tiles.get((x.shape[-1], x.element_size()), OTHERS).options(x.shape[3])


def _cut(tiles: Tiles, x: Tensor, place: Tensor, besides: int) -> tuple[dict[str, int], int, int, int, int]:
    """How the work is divided: the tile's options, a model's windows, the windows of a program, the entries of a
    window, and the number of programs that share a window's entries (and ``besides`` more entries)."""
    tile = _tile(tiles, x)
    block, windows = tile["BLOCK"], place[0, ..., 0].numel() // tile["ACROSS"]
    entries = 6 * (2 * tile["ACROSS"] + 4) * x.shape[-1]
    parts = triton.cdiv(entries + besides, tile["ENTRIES"])
    stretches = min(max(1, PROGRAMS // (len(x) * parts)), triton.cdiv(windows, block))
    each = triton.cdiv(triton.cdiv(windows, stretches), block) * block
    return tile, windows, each, entries, parts


def _of_kernels(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, place: Tensor,
                gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of kernels and biases, written to ``ctx.homes`` if there are any."""
    tile, windows, each, entries, parts = _cut(KERNELS, x, place, 1)
    models, stretches = len(x), triton.cdiv(windows, each)
    sums = torch.empty(stretches, models, entries + 1, tile["ACROSS"] * 4 * ctx.channels["COLUMNS"], device=x.device)
    _by_window[stretches, models, parts](x, place, gradient, sums, windows, x[0].numel(), each, **ctx.image,
                                         **ctx.channels, **tile, PRECISION=ctx.precision)
    to_weight, to_bias = ctx.homes
    if to_weight is None or to_bias is None:
        to_weight = weight.new_empty(models, weight.shape[1], 5, 5, x.shape[-1]).permute(0, 1, 4, 2, 3)
        to_bias = torch.empty_like(bias)
    _combine[triton.cdiv(to_weight[0].numel() + bias.shape[1], 128), models](
        sums, to_weight, to_bias, stretches, **ctx.channels, ACROSS=tile["ACROSS"], BLOCK=128,
        AT_ONCE=_AT_ONCE)
    return to_weight, to_bias


def _of_input(ctx: Any, x: Tensor, weight: Tensor, place: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the input."""
    tile, windows, each, entries, shares = _cut(INPUTS, x, place, 0)
    to_x = torch.empty_like(x)
    parts = torch.empty(len(x), windows, entries, device=x.device)
    _windows[triton.cdiv(windows, each), len(x), shares](
        weight, place, gradient, parts, windows, each, **ctx.channels, **tile, PRECISION=ctx.precision)
    count = x[0].numel()
    _gather[triton.cdiv(count, 256), len(x)](parts, to_x, windows, count, **ctx.image, INSIDE=x.shape[-1],
                                             ACROSS=tile["ACROSS"], BLOCK=256)
    return to_x
