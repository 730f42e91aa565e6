# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Grouped 3×3 convolution with fedgap's own GPU kernels, for the cases in which cuDNN's are slow.

A group is one model of the stack. If a group has different numbers of inputs and outputs, as in a block with pruned
channels, cuDNN computes group by group, with copies around each: 16 → 8 channels took three times as long as 16 → 16. A
kernel tap is a product (pixels × inputs)·(inputs × outputs), and the gradient of the input is the same sum with
mirrored taps and transposed kernels.

With a stride of 2, cuDNN computes the gradient of the input group by group, with copies around each: two layers of 44
took a fifth of six stacked rounds in TF32. The input's pixels fall into four classes by their parity, which see one,
two, two and four outputs: nine small products for each output pixel.

cuDNN's grouped weight gradients are slow if a group has few channels: they took 10 of the 16 ms that ResNet-110's
convolutions cost in TF32. As a product, a tap's gradient is (channels × pixels)·(pixels × channels), small on two sides
and long on the third, so the pixels are divided over programs (instances of a kernel) and the partial sums are added.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgap.learning.engine.kernels.float_rounding import operand

BLOCK = 32
"""Pixels that a program multiplies at once."""
QUADS, QUAD_WARPS = 32, 2
"""Output pixels of a program with stride 2, and its warps. (With 64 and 4, Triton 3.6 uses Hopper's warp-group
products, and in bfloat16 the gradients of groups of 32 channels were wrong.)"""
SETTINGS = {16: (32, 1), 32: (16, 2)}
"""Channels per group → (number of programs that share the pixels, their warps); the fastest on an H200 in TF32."""
UNEVEN = {16: (128, 4), 32: (128, 4), 64: (64, 4)}
"""For groups whose numbers of inputs and outputs differ: the larger number (as a power of two) → (pixels of a program,
its warps)."""
UNEVEN_SHARED = {16: (64, 1), 32: (16, 1), 64: (16, 4)}
"""The same key → (number of programs that share the pixels in the gradient of the kernels, their warps)."""


@triton.jit
def _convolve(x, weight, out, pixels, height, width, columns_in, columns_out, INSIDE: tl.constexpr,
              OUTSIDE: tl.constexpr, PADDED_IN: tl.constexpr, PADDED_OUT: tl.constexpr, BLOCK: tl.constexpr,
              BACKWARDS: tl.constexpr, PRECISION: tl.constexpr):
    """Convolution of one group for a block of pixels: Σ x(pixel + tap)·kernel(tap).

    With ``BACKWARDS``, taps are mirrored and kernels transposed, which gives the gradient of the input; the outputs of
    ``weight`` are then the inputs here. Products need powers of two, so channels are padded."""
    group = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    across, down = pixel % width, (pixel // width) % height
    inside, outside = tl.arange(0, PADDED_IN), tl.arange(0, PADDED_OUT)
    step: tl.constexpr = OUTSIDE if BACKWARDS else INSIDE  # from a tap to the next
    step_in: tl.constexpr = 9 * OUTSIDE if BACKWARDS else 1
    step_out: tl.constexpr = 1 if BACKWARDS else 9 * INSIDE
    source = x + pixel[:, None].to(tl.int64) * columns_in + group * INSIDE + inside[None, :]
    kernel = weight + group * (9 * INSIDE * OUTSIDE) + inside[:, None] * step_in + outside[None, :] * step_out
    real = (inside < INSIDE)[:, None] & (outside < OUTSIDE)[None, :]
    total = tl.zeros((BLOCK, PADDED_OUT), tl.float32)
    for tap in tl.static_range(9):
        right = tap % 3 - 1
        lower = tap // 3 - 1
        seen = (pixel < pixels) & (across + right >= 0) & (across + right < width)
        seen = seen & (down + lower >= 0) & (down + lower < height)
        tile = tl.load(source + (lower * width + right) * columns_in,
                       mask=seen[:, None] & (inside < INSIDE)[None, :], other=0.0)
        factor = tl.load(kernel + (8 - tap if BACKWARDS else tap) * step, mask=real, other=0.0)
        total = tl.dot(operand(tile, PRECISION), operand(factor, PRECISION), total, input_precision=PRECISION)
    tl.store(out + pixel[:, None].to(tl.int64) * columns_out + group * OUTSIDE + outside[None, :],
             total.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None] & (outside < OUTSIDE)[None, :])


@triton.jit
def _kernel_gradient(x, gradient, sums, pixels, height, width, columns_in, columns_out, each,
                     REAL_IN: tl.constexpr, REAL_OUT: tl.constexpr, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
                     BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """Gradient of one group's kernels for one kernel row and a range of pixels: Σ x(pixel + tap)·g(pixel) for the row's
    three taps.

    Products need powers of two, so the ``REAL_IN`` and ``REAL_OUT`` channels are padded to ``INSIDE`` and ``OUTSIDE``.
    """
    stretch, group, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inside, outside = tl.arange(0, INSIDE), tl.arange(0, OUTSIDE)
    left = tl.zeros((INSIDE, OUTSIDE), tl.float32)
    middle = tl.zeros((INSIDE, OUTSIDE), tl.float32)
    right = tl.zeros((INSIDE, OUTSIDE), tl.float32)
    stop = tl.minimum((stretch + 1) * each, pixels)
    for at in range(stretch * each, stop, BLOCK):
        pixel = at + tl.arange(0, BLOCK)
        valid = pixel < stop
        across = pixel % width
        down = (pixel // width) % height + row - 1
        valid_row = valid & (down >= 0) & (down < height)
        source = x + (pixel + (row - 1) * width)[None, :] * columns_in + group * REAL_IN + inside[:, None]
        g = tl.load(gradient + pixel[:, None] * columns_out + group * REAL_OUT + outside[None, :],
                    mask=valid[:, None] & (outside < REAL_OUT)[None, :], other=0.0)
        g = operand(g, PRECISION)
        real = (inside < REAL_IN)[:, None]
        tile = tl.load(source - columns_in, mask=(valid_row & (across > 0))[None, :] & real, other=0.0)
        left = tl.dot(operand(tile, PRECISION), g, left, input_precision=PRECISION)
        tile = tl.load(source, mask=valid_row[None, :] & real, other=0.0)
        middle = tl.dot(operand(tile, PRECISION), g, middle, input_precision=PRECISION)
        tile = tl.load(source + columns_in, mask=(valid_row & (across < width - 1))[None, :] & real, other=0.0)
        right = tl.dot(operand(tile, PRECISION), g, right, input_precision=PRECISION)
    kernel = (stretch * tl.num_programs(1) + group) * REAL_OUT + outside[None, :]
    out = sums + kernel * (9 * REAL_IN) + row * (3 * REAL_IN) + inside[:, None]
    real = (inside < REAL_IN)[:, None] & (outside < REAL_OUT)[None, :]
    tl.store(out, left, mask=real)
    tl.store(out + REAL_IN, middle, mask=real)
    tl.store(out + 2 * REAL_IN, right, mask=real)


@triton.jit
def _strided_input_gradient(gradient, weight, to_x, quads, down, across, columns_in, columns_out,
                            INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """Gradient of the input with stride 2, for one group and a block of output pixels.

    Each output pixel computes the gradient of the input's 2×2 pixels at twice its position. These are seen by the pixel
    itself and by its right, lower and diagonal neighbours."""
    group = tl.program_id(1)
    quad = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = quad < quads
    right = valid & (quad % across < across - 1)
    lower = valid & ((quad // across) % down < down - 1)
    inside, outside = tl.arange(0, INSIDE), tl.arange(0, OUTSIDE)
    source = gradient + quad[:, None].to(tl.int64) * columns_out + group * OUTSIDE + outside[None, :]
    here = operand(tl.load(source, mask=valid[:, None], other=0.0), PRECISION)
    beside = operand(tl.load(source + columns_out, mask=right[:, None], other=0.0), PRECISION)
    below = operand(tl.load(source + across * columns_out, mask=lower[:, None], other=0.0), PRECISION)
    corner = operand(tl.load(source + (across + 1) * columns_out, mask=(lower & right)[:, None], other=0.0), PRECISION)
    tap = weight + ((group * OUTSIDE + outside[:, None]) * 9) * INSIDE + inside[None, :]
    image, rest = quad // (down * across), quad % (down * across)
    first = (image * 2 * down + 2 * (rest // across)) * (2 * across) + 2 * (rest % across)
    out = to_x + first[:, None].to(tl.int64) * columns_in + group * INSIDE + inside[None, :]
    below_it = 2 * across * columns_in
    total = tl.dot(here, operand(tl.load(tap + 4 * INSIDE), PRECISION), input_precision=PRECISION)
    tl.store(out, total.to(to_x.dtype.element_ty), mask=valid[:, None])
    total = tl.dot(here, operand(tl.load(tap + 5 * INSIDE), PRECISION), input_precision=PRECISION)
    total = tl.dot(beside, operand(tl.load(tap + 3 * INSIDE), PRECISION), total, input_precision=PRECISION)
    tl.store(out + columns_in, total.to(to_x.dtype.element_ty), mask=valid[:, None])
    total = tl.dot(here, operand(tl.load(tap + 7 * INSIDE), PRECISION), input_precision=PRECISION)
    total = tl.dot(below, operand(tl.load(tap + INSIDE), PRECISION), total, input_precision=PRECISION)
    tl.store(out + below_it, total.to(to_x.dtype.element_ty), mask=valid[:, None])
    total = tl.dot(here, operand(tl.load(tap + 8 * INSIDE), PRECISION), input_precision=PRECISION)
    total = tl.dot(beside, operand(tl.load(tap + 6 * INSIDE), PRECISION), total, input_precision=PRECISION)
    total = tl.dot(below, operand(tl.load(tap + 2 * INSIDE), PRECISION), total, input_precision=PRECISION)
    total = tl.dot(corner, operand(tl.load(tap), PRECISION), total, input_precision=PRECISION)
    tl.store(out + below_it + columns_in, total.to(to_x.dtype.element_ty), mask=valid[:, None])


class Convolve(torch.autograd.Function):
    """3×3 convolution with padding 1 of x (S, G·I, H, W), with G groups of kernels (G·O, I, 3, 3), both in
    channels-last memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int, stride: int) -> Tensor:
        """Compute the convolution; see the class docstring."""
        ctx.save_for_backward(x, weight)
        ctx.groups, ctx.stride = groups, stride
        if stride == 1 and x.shape[1] != weight.shape[0]:
            return _uneven(x, weight, groups, weight.shape[0], backwards=False)
        return torch.nn.functional.conv2d(x, weight, stride=stride, padding=1, groups=groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of input and kernels."""
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)

        def by_cudnn(wanted: list[bool]) -> Any:
            return torch.ops.aten.convolution_backward(gradient, x, weight, None, [ctx.stride] * 2, [1, 1], [1, 1],
                                                       False, [0, 0], ctx.groups, wanted)

        if ctx.stride == 2:
            return _strided_gradient(x, gradient, weight, ctx.groups), by_cudnn([False, True, False])[1], None, None
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (_uneven(gradient, weight, ctx.groups, x.shape[1], backwards=True)
                    if x.shape[1] != weight.shape[0] else by_cudnn([True, False, False])[0])
        return to_x, _gradient_by_kernels(x, gradient, weight, ctx.groups), None, None


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _padded(channels: int) -> int:
    return max(16, int(triton.next_power_of_2(channels)))


def _uneven(x: Tensor, weight: Tensor, groups: int, columns: int, *, backwards: bool) -> Tensor:
    """Convolution of x (S, G·I, H, W), or with ``backwards`` the gradient of its input; the result has ``columns``
    channels in all."""
    samples, columns_in, height, width = x.shape
    inside, outside = columns_in // groups, columns // groups
    pixels = samples * height * width
    out = torch.empty(samples, columns, height, width, device=x.device, dtype=x.dtype,
                      memory_format=torch.channels_last)
    block, warps = UNEVEN[max(_padded(inside), _padded(outside))]
    _convolve[triton.cdiv(pixels, block), groups](
        x.contiguous(memory_format=torch.channels_last), weight.contiguous(memory_format=torch.channels_last), out,
        pixels, height, width, columns_in, columns, INSIDE=inside, OUTSIDE=outside, PADDED_IN=_padded(inside),
        PADDED_OUT=_padded(outside), BLOCK=block, BACKWARDS=backwards, PRECISION=_precision(), num_warps=warps)
    return out


def _strided_gradient(x: Tensor, gradient: Tensor, weight: Tensor, groups: int) -> Tensor:
    samples, columns_out, down, across = gradient.shape
    quads, to_x = samples * down * across, torch.empty_like(x)
    weight = weight.contiguous(memory_format=torch.channels_last)
    _strided_input_gradient[triton.cdiv(quads, QUADS), groups](
        gradient, weight, to_x, quads, down, across, x.shape[1], columns_out, INSIDE=x.shape[1] // groups,
        OUTSIDE=columns_out // groups, BLOCK=QUADS, PRECISION=_precision(), num_warps=QUAD_WARPS)
    return to_x


def _gradient_by_kernels(x: Tensor, gradient: Tensor, weight: Tensor, groups: int) -> Tensor:
    samples, columns_in, height, width = x.shape
    pixels, columns_out = samples * height * width, gradient.shape[1]
    outside, inside = columns_out // groups, columns_in // groups
    padded_in, padded_out = _padded(inside), _padded(outside)
    stretches, warps = SETTINGS[inside] if inside == outside else UNEVEN_SHARED[max(padded_in, padded_out)]
    each = triton.cdiv(triton.cdiv(pixels, stretches), BLOCK) * BLOCK
    stretches = triton.cdiv(pixels, each)
    sums = torch.empty(stretches, columns_out, 3, 3, inside, device=x.device)
    _kernel_gradient[stretches, groups, 3](x, gradient, sums, pixels, height, width, columns_in, columns_out, each,
                                           REAL_IN=inside, REAL_OUT=outside, INSIDE=padded_in, OUTSIDE=padded_out,
                                           BLOCK=BLOCK, PRECISION=_precision(), num_warps=warps)
    return sums.sum(0).to(weight.dtype).permute(0, 3, 1, 2)


def pays(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether :class:`Convolve` supports these kernels (G·O, I, 3, 3) and is faster than cuDNN."""
    outside = weight.shape[0] * weight.shape[1] // x.shape[1]  # channels of a group
    if stride == 1 and outside != weight.shape[1]:
        return max(_padded(outside), _padded(weight.shape[1])) in UNEVEN
    if weight.shape[1] not in SETTINGS or outside < 16 or outside & (outside - 1):  # products of 16 and powers of two
        return False
    if stride == 2:
        return x.shape[2] % 2 == x.shape[3] % 2 == 0
    return stride == 1 and weight.dtype is torch.float32
