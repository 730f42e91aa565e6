# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, misc"
"""Grouped 3×3 convolution whose gradient by the kernels is our own.

cuDNN's grouped weight gradients are slow where a group has few channels: they took 10 of the 16 ms that ResNet-110's
convolutions cost in TF32. As a product, a tap's gradient is (channels × pixels)·(pixels × channels), small on two sides
and long on the third, so the pixels are divided over programs and the partial sums added.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgap.learning.engine.kernels.rounding import operand

BLOCK = 32
"""Pixels that a program multiplies at once."""
SETTINGS = {16: (32, 1), 32: (16, 2)}
"""Channels a group → programs that share the pixels, and their warps, as they were fastest on an H200 in TF32."""


@triton.jit
def _kernel_gradient(x, gradient, sums, pixels, height, width, columns_in, columns_out, each,
                     INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """One group, one row of the kernel, one stretch of pixels: Σ x(pixel + tap)·g(pixel) for the row's three taps."""
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
        source = x + (pixel + (row - 1) * width)[None, :] * columns_in + group * INSIDE + inside[:, None]
        g = tl.load(gradient + pixel[:, None] * columns_out + group * OUTSIDE + outside[None, :], mask=valid[:, None],
                    other=0.0)
        g = operand(g, PRECISION)
        tile = tl.load(source - columns_in, mask=(valid_row & (across > 0))[None, :], other=0.0)
        left = tl.dot(operand(tile, PRECISION), g, left, input_precision=PRECISION)
        tile = tl.load(source, mask=valid_row[None, :], other=0.0)
        middle = tl.dot(operand(tile, PRECISION), g, middle, input_precision=PRECISION)
        tile = tl.load(source + columns_in, mask=(valid_row & (across < width - 1))[None, :], other=0.0)
        right = tl.dot(operand(tile, PRECISION), g, right, input_precision=PRECISION)
    kernel = (stretch * tl.num_programs(1) + group) * OUTSIDE + outside[None, :]
    out = sums + kernel * (9 * INSIDE) + row * (3 * INSIDE) + inside[:, None]
    tl.store(out, left)
    tl.store(out + INSIDE, middle)
    tl.store(out + 2 * INSIDE, right)


class Convolve(torch.autograd.Function):
    """3×3 convolution, padding 1, of x (S, G·I, H, W) with G groups of kernels (G·O, I, 3, 3), both channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        """See the class."""
        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        return torch.nn.functional.conv2d(x, weight, padding=1, groups=groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """See the class."""
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = torch.ops.aten.convolution_backward(gradient, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0],
                                                       ctx.groups, [True, False, False])[0]
        return to_x, _gradient_by_kernels(x, gradient, weight, ctx.groups), None


def _gradient_by_kernels(x: Tensor, gradient: Tensor, weight: Tensor, groups: int) -> Tensor:
    samples, columns_in, height, width = x.shape
    pixels, columns_out = samples * height * width, gradient.shape[1]
    outside, inside = columns_out // groups, columns_in // groups
    stretches, warps = SETTINGS[inside]
    each = triton.cdiv(triton.cdiv(pixels, stretches), BLOCK) * BLOCK
    stretches = triton.cdiv(pixels, each)
    sums = torch.empty(stretches, columns_out, 3, 3, inside, device=x.device)
    precision = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    _kernel_gradient[stretches, groups, 3](x, gradient, sums, pixels, height, width, columns_in, columns_out, each,
                                           INSIDE=inside, OUTSIDE=outside, BLOCK=BLOCK, PRECISION=precision,
                                           num_warps=warps)
    return sums.sum(0).to(weight.dtype).permute(0, 3, 1, 2)


def pays(weight: Tensor, stride: int) -> bool:
    """Whether :class:`Convolve` can do, and is faster than cuDNN for, these kernels (G·O, I, 3, 3)."""
    return stride == 1 and weight.dtype is torch.float32 and weight.shape[1] in SETTINGS
