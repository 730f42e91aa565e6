"""The residual networks as stacks, by grouped convolutions with channels-last memory."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fedgap.learning.models.layout import Layout
from fedgap.learning.models.resnet import Block, ResNet

Tensors = Mapping[str, Tensor]
_MOMENTUM, _EPSILON = 0.1, 1e-5  # the defaults of torch.nn.BatchNorm2d


class ResidualStack:
    """G residual networks, each with its own weights. Activations are (S, G·C, H, W).

    The models share no channel, so BatchNorm computes separate statistics for each client. ``kernels`` says whether
    Triton is available.
    """

    def __init__(self, module: ResNet, layout: Layout, *, kernels: bool) -> None:
        self.blocks = [(block.stride, block.padding) for block in module.blocks if isinstance(block, Block)]
        self.layout = layout
        self.kernels = kernels

    def __call__(self, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
        """Logits (G, S, classes); see :class:`~fedgap.learning.engine.forwards.Forward`."""
        models, samples = inputs.shape[:2]
        x = inputs.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        running = {} if training else self.layout.split_buffers(buffers)
        statistics: list[Tensor] = []

        def convolve(x: Tensor, name: str, stride: int = 1) -> Tensor:
            weight = parameters[f"{name}.weight"].flatten(0, 1)
            if self.kernels and training:
                from fedgap.learning.engine.kernels.convolve import Convolve, pays  # Triton: where there is a GPU
                if pays(x, weight, stride):
                    return Convolve.apply(x, weight, models, stride)  # type: ignore[no-any-return,no-untyped-call]
            return functional.conv2d(x, weight, stride=stride, padding=1, groups=models)

        def rectify(x: Tensor, name: str, residual: Tensor | None = None) -> Tensor:
            weight, bias = parameters[f"{name}.weight"].flatten(), parameters[f"{name}.bias"].flatten()
            if not training:
                mean, variance = running[f"{name}.running_mean"].flatten(), running[f"{name}.running_var"].flatten()
                if self.kernels:
                    from fedgap.learning.engine.kernels.normalise import rectify as rectified  # Triton
                    factor = weight * torch.rsqrt(variance + _EPSILON)
                    return rectified(x, factor, bias - factor * mean, residual)
                y = functional.batch_norm(x, mean, variance, weight, bias, False, eps=_EPSILON)
                return functional.relu(y if residual is None else y + residual)
            z, batch = self._rectify(x, weight, bias, residual)
            statistics.append(batch.reshape(2, models, -1).transpose(0, 1).flatten(1))
            return z

        x = rectify(convolve(x, "conv"), "bn")
        for i, (stride, padding) in enumerate(self.blocks):
            shortcut = _shortcut(x, models, stride, padding) if padding else x
            y = rectify(convolve(x, f"blocks.{i}.conv1", stride), f"blocks.{i}.bn1")
            x = rectify(convolve(y, f"blocks.{i}.conv2"), f"blocks.{i}.bn2", shortcut)
        if training:
            buffers.lerp_(torch.cat(statistics, dim=1), _MOMENTUM)
        x = x.mean((2, 3)).reshape(samples, models, -1).transpose(0, 1)
        return torch.baddbmm(parameters["fc.bias"][:, None].to(x.dtype), x, parameters["fc.weight"].transpose(1, 2))

    def _rectify(self, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute relu(batch_norm(x) [+ residual]), and the batch's mean and unbiased variance (2, G·C)."""
        if self.kernels:
            from fedgap.learning.engine.kernels.normalise import NormaliseRectify  # Triton: where there is a GPU
            return NormaliseRectify.apply(x, weight, bias, residual, _EPSILON)  # type: ignore[no-any-return,no-untyped-call]
        batch = weight.new_zeros(2, weight.numel())  # with momentum 1 the "running" statistics are the batch's
        y = functional.batch_norm(x, batch[0], batch[1], weight, bias, True, 1.0, _EPSILON)
        return functional.relu(y if residual is None else y + residual), batch


def _shortcut(x: Tensor, models: int, stride: int, padding: int) -> Tensor:
    """Subsample each model's channels, and add ``padding`` channels of zeros on either side."""
    x = x[:, :, ::stride, ::stride]
    by_model = x.permute(0, 2, 3, 1).reshape(x.shape[0], x.shape[2], x.shape[3], models, -1)  # channels last in memory
    return functional.pad(by_model, (padding, padding)).flatten(3).permute(0, 3, 1, 2)
