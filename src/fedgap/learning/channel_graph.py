"""Find the neurons and channels of a module that can be removed, by tracing its forward pass with ``torch.fx``.

The outputs of a convolution or linear layer are a *group* of units. Units can be removed if every later use is
understood: BatchNorm, activations, pooling and flattening keep units separate, and the next convolution or linear layer
reads them one by one. If anything else reads a group (an addition, a concatenation, an unknown function, the model's
output), no unit of it can be removed. So in a residual block only the inner channels can be removed.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from fedgap.errors import InputError
from fedgap.learning.models.layout import Layout

KEY = "pruning.structure"
"""The experiment's key, for error messages."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ELEMENTWISE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
                nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity,
                nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_POOLING = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
            nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
            nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_UNIT_BY_UNIT: frozenset[Any] = frozenset((
    torch.relu, torch.tanh, torch.sigmoid, functional.relu, functional.relu6, functional.leaky_relu, functional.elu,
    functional.selu, functional.gelu, functional.silu, functional.mish, functional.softplus, functional.hardtanh,
    functional.hardswish, functional.tanh, functional.sigmoid, functional.dropout,
    functional.max_pool1d, functional.max_pool2d, functional.max_pool3d, functional.avg_pool1d, functional.avg_pool2d,
    functional.avg_pool3d, functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d,
    functional.adaptive_avg_pool3d, functional.adaptive_max_pool1d, functional.adaptive_max_pool2d,
    torch.max_pool1d, torch.max_pool2d, torch.max_pool3d, torch.avg_pool1d, torch.adaptive_avg_pool1d,
    "relu", "relu_", "tanh", "sigmoid", "contiguous", "clone"))
"""Functions and methods that process each unit in the same way and separately."""


class Slice(NamedTuple):
    """A dimension ``dim`` of a tensor that runs over the units of group number ``group``, with ``repeat`` neighbouring
    entries for each unit."""

    dim: int
    group: int
    repeat: int


@dataclass(frozen=True)
class ChannelGraph:
    """The groups of units that can be removed, and the tensors that have a dimension over the units of a group.

    ``names`` and ``widths``: for each group the layer that computes it, and its number of units. ``slices``: the
    dimensions that run over units, by the name of the parameter or buffer. ``flops``: operations of the forward pass of
    one sample, by the name of the layer's weight."""

    names: tuple[str, ...]
    widths: tuple[int, ...]
    slices: dict[str, tuple[Slice, ...]]
    flops: dict[str, int]


@dataclass(eq=False)
class _Group:
    """A group of units during the walk; ``whole`` says why they cannot be removed, or is empty."""

    name: str
    width: int
    whole: str = ""
    slices: list[tuple[str, int, int]] = field(default_factory=list)
    """The tensors that contain the units, each as (name, dimension, repeat)."""


class _Units(NamedTuple):
    """What dimension 1 of a value runs over: the units of ``group``, each ``repeat`` times in a row. None for anything
    else."""

    group: _Group | None
    repeat: int = 1


_FIXED = _Units(None)


def channel_graph(module: nn.Module, input_shape: Sequence[int]) -> ChannelGraph:
    """Find the removable units of ``module`` for samples of ``input_shape``. Raises an :class:`InputError` if there are
    none."""
    training = {part: part.training for part in module.modules()}
    try:
        traced = fx.symbolic_trace(module)
        example = next(module.parameters()).new_zeros(2, *input_shape)
        with torch.no_grad():
            ShapeProp(traced.eval()).propagate(example)
    except Exception as error:  # whatever a user's forward pass raises when it is traced
        why = " ".join(str(error).split())[:160]
        raise InputError(f"{KEY}: channels needs a model whose forward pass torch.fx can trace, and it cannot trace "
                         f"this one ({why}); use weights") from None
    finally:
        for part, mode in training.items():
            part.training = mode
    walk = _Walk(module, traced)
    walk.all()
    groups = [group for group in walk.groups if not group.whole and group.width > 1]
    if not groups:
        reasons = Counter(group.whole for group in walk.groups if group.whole)
        why = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
        raise InputError(f"{KEY}: channels needs a convolution or linear layer whose outputs go only to another one; "
                         f"no layer of this model has outputs that can be removed{why}; use weights")
    slices: dict[str, list[Slice]] = {}
    for number, group in enumerate(groups):
        for name, dim, repeat in group.slices:
            slices.setdefault(name, []).append(Slice(dim, number, repeat))
    return ChannelGraph(tuple(group.name for group in groups), tuple(group.width for group in groups),
                        {name: tuple(sorted(parts)) for name, parts in slices.items()}, walk.flops)


class _Walk:
    """One pass over the traced graph, from the input to the output, that collects groups of units."""

    def __init__(self, module: nn.Module, traced: fx.GraphModule) -> None:
        self.graph, self.modules = traced.graph, dict(module.named_modules())
        self.trained = set(Layout.of(module).names)
        self.calls = Counter(node.target for node in self.graph.nodes if node.op == "call_module")
        owners = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
        self.shared = {name for name, part in self.modules.items()
                       if any(owners[id(p)] > 1 for p in part.parameters(recurse=False))}
        self.units: dict[fx.Node, _Units] = {}
        self.groups: list[_Group] = []
        self.flops: dict[str, int] = {}

    def all(self) -> None:
        """Visit every node in order."""
        for node in self.graph.nodes:
            self.units[node] = self._visit(node)

    def _visit(self, node: fx.Node) -> _Units:
        inputs = node.all_input_nodes
        if node.op == "placeholder":
            return _FIXED
        if node.op == "call_module":
            part = self.modules[str(node.target)]
            if isinstance(part, nn.Linear | _ConvNd) and type(part) in (*_CONVOLUTIONS, nn.Linear):
                return self._layer(node, str(node.target), part)
            if type(part) in _NORMS:
                return self._norm(node, str(node.target))
            if type(part) in (*_ELEMENTWISE, *_POOLING):
                return self.units[inputs[0]]
            if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
                return self._flattened(inputs[0])
            return self._whole(inputs, f"{node.target} is a {type(part).__name__}")
        if node.op in ("call_function", "call_method"):
            if node.target in _UNIT_BY_UNIT and len(inputs) == 1 and _shape(node):
                return self.units[inputs[0]]
            if self._flattens(node):
                return self._flattened(inputs[0])
            if self._averages(node):
                return self.units[inputs[0]]
            if node.target == "size" or (node.target is getattr and node.args[1] == "shape"):  # not a value
                return _FIXED
        return self._whole(inputs, _reason(node))

    def _whole(self, inputs: Sequence[fx.Node], why: str) -> _Units:
        """Mark the groups whose units these nodes compute as not removable; ``why`` is the reason. Returns that the
        result has no units."""
        for node in inputs:
            group = self.units[node].group
            if group is not None and not group.whole:
                group.whole = f"{group.name}: {why}"
        return _FIXED

    def _layer(self, node: fx.Node, name: str, part: nn.Linear | _ConvNd) -> _Units:
        source = node.all_input_nodes[0]
        weight, shape = f"{name}.weight", _shape(node)
        self.flops[weight] = self.flops.get(weight, 0) + 2 * prod(shape[1:]) * prod(part.weight.shape[1:])
        trained = weight in self.trained and (part.bias is None or f"{name}.bias" in self.trained)
        why = ("is not trained" if not trained else "is used more than once" if self.calls[name] > 1 else
               "shares its weights" if name in self.shared else
               "is a grouped convolution" if isinstance(part, _ConvNd) and part.groups > 1 else
               "reads more than one feature dimension" if isinstance(part, nn.Linear) and len(shape) != 2 else "")
        if why:
            return self._whole([source], f"{name} {why}")
        read = self.units[source]
        if read.group is not None:
            read.group.slices.append((weight, 1, read.repeat))
        group = _Group(name, part.weight.shape[0])
        group.slices += [(weight, 0, 1)] + ([(f"{name}.bias", 0, 1)] if f"{name}.bias" in self.trained else [])
        self.groups.append(group)
        return _Units(group)

    def _norm(self, node: fx.Node, name: str) -> _Units:
        source = node.all_input_nodes[0]
        group, repeat = self.units[source]
        if group is None:
            return _FIXED
        part = self.modules[name]
        affine = [f"{name}.{which}" for which in ("weight", "bias") if getattr(part, which) is not None]
        if self.calls[name] > 1 or name in self.shared or any(which not in self.trained for which in affine):
            return self._whole([source], f"{name} is used more than once, or is not trained")
        statistics = [f"{name}.{which}" for which in ("running_mean", "running_var")
                      if getattr(part, which) is not None]
        group.slices += [(which, 0, repeat) for which in (*affine, *statistics)]
        return _Units(group, repeat)

    def _flattened(self, source: fx.Node) -> _Units:
        group, repeat = self.units[source]
        return _Units(group, repeat * prod(_shape(source)[2:]))

    def _flattens(self, node: fx.Node) -> bool:
        """Whether a node joins all dimensions except the batch into one, for any batch length."""
        before, after = _shape(node.all_input_nodes[0]) if node.all_input_nodes else (), _shape(node)
        if len(after) != 2 or not before or after[0] != before[0]:
            return False
        if node.target in (torch.flatten, "flatten"):
            return True
        return node.target in (torch.reshape, "reshape", "view") and _flat_arguments(node)[-1] == -1

    def _averages(self, node: fx.Node) -> bool:
        """Whether a node is a mean, sum or maximum over dimensions that come after the units' dimension."""
        if node.target not in (torch.mean, "mean", torch.amax, "amax", torch.sum, "sum"):
            return False
        dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        rank = len(_shape(node.all_input_nodes[0]))
        dims = (dims,) if isinstance(dims, int) else dims
        return (isinstance(dims, list | tuple) and all(isinstance(dim, int) and dim % rank > 1 for dim in dims)
                and bool(_shape(node)))


def _flat_arguments(node: fx.Node) -> list[Any]:
    """The sizes passed to a reshape, as one flat list."""
    sizes: list[Any] = []
    for argument in (*node.args[1:], *node.kwargs.values()):
        sizes += list(argument) if isinstance(argument, list | tuple) else [argument]
    return sizes or [None]


def _shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's value for a batch of two samples; () if the value is not a single tensor."""
    meta = node.meta.get("tensor_meta")
    return tuple(meta.shape) if meta is not None and hasattr(meta, "shape") else ()


_ADDITIONS: tuple[str | Callable[..., Any], ...] = (operator.add, operator.iadd, torch.add, "add", "add_")


def _reason(node: fx.Node) -> str:
    """Why the units that this node reads cannot be removed."""
    if node.op == "output":
        return "it is the model's output"
    if node.target in _ADDITIONS:
        return "it is added to another value"
    return f"it is read by {getattr(node.target, '__name__', node.target)}, which may mix channels"


def kept_shape(shape: Sequence[int], slices: Sequence[Slice], full: Sequence[int], widths: Sequence[int]) -> list[int]:
    """The shape of a tensor after its groups have been cut from ``full`` to ``widths`` units."""
    kept = list(shape)
    for dim, group, repeat in slices:
        assert kept[dim] == full[group] * repeat
        kept[dim] = widths[group] * repeat
    return kept


def unit_numbers(shape: Sequence[int], part: Slice, first: int) -> Tensor:
    """For every entry of a tensor of ``shape``, the number of the unit it belongs to along one slice; units are counted
    from ``first``."""
    along = first + torch.arange(shape[part.dim], dtype=torch.int32) // part.repeat
    return along.reshape([-1 if dim == part.dim else 1 for dim in range(len(shape))]).expand(*shape)
