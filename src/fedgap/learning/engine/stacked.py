"""fedgap's own models as stacks: G models with different weights are applied to G batches in one computation."""

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgap.learning.engine.arrange import home
from fedgap.learning.engine.batch_last import fits, lenet_batch_last
from fedgap.learning.engine.forwards import ByModel, Forward, Grouped
from fedgap.learning.engine.pooling import convolve_and_pool
from fedgap.learning.engine.residual import ResidualStack
from fedgap.learning.models.layout import Layout
from fedgap.learning.models.lenet import LeNet5
from fedgap.learning.models.mlp import MLP
from fedgap.learning.models.resnet import ResNet

Tensors = Mapping[str, Tensor]


def local_stack_of(module: nn.Module, layout: Layout, dtype: torch.dtype, device: torch.device,
                   image: torch.Size) -> Forward | None:
    """A stack for local steps on images (C, H, W), or None if none is faster than that of :func:`stack_of`.

    FedSGD always uses :func:`stack_of`, so that its results stay equal bit for bit to those of earlier versions."""
    if type(module) is LeNet5 and device.type == "cpu" and dtype is not torch.bfloat16 and fits(*image[1:]):
        return ByModel(lenet_batch_last, layout, dtype)
    return None


def stack_of(module: nn.Module, layout: Layout, dtype: torch.dtype, device: torch.device) -> Forward | None:
    """The stacked computation of ``module`` if it is one of fedgap's own models, otherwise None.

    A subclass does not count as one of them, because its forward pass may differ."""
    on_gpu = device.type == "cuda"
    kernels = on_gpu and find_spec("triton") is not None and dtype is not torch.float64
    if type(module) is LeNet5:
        if not on_gpu:
            return ByModel(lenet_by_model, layout, dtype)
        return Grouped(lenet_fused if kernels else lenet_grouped, layout, dtype, kernels=kernels)
    if type(module) is MLP:
        return ByModel(partial(mlp, len(module.layers)), layout, dtype)
    if type(module) is ResNet:
        return Grouped(ResidualStack(module, layout, kernels=kernels), layout, dtype, kernels=kernels)
    return None


class _Linear(torch.autograd.Function):
    """x·Wᵀ + b for each model.

    Unlike autograd's, the gradient of the weights has the memory layout of W. Gradients are written to ``weight_home``
    and ``bias_home`` if given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, weight_home: Tensor | None,
                bias_home: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype, ctx.homes = bias.dtype, (weight_home, bias_home)
        return torch.baddbmm(bias[:, None].to(x.dtype), x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (weight_home, bias_home) = ctx.saved_tensors, ctx.homes
        to_x = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        to_weight = torch.bmm(gradient.transpose(1, 2), x, out=weight_home)
        return to_x, to_weight, torch.sum(gradient, 1, dtype=ctx.bias_dtype, out=bias_home), None, None


def linear(x: Tensor, parameters: Tensors, name: str) -> Tensor:
    """x·Wᵀ + b for each model: (G, S, in) → (G, S, out)."""
    return _Linear.apply(x, *_of_layer(parameters, name))  # type: ignore[no-any-return,no-untyped-call]


def _of_layer(parameters: Tensors, name: str) -> tuple[Tensor | None, ...]:
    """A layer's weight and bias, and the two tensors into which their gradients may be written (or None)."""
    names = f"{name}.weight", f"{name}.bias"
    return *(parameters[one] for one in names), *(home(parameters, one) for one in names)


def mlp(layers: int, parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
    """The logits of a stack of :class:`~fedgap.learning.models.mlp.MLP` by batched matrix products."""
    x = inputs.flatten(2)
    for i in range(layers - 1):
        x = functional.relu(linear(x, parameters, f"layers.{i}"))
    return linear(x, parameters, f"layers.{layers - 1}")


def lenet_by_model(parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
    """Logits of LeNet-5 on CPUs: convolutions model by model, everything else stacked. Activations are (G·S, C, H,
    W)."""
    models, samples = inputs.shape[:2]
    x = convolve_and_pool(inputs.flatten(0, 1), parameters["conv1.weight"], models)
    x = functional.relu(_add_bias(x, parameters["conv1.bias"]))
    # Channels last, because torch vectorises pooling over channels, and here there are enough of them.
    parts = x.contiguous(memory_format=torch.channels_last).chunk(models)
    x = torch.cat([functional.conv2d(part, own) for part, own in zip(parts, parameters["conv2.weight"])])
    x = functional.relu(_add_bias(functional.max_pool2d(x, 2), parameters["conv2.bias"]))
    return _head(x.reshape(models, samples, -1), parameters)


def _add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x (G·S, C, H, W) plus each model's bias (G, C). This is done after pooling, where it is a quarter of the work."""
    by_model = x.reshape(len(bias), -1, *x.shape[1:])
    return (by_model + bias[:, None, :, None, None].to(x.dtype)).flatten(0, 1)


def lenet_grouped(parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
    """Logits of LeNet-5 on GPUs by grouped convolutions. Activations are (S, G·C, H, W)."""
    models, samples = inputs.shape[:2]
    x = inputs.transpose(0, 1).flatten(1, 2)
    for name in ("conv1", "conv2"):
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        x = functional.conv2d(x, weight.flatten(0, 1).contiguous(), bias.flatten().to(x.dtype), groups=models)
        x = functional.relu(functional.max_pool2d(x, 2))
    return _head(x.reshape(samples, models, -1).transpose(0, 1), parameters)


def lenet_fused(parameters: Tensors, buffers: Tensor, inputs: Tensor, training: bool) -> Tensor:
    """Logits of LeNet-5 on GPUs by fedgap's own kernels. Activations are (G, S, H, W, C)."""
    from fedgap.learning.engine.kernels.pool import ConvolvePool  # needs Triton, so import it only on a GPU

    if inputs.shape[3] % 4 or inputs.shape[4] % 4:  # the kernels of both layers need images of even size
        return lenet_grouped(parameters, buffers, inputs, training)
    x = inputs.permute(0, 1, 3, 4, 2).contiguous()
    for name in ("conv1", "conv2"):
        x = ConvolvePool.apply(x, *_of_layer(parameters, name))  # type: ignore[no-untyped-call]
    return _head(x.permute(0, 1, 4, 2, 3).flatten(2), parameters)


def _head(x: Tensor, parameters: Tensors) -> Tensor:
    x = functional.relu(linear(x, parameters, "fc1"))
    return linear(functional.relu(linear(x, parameters, "fc2")), parameters, "fc3")
