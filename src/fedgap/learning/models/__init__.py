"""Models by name, and a user's own module by import path."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedgap.errors import InputError
from fedgap.learning.models.initialise import he
from fedgap.learning.models.layout import Layout
from fedgap.learning.models.lenet import LeNet5
from fedgap.learning.models.mlp import MLP
from fedgap.learning.models.resnet import ResNet
from fedgap.registry import MODELS

__all__ = ["MLP", "Layout", "LeNet5", "ResNet", "build"]


def build(name: str, *, input_shape: Sequence[int], classes: int, seed: int, initialisation: str = "he",
          **arguments: Any) -> nn.Module:
    """The model ``name`` for inputs of ``input_shape`` (channels, height, width), initialised from ``seed``.

    ``name`` is in :data:`fedgap.registry.MODELS`, or ``package.module:NAME``: the factory behind it (a class or a
    function) is called with ``arguments`` and, where it takes arguments of these names, ``input_shape`` and
    ``classes``. ``initialisation`` is ``he`` (see :func:`~fedgap.learning.models.initialise.he`) or ``own``: what the
    factory drew, under a torch seed of ``seed``. The global random state stays as it was.
    """
    if initialisation not in ("he", "own"):
        raise InputError(f"model.initialisation: {initialisation!r} is not known; it is 'he' or 'own'")
    factory = MODELS.load(name, "model.name")
    if not callable(factory):
        raise InputError(f"model.name: {name} is a {type(factory).__name__}; it must be a class or a function")
    offered = {"input_shape": tuple(input_shape), "classes": classes}
    taken = inspect.signature(factory).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        if unknown := sorted(set(arguments) - set(taken)):
            raise InputError(f"model.arguments.{unknown[0]}: {name} takes no such argument; it takes "
                             f"{', '.join(taken)}")
        offered = {key: value for key, value in offered.items() if key in taken}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = factory(**{**offered, **arguments})
            if isinstance(module, nn.Module):
                _materialise(module, input_shape)
        except Exception as error:  # whatever the factory, perhaps a user's, raises is about what it was given
            raise InputError(f"model: {name} could not be built with input_shape={tuple(input_shape)}, "
                             f"classes={classes}: {error}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model.name: {name} gave a {type(module).__name__}; it must give a torch.nn.Module")
    if initialisation == "he":
        he(module, seed)
    return module


def _materialise(module: nn.Module, input_shape: Sequence[int]) -> None:
    """Gives a lazy module (``LazyLinear`` and the like) its shapes, by showing it two samples of zeros."""
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        training = module.training
        with torch.no_grad():
            module.eval()(torch.zeros(2, *input_shape))
        module.train(training)
