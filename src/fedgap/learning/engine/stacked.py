"""Our own models as stacks: G models with own weights on G batches in one computation."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgap.learning.engine.forwards import Body
from fedgap.learning.engine.pooling import convolve_and_pool
from fedgap.learning.models.lenet import LeNet5
from fedgap.learning.models.mlp import MLP
from fedgap.learning.models.resnet import Block, ResNet

Tensors = Mapping[str, Tensor]


def body_of(module: nn.Module, device: torch.device) -> Body | None:
    """The stacked computation of ``module``, if it is one of ours (not of a subclass: its forward pass may differ)."""
    if type(module) is LeNet5:
        return lenet_grouped if device.type == "cuda" else lenet_by_model
    if type(module) is MLP:
        return partial(mlp, len(module.layers))
    if type(module) is ResNet:
        return partial(resnet, [(b.stride, b.padding) for b in module.blocks if isinstance(b, Block)])
    return None


def linear(x: Tensor, parameters: Tensors, name: str) -> Tensor:
    """x·Wᵀ + b for each model: (G, S, in) → (G, S, out)."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    return torch.baddbmm(bias[:, None].to(x.dtype), x, weight.transpose(1, 2))


def mlp(layers: int, parameters: Tensors, buffers: Tensors, inputs: Tensor, training: bool) -> Tensor:
    """:class:`~fedgap.learning.models.mlp.MLP` by batched matrix products."""
    x = inputs.flatten(2)
    for i in range(layers - 1):
        x = functional.relu(linear(x, parameters, f"layers.{i}"))
    return linear(x, parameters, f"layers.{layers - 1}")


def lenet_by_model(parameters: Tensors, buffers: Tensors, inputs: Tensor, training: bool) -> Tensor:
    """LeNet-5 for CPUs: convolutions model by model, all else stacked. Activations are (G·S, C, H, W)."""
    models, samples = inputs.shape[:2]
    x = convolve_and_pool(inputs.flatten(0, 1), parameters["conv1.weight"], models)
    x = functional.relu(_add_bias(x, parameters["conv1.bias"]))
    # Channels last: torch's pooling is vectorised over channels, of which there are enough now.
    parts = x.contiguous(memory_format=torch.channels_last).chunk(models)
    x = torch.cat([functional.conv2d(part, own) for part, own in zip(parts, parameters["conv2.weight"])])
    x = functional.relu(_add_bias(functional.max_pool2d(x, 2), parameters["conv2.bias"]))
    x = x.reshape(models, samples, -1)
    x = functional.relu(linear(x, parameters, "fc1"))
    return linear(functional.relu(linear(x, parameters, "fc2")), parameters, "fc3")


def _add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x (G·S, C, H, W) plus each model's bias (G, C); done after pooling, where it is a quarter of the work."""
    by_model = x.reshape(len(bias), -1, *x.shape[1:])
    return (by_model + bias[:, None, :, None, None].to(x.dtype)).flatten(0, 1)


def lenet_grouped(parameters: Tensors, buffers: Tensors, inputs: Tensor, training: bool) -> Tensor:
    """LeNet-5 for GPUs by grouped convolutions. Activations are (S, G·C, H, W)."""
    models, samples = inputs.shape[:2]
    x = inputs.transpose(0, 1).flatten(1, 2)
    for name in ("conv1", "conv2"):
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        x = functional.conv2d(x, weight.flatten(0, 1), bias.flatten().to(x.dtype), groups=models)
        x = functional.relu(functional.max_pool2d(x, 2))
    x = x.reshape(samples, models, -1).transpose(0, 1)
    x = functional.relu(linear(x, parameters, "fc1"))
    return linear(functional.relu(linear(x, parameters, "fc2")), parameters, "fc3")


def resnet(blocks: list[tuple[int, int]], parameters: Tensors, buffers: Tensors, inputs: Tensor,
           training: bool) -> Tensor:
    """The residual networks by grouped convolutions, channels last. Activations are (S, G·C, H, W).

    A channel of a model is a channel of its own here, so BatchNorm's statistics are each client's. ``blocks`` gives
    each block's stride and the channels that pad its shortcut on either side.
    """
    models, samples = inputs.shape[:2]
    x = inputs.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)

    def convolve(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = parameters[f"{name}.weight"].flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, stride=stride, padding=1, groups=models)

    def normalise(x: Tensor, name: str) -> Tensor:
        mean, variance = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
        running = mean.flatten().clone(), variance.flatten().clone()  # autograd watches what it has read
        y = functional.batch_norm(x, *running, parameters[f"{name}.weight"].flatten(),
                                  parameters[f"{name}.bias"].flatten(), training)
        if training:
            mean.copy_(running[0].view_as(mean))
            variance.copy_(running[1].view_as(variance))
        return y

    x = functional.relu(normalise(convolve(x, "conv"), "bn"))
    for i, (stride, padding) in enumerate(blocks):
        y = functional.relu(normalise(convolve(x, f"blocks.{i}.conv1", stride), f"blocks.{i}.bn1"))
        y = normalise(convolve(y, f"blocks.{i}.conv2"), f"blocks.{i}.bn2")
        if padding:
            x = _shortcut(x, models, stride, padding)
        x = functional.relu(y + x)
    x = x.mean((2, 3)).reshape(samples, models, -1).transpose(0, 1)
    return linear(x, parameters, "fc")


def _shortcut(x: Tensor, models: int, stride: int, padding: int) -> Tensor:
    """Each model's channels subsampled, with ``padding`` channels of zeros on either side."""
    x = x[:, :, ::stride, ::stride]
    by_model = x.reshape(x.shape[0], models, -1, *x.shape[2:])
    return functional.pad(by_model, (0, 0, 0, 0, padding, padding)).flatten(1, 2)
