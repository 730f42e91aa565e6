"""Weights from a safetensors file into a module, checked name by name."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedgap.errors import InputError, did_you_mean


@torch.no_grad()
def load_weights(module: nn.Module, path: str | Path, *, key: str = "model.weights") -> None:
    """Write the tensors of a safetensors file into ``module``: every parameter and every floating-point buffer.

    The file's names and shapes must be the module's; numbers of another floating-point format are converted. Counters
    of batches, which BatchNorm keeps as whole numbers, may be there or not, and are not read.

    :param key: what an error message begins with.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{key}: {path} cannot be read as safetensors ({reason})") from None
    targets = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = {name: tensor for name, tensor in targets.items() if tensor.is_floating_point()}
    if missing := [name for name in wanted if name not in tensors]:
        raise InputError(f"{key}: {path} has no {missing[0]!r}, which the model has"
                         f"{did_you_mean(missing[0], set(tensors) - set(wanted))}")
    if unknown := [name for name in tensors if name not in targets]:
        raise InputError(f"{key}: {path} has {unknown[0]!r}, which the model does not have")
    for name, target in wanted.items():
        value = tensors[name]
        if value.shape != target.shape:
            raise InputError(f"{key}: {name} has shape {tuple(value.shape)} in {path}; the model's is "
                             f"{tuple(target.shape)}")
        if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
            raise InputError(f"{key}: {name} in {path} must have finite floating-point numbers only")
        target.copy_(value)
