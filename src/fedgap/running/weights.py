"""Load weights from a safetensors file into a module, and check every name and shape."""

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

    Names and shapes must be those of the module; other floating-point formats are converted. BatchNorm's integer
    counters of batches may be in the file, but are not read.

    :param key: the beginning of error messages."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{key}: {path} cannot be read as safetensors ({reason})") from None
    targets = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = {name: tensor for name, tensor in targets.items() if tensor.is_floating_point()}
    if missing := [name for name in wanted if name not in tensors]:
        raise InputError(f"{key}: {path} must have the tensor {missing[0]!r}, which the model has"
                         f"{did_you_mean(missing[0], set(tensors) - set(wanted))}")
    if unknown := [name for name in tensors if name not in targets]:
        raise InputError(f"{key}: {path} has the tensor {unknown[0]!r}, which the model does not have; remove it")
    for name, target in wanted.items():
        value = tensors[name]
        if value.shape != target.shape:
            raise InputError(f"{key}: {name} in {path} must have the shape {tuple(target.shape)} that the model has; "
                             f"it has {tuple(value.shape)}")
        if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
            raise InputError(f"{key}: {name} in {path} must contain only finite floating-point numbers")
        target.copy_(value)
