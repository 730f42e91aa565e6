"""Build a model by its name, or a user's own module by its import path."""

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
    """Build the model ``name`` for inputs of ``input_shape`` (channels, height, width), initialised from ``seed``.

    ``name`` is in :data:`fedgap.registry.MODELS`, or is ``package.module:NAME``: that factory (a class or a function)
    is called with ``arguments`` and, if it has parameters of these names, ``input_shape`` and ``classes``.
    ``initialisation`` is ``he`` (see :func:`~fedgap.learning.models.initialise.he`) or ``own``, which keeps what the
    factory drew with torch's seed set to ``seed``. The global random state is not changed. A module that returns
    probabilities (one that ends in ``Softmax`` or ``LogSoftmax``) raises an InputError, because training computes the
    cross-entropy of logits."""
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
        raise InputError(f"model.name: {name} returned a {type(module).__name__}; it must return a torch.nn.Module")
    if initialisation == "he":
        he(module, seed)
    if name not in MODELS.built_in:
        _refuse_probabilities(module, name, input_shape)
    return module


def _materialise(module: nn.Module, input_shape: Sequence[int]) -> None:
    """Give a lazy module (``LazyLinear`` and similar) its shapes by running it on two samples of zeros."""
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        training = module.training
        with torch.no_grad():
            module.eval()(torch.zeros(2, *input_shape))
        module.train(training)


def _refuse_probabilities(module: nn.Module, name: str, input_shape: Sequence[int]) -> None:
    """Raise an :class:`InputError` if the module's outputs for random inputs are probabilities or their logarithms.

    The outputs are tested rather than the layers, because a ``Softmax`` layer may be used elsewhere in the model, or be
    called as a function."""
    modes = {part: part.training for part in module.modules()}
    inputs = torch.randn(4, *input_shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = module.eval()(inputs)
    except Exception:  # whatever a user's module raises; training's own check says what is wrong with it
        return
    finally:
        for part, training in modes.items():
            part.training = training
    if not isinstance(outputs, torch.Tensor) or outputs.dim() != 2 or outputs.shape[1] < 2:
        return
    one = torch.ones(len(outputs), dtype=outputs.dtype)
    if bool((outputs >= 0).all()) and torch.allclose(outputs.sum(1), one, atol=1e-4):
        end, given = "Softmax", "probabilities"
    elif bool((outputs <= 0).all()) and torch.allclose(outputs.exp().sum(1), one, atol=1e-4):
        end, given = "LogSoftmax", "logarithms of probabilities"
    else:
        return
    raise InputError(f"model: {name} returns {given}; training needs one logit for each class, so remove the {end} at "
                     "its end")
