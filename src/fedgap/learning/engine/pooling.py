"""A 5×5 convolution followed by 2×2 max-pooling, written so that a CPU's vector units do the pooling.

torch's max-pooling of a (Z, 6, 24, 24) activation branches on every pixel and takes a third of LeNet-5's time. Here the
convolution computes the four pixels of a pooling window as four *channels*: the image is split into its four phases
(even and odd rows and columns), and one 3×3 convolution over the phases computes all four window positions. The maximum
of four contiguous blocks can then be vectorised. The kernel has 36 taps instead of 25, but the convolution is not
slower, because it has more channels."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def phases(x: Tensor) -> Tensor:
    """Split each channel into its four phases: (N, C, H, W) → (N, 4·C, H/2, W/2). H and W must be even."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(n, 4 * c, h // 2, w // 2)


def window_kernels(weight: Tensor) -> Tensor:
    """Kernels over phases for the four positions in a pooling window: (G, O, C, 5, 5) → (G, 4·O, 4·C, 3, 3)."""
    g, o, c = weight.shape[:3]
    spread = weight.reshape(g, o * c, 25) @ _spread(weight.dtype)
    return spread.reshape(g, o, c, 4, 4, 9).permute(0, 3, 1, 2, 4, 5).reshape(g, 4 * o, 4 * c, 3, 3)


def kernel_gradient(to_windows: Tensor, shape: torch.Size) -> Tensor:
    """Backward pass of :func:`window_kernels`: from the gradient of its result to that of its argument, of ``shape``
    (G, O, C, 5, 5)."""
    g, o, c = shape[:3]
    spread = to_windows.reshape(g, 4, o, c, 4, 9).permute(0, 2, 3, 1, 4, 5).reshape(g, o * c, 144)
    return (spread @ _spread(to_windows.dtype).T).reshape(shape)


@lru_cache
def _spread(dtype: torch.dtype) -> Tensor:
    """The 0/1 matrix (25, 4·4·9) that maps tap (k, l) of a 5×5 kernel at window position (y, x) to row y + k, column x
    + l."""
    matrix = torch.zeros(5, 5, 2, 2, 2, 2, 3, 3, dtype=dtype)
    for k in range(5):
        for m in range(5):
            for y in range(2):
                for x in range(2):
                    row, column = y + k, x + m
                    matrix[k, m, y, x, row % 2, column % 2, row // 2, column // 2] = 1.0
    return matrix.reshape(25, 144)


def convolve_and_pool(x: Tensor, weight: Tensor, models: int) -> Tensor:
    """The maximum over each 2×2 window of the valid 5×5 convolution, for a stack of models, without bias.

    ``x`` (G·S, C, H, W), ``weight`` (G, O, C, 5, 5) → (G·S, O, (H−4)/2, (W−4)/2). Of equal pixels in a window the first
    one gets the gradient, as in torch."""
    height, width = x.shape[2:]
    if height % 2 or width % 2:  # an odd size cannot be split into phases
        y = torch.cat([functional.conv2d(part, own) for part, own in zip(x.chunk(models), weight)])
        return functional.max_pool2d(y, 2)
    kernels, parts = window_kernels(weight), phases(x).chunk(models)
    y = torch.cat([functional.conv2d(part, kernel) for part, kernel in zip(parts, kernels)])
    return _FirstMaximum.apply(y.reshape(len(y), 4, -1, *y.shape[2:]))  # type: ignore[no-any-return,no-untyped-call]


class _FirstMaximum(torch.autograd.Function):
    """Maximum over dimension 1 of (N, 4, ...); of equal entries the first one gets the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result, *halves = first_maximum(x)
        ctx.save_for_backward(x, *halves)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return first_maximum_backward(gradient, *ctx.saved_tensors)


def first_maximum(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum over dimension 1 of (N, 4, ...), the maximum of the first two entries, and that of the last two."""
    a, b, c, d = x.unbind(1)
    upper, lower = torch.maximum(a, b), torch.maximum(c, d)
    return torch.maximum(upper, lower), upper, lower


def first_maximum_backward(gradient: Tensor, x: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """Backward pass of :func:`first_maximum` with respect to x; of equal entries the first one gets the whole gradient.

    ``threshold_backward(g, d, 0)`` is g where d > 0 and 0 elsewhere, in one vectorised pass."""
    a, b, c, d = x.unbind(1)
    where_positive = torch.ops.aten.threshold_backward
    below = where_positive(gradient, lower - upper, 0.0)
    above = gradient - below
    result = torch.empty_like(x)
    for first, second, from_both, difference in ((0, 1, above, b - a), (2, 3, below, d - c)):
        to_second = where_positive(from_both, difference, 0.0)
        result[:, second] = to_second
        torch.sub(from_both, to_second, out=result[:, first])
    return result
