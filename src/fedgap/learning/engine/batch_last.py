"""LeNet-5's logits and gradient on a CPU, written by hand with the batch as the innermost dimension.

Local steps give every client different weights, so clients cannot share a pass, and only the computation of a single
client's step can be made faster. Each layer is one matrix product, kernel × columns. The columns are copies of whole
rows of samples, and with the batch innermost these copies are contiguous. A 5×5 convolution computes the four pixels of
a 2×2 pooling window as four blocks of rows (see :mod:`~fedgap.learning.engine.pooling`), so that pooling is a maximum
of contiguous blocks. The first layer writes its pixels ordered by phase (even and odd rows and columns), which is the
order in which the second layer reads them. One autograd node covers the whole model, because a node costs as much as a
small layer.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgap.learning.engine.pooling import first_maximum, first_maximum_backward, kernel_gradient, window_kernels

LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


def fits(height: int, width: int) -> bool:
    """Whether images of this size can be split into phases twice (both sides are multiples of 4)."""
    return height % 4 == 0 and width % 4 == 0


def lenet_batch_last(parameters: Mapping[str, Tensor], buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
    """Logits (G, S, classes) of G models with different weights; see
    :class:`~fedgap.learning.engine.forwards.Forward`."""
    layers = [parameters[f"{name}.{kind}"] for name in LAYERS for kind in ("weight", "bias")]
    return _LeNet.apply(inputs, *layers)  # type: ignore[no-any-return,no-untyped-call]


class _LeNet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor,
                *head: Tensor) -> Tensor:
        columns1 = _image_columns(inputs)
        pooled1, *windows1 = _pool(torch.bmm(_as_rows(weight1), columns1), bias1)
        columns2, kernels2 = _phase_columns(pooled1, inputs), _as_rows(weight2)
        pooled2, *windows2 = _pool(torch.bmm(kernels2, columns2), bias2)
        x = pooled2.reshape(len(inputs), -1, inputs.shape[1])
        activations = [x]
        for weight, bias in zip(head[::2], head[1::2]):
            if len(activations) > 1:
                x = x.relu_()
            x = torch.baddbmm(bias[:, :, None], weight, x)
            activations.append(x)
        ctx.kept = columns1, windows1, pooled1, columns2, kernels2, windows2, pooled2, activations[:-1]
        ctx.shapes = inputs.shape, weight1.shape, weight2.shape
        ctx.weights = head[::2]
        return x.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        columns1, windows1, pooled1, columns2, kernels2, windows2, pooled2, activations = ctx.kept
        image, shape1, shape2 = ctx.shapes
        to_x, to_head = gradient.transpose(1, 2), []
        for weight, x in zip(reversed(ctx.weights), reversed(activations)):
            to_head += [to_x.sum(2), torch.bmm(to_x, x.transpose(1, 2))]
            to_x = torch.ops.aten.threshold_backward(torch.bmm(weight.transpose(1, 2), to_x), x, 0.0)
        to_x = to_x.reshape(pooled2.shape)
        to_windows2 = first_maximum_backward(to_x, *windows2).flatten(1, 2)
        to_kernels2 = torch.bmm(to_windows2, columns2.transpose(1, 2))
        to_bias2 = to_x.sum(2)
        to_pooled1 = _fold(torch.bmm(kernels2.transpose(1, 2), to_windows2), pooled1, image)
        to_pooled1 = torch.ops.aten.threshold_backward(to_pooled1, pooled1, 0.0)
        # This product sums over a long inner dimension. It is four times faster if that is the contiguous one.
        to_kernels1 = torch.bmm(first_maximum_backward(to_pooled1, *windows1).flatten(1, 2),
                                columns1.transpose(1, 2).contiguous())
        return (None, kernel_gradient(to_kernels1, shape1), to_pooled1.sum(2), kernel_gradient(to_kernels2, shape2),
                to_bias2, *reversed(to_head))


def _as_rows(weight: Tensor) -> Tensor:
    """Kernels (G, O, C, 5, 5) as the rows of a matrix (G, 4·O, 36·C), for the four positions in a pooling window."""
    return window_kernels(weight).flatten(2)


def _pool(windows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pool ``windows`` (G, 4·O, N) to relu(max over the 4 window positions + bias), (G, O, N).

    Also returns the three tensors that the backward pass needs."""
    windows = windows.view(len(windows), 4, -1, windows.shape[2])
    largest, upper, lower = first_maximum(windows)
    return largest.add_(bias[:, :, None]).relu_(), windows, upper, lower


def _image_columns(inputs: Tensor) -> Tensor:
    """Images (G, S, C, H, W) → columns (G, 36·C, N) of the first layer's matrix product.

    Rows are the taps of a 6×6 patch, ordered by phase; columns are the pooled pixels ordered by phase, then the
    samples."""
    models, samples, channels, height, width = inputs.shape
    x = inputs.permute(0, 2, 3, 4, 1).contiguous()
    row, column = width * samples, samples
    rows, columns = (height - 4) // 4, (width - 4) // 4
    view = x.as_strided((models, channels, 2, 2, 3, 3, 2, 2, rows, columns, samples),
                        (channels * height * row, height * row, row, column, 2 * row, 2 * column, 2 * row, 2 * column,
                         4 * row, 4 * column, 1))
    return view.reshape(models, 36 * channels, -1)


def _grid(pooled: Tensor, image: torch.Size) -> Tensor:
    """View the first layer's pixels (G, C, N) as (G, C·4, rows, columns, S), ordered by phase."""
    return pooled.view(len(pooled), -1, (image[3] - 4) // 4, (image[4] - 4) // 4, image[1])


def _phase_columns(pooled: Tensor, inputs: Tensor) -> Tensor:
    """The first layer's pixels (G, C, N) → columns (G, 36·C, N') of the second layer's matrix product.

    Rows are the taps of a 6×6 patch, ordered by phase (see the module docstring); columns are the pooled pixels, then
    the samples."""
    grid = _grid(pooled, inputs.shape)
    windows = grid.unfold(2, grid.shape[2] - 2, 1).unfold(3, grid.shape[3] - 2, 1)
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(grid), 9 * grid.shape[1], -1)


def _fold(to_columns: Tensor, pooled: Tensor, image: torch.Size) -> Tensor:
    """Backward pass of :func:`_phase_columns`."""
    result = torch.zeros_like(pooled)
    grid = _grid(result, image)
    rows, columns = grid.shape[2] - 2, grid.shape[3] - 2
    taps = to_columns.view(*grid.shape[:2], 3, 3, rows, columns, -1)
    for i in range(3):
        for j in range(3):
            grid[:, :, i:i + rows, j:j + columns].add_(taps[:, :, i, j])
    return result
