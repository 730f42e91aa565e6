# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""A valid 5×5 convolution, its bias, 2×2 max-pooling and ReLU in one, for a stack of models.

LeNet-5's layers are so small that a round is all launches and intermediate results. Here the four pixels of a pooling
window are computed together and only the pooled result is written, with the place in the window where it came from.
Activations are (G, S, H, W, C), kernels (G, O, 5, 5, C), i.e. a kernel's entry k = 5·C·row + C·column + channel.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Pooled pixels (forward, kernels' gradient) or input pixels (input's gradient) of a program."""
TAPS = 32
"""Kernel entries that are multiplied at once."""
STRETCHES = 16
"""Programs that share the pixels in the kernels' gradient."""


@triton.jit
def _place(pixel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Offset of the first input entry of a pooled pixel's window, within the model's activations."""
    across, down = (WIDTH - 4) // 2, (HEIGHT - 4) // 2
    sample, rest = pixel // (across * down), pixel % (across * down)
    return ((sample * HEIGHT + 2 * (rest // across)) * WIDTH + 2 * (rest % across)) * CHANNELS


@triton.jit
def _step(entry, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Offset of kernel entry k from the first input entry of its patch."""
    tap = entry // CHANNELS
    return ((tap // 5) * WIDTH + tap % 5) * CHANNELS + entry % CHANNELS


@triton.jit
def _forward(x, weight, bias, z, place, pixels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INSIDE: tl.constexpr,
             OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
             PRECISION: tl.constexpr):
    """One model, a block of pooled pixels."""
    model = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < pixels
    out = tl.arange(0, COLUMNS)
    samples = pixels // (((WIDTH - 4) // 2) * ((HEIGHT - 4) // 2))
    x += model * samples * (HEIGHT * WIDTH * INSIDE)
    start = _place(pixel, HEIGHT, WIDTH, INSIDE)
    a = tl.zeros((BLOCK, COLUMNS), tl.float32)
    b = tl.zeros((BLOCK, COLUMNS), tl.float32)
    c = tl.zeros((BLOCK, COLUMNS), tl.float32)
    d = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for first in range(0, 25 * INSIDE, TAPS):
        entry = first + tl.arange(0, TAPS)
        there = entry < 25 * INSIDE
        w = tl.load(weight + (model * OUTSIDE + out)[None, :] * (25 * INSIDE) + entry[:, None],
                    mask=there[:, None] & (out < OUTSIDE)[None, :], other=0.0)
        source = x + start[:, None] + _step(entry, WIDTH, INSIDE)[None, :]
        known = valid[:, None] & there[None, :]
        a = tl.dot(tl.load(source, mask=known, other=0.0), w, a, input_precision=PRECISION)
        b = tl.dot(tl.load(source + INSIDE, mask=known, other=0.0), w, b, input_precision=PRECISION)
        c = tl.dot(tl.load(source + WIDTH * INSIDE, mask=known, other=0.0), w, c, input_precision=PRECISION)
        d = tl.dot(tl.load(source + (WIDTH + 1) * INSIDE, mask=known, other=0.0), w, d, input_precision=PRECISION)
    best, where = a, tl.zeros((BLOCK, COLUMNS), tl.int8)  # the first of equals, as in torch
    where = tl.where(b > best, 1, where).to(tl.int8)
    best = tl.maximum(best, b, propagate_nan=tl.PropagateNan.ALL)
    where = tl.where(c > best, 2, where).to(tl.int8)
    best = tl.maximum(best, c, propagate_nan=tl.PropagateNan.ALL)
    where = tl.where(d > best, 3, where).to(tl.int8)
    best = tl.maximum(best, d, propagate_nan=tl.PropagateNan.ALL)
    best += tl.load(bias + model * OUTSIDE + out, mask=out < OUTSIDE, other=0.0).to(tl.float32)[None, :]
    best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    to = (model * pixels + pixel)[:, None] * OUTSIDE + out[None, :]
    inside = valid[:, None] & (out < OUTSIDE)[None, :]
    tl.store(z + to, best.to(z.dtype.element_ty), mask=inside)
    tl.store(place + to, where, mask=inside)


@triton.jit
def _by_kernels(x, z, place, gradient, sums, bias_sums, pixels, each, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
                INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
                TAPS: tl.constexpr, PRECISION: tl.constexpr):
    """One model, one block of kernel entries, one stretch of pooled pixels: Σ patch·g, and Σ g for the bias."""
    stretch, model = tl.program_id(0), tl.program_id(1)
    entry = tl.program_id(2) * TAPS + tl.arange(0, TAPS)
    there = entry < 25 * INSIDE
    out = tl.arange(0, COLUMNS)
    samples = pixels // (((WIDTH - 4) // 2) * ((HEIGHT - 4) // 2))
    x += model * samples * (HEIGHT * WIDTH * INSIDE)
    total = tl.zeros((TAPS, COLUMNS), tl.float32)
    bias_total = tl.zeros((COLUMNS,), tl.float32)
    stop = tl.minimum((stretch + 1) * each, pixels)
    for at in range(stretch * each, stop, BLOCK):
        pixel = at + tl.arange(0, BLOCK)
        valid = pixel < stop
        of = (model * pixels + pixel)[:, None] * OUTSIDE + out[None, :]
        inside = valid[:, None] & (out < OUTSIDE)[None, :]
        positive = tl.load(z + of, mask=inside, other=0.0).to(tl.float32) > 0.0
        g = tl.load(gradient + of, mask=inside, other=0.0)
        g = tl.where(positive, g, 0.0).to(g.dtype)
        where = tl.load(place + of, mask=inside, other=0)
        bias_total += tl.sum(g.to(tl.float32), axis=0)
        source = x + _place(pixel, HEIGHT, WIDTH, INSIDE)[None, :] + _step(entry, WIDTH, INSIDE)[:, None]
        known = there[:, None] & valid[None, :]
        for corner in tl.static_range(4):
            patch = tl.load(source + ((corner // 2) * WIDTH + corner % 2) * INSIDE, mask=known, other=0.0)
            total = tl.dot(patch, tl.where(where == corner, g, 0.0).to(g.dtype), total, input_precision=PRECISION)
    kernel = (stretch * tl.num_programs(1) + model) * OUTSIDE + out
    tl.store(sums + kernel[None, :] * (25 * INSIDE) + entry[:, None], total,
             mask=there[:, None] & (out < OUTSIDE)[None, :])
    if tl.program_id(2) == 0:
        tl.store(bias_sums + kernel, bias_total, mask=out < OUTSIDE)


@triton.jit
def _by_input(weight, z, place, gradient, to_x, pixels, samples, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
              INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
              BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """One model, a block of input pixels: over the 25 taps, the gradient of the output pixel that saw this one."""
    model = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = at < samples * HEIGHT * WIDTH
    sample = at // (HEIGHT * WIDTH)
    row, column = (at // WIDTH) % HEIGHT, at % WIDTH
    inside, out = tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    total = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for tap in range(25):
        y, x = row - tap // 5, column - tap % 5
        seen = valid & (y >= 0) & (y < HEIGHT - 4) & (x >= 0) & (x < WIDTH - 4)
        pooled = (sample * ((HEIGHT - 4) // 2) + y // 2) * ((WIDTH - 4) // 2) + x // 2
        of = (model * pixels + pooled)[:, None] * OUTSIDE + out[None, :]
        known = seen[:, None] & (out < OUTSIDE)[None, :]
        here = tl.load(place + of, mask=known, other=-1) == ((y % 2) * 2 + x % 2)[:, None]
        here = here & (tl.load(z + of, mask=known, other=0.0).to(tl.float32) > 0.0)
        g = tl.load(gradient + of, mask=known & here, other=0.0)
        w = tl.load(weight + (model * OUTSIDE + out)[:, None] * (25 * INSIDE) + tap * INSIDE + inside[None, :],
                    mask=(out < OUTSIDE)[:, None] & (inside < INSIDE)[None, :], other=0.0)
        total = tl.dot(g, w, total, input_precision=PRECISION)
    to = (model * samples * HEIGHT * WIDTH + at)[:, None] * INSIDE + inside[None, :]
    tl.store(to_x + to, total.to(to_x.dtype.element_ty), mask=valid[:, None] & (inside < INSIDE)[None, :])


class ConvolvePool(torch.autograd.Function):
    """relu(max_pool(conv(x) + bias)) of x (G, S, H, W, C), H and W even, kernels (G, O, C, 5, 5) channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See the class."""
        models, samples, height, width, inside = x.shape
        outside, down, across = weight.shape[1], (height - 4) // 2, (width - 4) // 2
        pixels = samples * down * across
        shape = {"HEIGHT": height, "WIDTH": width, "INSIDE": inside, "OUTSIDE": outside,
                 "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"}
        z = torch.empty(models, samples, down, across, outside, dtype=x.dtype, device=x.device)
        place = torch.empty(z.shape, dtype=torch.int8, device=x.device)
        _forward[triton.cdiv(pixels, BLOCK), models](x, weight, bias, z, place, pixels, COLUMNS=_columns(outside),
                                                     BLOCK=BLOCK, TAPS=TAPS, **shape)
        ctx.save_for_backward(x, weight, bias, z, place)
        ctx.shape = shape
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """See the class."""
        x, weight, bias, z, place = ctx.saved_tensors
        gradient = gradient.contiguous()
        models, samples, height, width, inside = x.shape
        outside, pixels = z.shape[-1], samples * z.shape[2] * z.shape[3]
        each = triton.cdiv(triton.cdiv(pixels, STRETCHES), BLOCK) * BLOCK
        stretches = triton.cdiv(pixels, each)
        sums = torch.empty(stretches, models, outside, 5, 5, inside, device=x.device)
        bias_sums = torch.empty(stretches, models, outside, device=x.device)
        _by_kernels[stretches, models, triton.cdiv(25 * inside, TAPS)](
            x, z, place, gradient, sums, bias_sums, pixels, each, COLUMNS=_columns(outside), BLOCK=BLOCK, TAPS=TAPS,
            **ctx.shape)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = torch.empty_like(x)
            _by_input[triton.cdiv(samples * height * width, BLOCK), models](
                weight, z, place, gradient, to_x, pixels, samples, COLUMNS=_columns(inside), ROWS=_columns(outside),
                BLOCK=BLOCK, **ctx.shape)
        to_weight = sums.sum(0).to(weight.dtype).permute(0, 1, 4, 2, 3)
        return to_x, to_weight, bias_sums.sum(0).to(bias.dtype)


def _columns(channels: int) -> int:
    """Channels as a matrix product wants them: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(channels)))
