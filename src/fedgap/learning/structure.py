"""What is pruned: single weights, or whole neurons and channels. Both give nested masks of one flat ranking.

In both cases λ is the share of the model's M weights that a client removes, so that its upload has at most (1 − λ)·M
values, as planned.

**Weights.** A client keeps the round((1 − λ)·M) most important weights, wherever they are. It computes with masks,
which takes as long as the whole model.

**Channels.** A client keeps whole units (neurons of linear layers, channels of convolutions) and computes with a model
that is really smaller. :mod:`fedgap.learning.channel_graph` finds the units that can be removed, in groups: a group is
the units of one layer. Units are removed one by one. The order of the layers is fixed: as the share of removed units
grows from 0 to 1, the j-th unit of a layer with C units is removed as soon as the share exceeds (j − 1)/C. So all
layers lose the same share, rounded up to whole units, and each keeps at least one. (Because of this rounding, the few
wide units of the first layers, which need most operations, are removed early, so that operations fall about as much as
bits.) Importance decides which unit of the layer is removed: the one whose weights have the smallest sum of scores. So
the possible sizes of the model, its bits and its FLOPs are known before training; a client takes the largest size with
at most round((1 − λ)·M) weights. E is the number of units that can be removed, so there are E + 1 possible sizes.

A weight belongs to two units (its output and its input) and is removed with the first of them; its rank is the number
of weights that are removed after it. So a client that keeps k weights keeps those of rank below k, as with single
weights (:mod:`fedgap.learning.masks`): masks are nested, uploads need no indices, and the server's side of a round is
the same for both structures. The values that a client keeps, in the order of their indices, are the small model's
weights in the order of the small model's layout."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgap.errors import InputError
from fedgap.learning import masks
from fedgap.learning.channel_graph import KEY, channel_graph, kept_shape, unit_numbers
from fedgap.learning.models.layout import Layout
from fedgap.learning.sizes import forward_flops

STRUCTURES = ("weights", "channels")
"""The values of ``pruning.structure``."""
_KEPT = 256  # small modules that are cached
_TOLERANCE = 1e-9  # largest allowed error of the small model's logits in float64, relative to the largest logit


class Structure(Protocol):
    """Says what a client with pruning ratio λ keeps of the model's M weights."""

    @property
    def size(self) -> int:
        """M, the number of weights of the whole model."""

    def keep_count(self, ratio: float) -> int:
        """The number of weights that a client with this pruning ratio keeps."""

    def ranks(self, scores: Tensor) -> Tensor:
        """The rank of each weight by ``scores`` (..., M), int32. A client that keeps k weights keeps those of rank
        below k."""

    def kept_share(self, ranks: Tensor, ratios: Sequence[float]) -> Tensor:
        """The factor (M,) by which each weight is multiplied in the evaluated pruned model, for a ranking (M,) and
        clients with these ratios."""


@dataclass(frozen=True)
class Weights:
    """Pruning of single weights."""

    size: int

    def keep_count(self, ratio: float) -> int:
        """How many weights a client with this ratio keeps: round((1 − λ)·M)."""
        return masks.keep_count(ratio, self.size)

    def ranks(self, scores: Tensor) -> Tensor:
        """Rank the weights by their scores (..., M) alone."""
        return masks.ranks(scores)

    def kept_share(self, ranks: Tensor, ratios: Sequence[float]) -> Tensor:
        """The share (M,) of the clients that keep each weight: the factor in the mean of their pruned models."""
        return masks.kept_fraction(ranks, ratios)


class _Block(NamedTuple):
    """n groups of equal form, each with C units of P weights: ``units`` (n, C) are the units' numbers, ``members`` (n,
    C, P) the indices of their weights, and ``ranks`` (n, C) the rank of the unit at each position of its layer's
    ranking."""

    units: Tensor
    members: Tensor
    ranks: Tensor


class _Tables(NamedTuple):
    """Index tensors on one device: the blocks, the output unit and the input unit of each weight (M,), and the unit of
    each buffer entry (B,).

    Units are numbered from 0 to U − 1; the number U stands for "never removed"."""

    blocks: tuple[_Block, ...]
    output_unit: Tensor
    input_unit: Tensor
    buffer_unit: Tensor


class Channels:
    """Pruning of whole neurons and channels of one module, for samples of ``input_shape``."""

    def __init__(self, module: nn.Module, input_shape: Sequence[int]) -> None:
        self.module, self.input_shape = copy.deepcopy(module).cpu(), tuple(input_shape)
        self.graph = graph = channel_graph(self.module, input_shape)
        self.layout = Layout.of(module)
        self.size = self.layout.size
        removals, self.widths = _removal_order(graph.widths)
        """``widths`` (E + 1, groups): units per group at every possible size, from the whole model to the smallest."""
        self.sizes = self._count(dict(zip(self.layout.names, self.layout.shapes, strict=True)))
        """The number of weights at every possible size, (E + 1,), falling."""
        self._widths_by_size: dict[int, tuple[int, ...]] = dict(
            zip(self.sizes.tolist(), map(tuple, self.widths.tolist()), strict=True))
        self._position_ranks = [[0] * width for width in graph.widths]
        """For each group, the rank of the unit at each position of the layer's ranking; position 0 is never removed."""
        for (group, position), left in zip(removals, self.sizes[1:].tolist(), strict=True):
            self._position_ranks[group][position] = left
        self._units = sum(graph.widths)
        self._known: dict[torch.device, _Tables] = {}
        self.small_module = lru_cache(_KEPT)(self._small_module)
        self._limits = lru_cache(_KEPT)(self._limits_of)
        self._check()

    # --- sizes ------------------------------------------------------------------------------------------------------

    def _count(self, shapes: dict[str, torch.Size]) -> NDArray[np.int64]:
        """Total number of entries of tensors with these shapes at every possible size, (E + 1,)."""
        counts = [self._scaled(prod(shape), name) for name, shape in shapes.items()]
        return np.asarray(np.sum(counts, axis=0), dtype=np.int64)

    def _scaled(self, whole: int, name: str) -> NDArray[np.int64]:
        """Scale a number that belongs to the tensor ``name`` of the whole model to every possible size, (E + 1,).

        The number is proportional to the width of each group that the tensor's dimensions run over."""
        amount = np.full(len(self.widths), whole, dtype=np.int64)
        for _, group, _ in self.graph.slices.get(name, ()):
            amount = amount // self.graph.widths[group] * self.widths[:, group]
        return amount

    @property
    def largest_ratio(self) -> float:
        """The largest pruning ratio λ that can be reached, with one unit left in every layer."""
        return 1.0 - int(self.sizes[-1]) / self.size

    def flops(self) -> NDArray[np.float64]:
        """Operations of one sample's forward pass at every possible size, (E + 1,), counted as in
        :func:`~fedgap.learning.sizes.flops_per_sample`."""
        layers = self.graph.flops
        rest = forward_flops(self.module, self.input_shape) - sum(layers.values())
        counts = [self._scaled(amount, name) for name, amount in layers.items()]
        return np.asarray(rest + np.sum(counts, axis=0), dtype=np.float64)

    def keep_count(self, ratio: float) -> int:
        """Number of weights of the largest possible size with at most round((1 − λ)·M) weights, or of the smallest size
        if none is that small."""
        most = masks.keep_count(ratio, self.size)
        fitting = np.flatnonzero(self.sizes <= most)
        return int(self.sizes[fitting[0] if len(fitting) else -1])

    def widths_of(self, keep: int) -> tuple[int, ...]:
        """The number of units of each group in the model that keeps ``keep`` weights. ``keep`` must be one of the
        possible sizes."""
        return self._widths_by_size[keep]

    # --- ranking ----------------------------------------------------------------------------------------------------

    def ranks(self, scores: Tensor) -> Tensor:
        """The rank of each weight by ``scores`` (..., M), int32: the number of weights that are removed later.

        Weights that are removed together have the same rank."""
        tables = self._tables(scores.device)
        units = scores.new_zeros((*scores.shape[:-1], self._units + 1), dtype=torch.int32)
        for block in tables.blocks:
            positions = masks.ranks(scores[..., block.members].sum(-1)).long()
            units[..., block.units] = block.ranks.expand_as(positions).gather(-1, positions)
        return torch.maximum(units.index_select(-1, tables.output_unit), units.index_select(-1, tables.input_unit))

    def unit_ranks(self, ranks: Tensor) -> Tensor:
        """The rank of every unit, (..., U + 1), computed from the ranks of the weights (..., M).

        Every unit has a weight that is removed together with it, so its rank is the smallest of its weights' ranks. The
        last entry, 0, belongs to weights that are never removed."""
        units = ranks.new_zeros((*ranks.shape[:-1], self._units + 1))
        for block in self._tables(ranks.device).blocks:
            units[..., block.units] = ranks[..., block.members].amin(-1)
        return units

    def kept_share(self, ranks: Tensor, ratios: Sequence[float]) -> Tensor:
        """The factor (M,) on each weight such that a layer reads the mean of a unit over the clients, 0 from those that
        removed it.

        So a weight is multiplied by the share of the clients that keep its *input* unit, and by 0 if no client keeps
        its output unit; a unit's bias and normalisation are not scaled. (Scaling every weight of a unit by its share
        would weaken the unit two or three times over, and its running statistics would not fit any client's unit.)"""
        tables, units = self._tables(ranks.device), self.unit_ranks(ranks)
        share = torch.stack([units < self.keep_count(ratio) for ratio in ratios]).float().mean(0)
        return share[tables.input_unit] * (share[tables.output_unit] > 0)

    def buffer_ranks(self, units: Tensor) -> Tensor:
        """The rank of each buffer entry (..., B), which is that of its unit; ``units`` are the ranks from
        :meth:`unit_ranks`."""
        return units.index_select(-1, self._tables(units.device).buffer_unit)

    def buffer_mask(self, mask: Tensor) -> Tensor:
        """Which buffer entries (BatchNorm's statistics) a client with this ``mask`` (..., M) has, (..., B) bool.

        It has those of every unit of which the mask keeps any weight. The mask need not come from this ranking."""
        if not self.layout.buffer_size:
            return mask[..., :0]
        return self.buffer_ranks(self.unit_ranks((~mask).to(torch.int32))) == 0

    def part(self, ranks: Tensor, units: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Indices of the weights (R, M') and of the buffer entries (R, B') that make up the small models with these
        ``widths``.

        Each of R runs keeps the units that are removed last by its ranking ``ranks`` (R, M), whose :meth:`unit_ranks`
        are ``units``. The widths need not be those of a possible size."""
        tables, layout = self._tables(ranks.device), Layout.of(self.small_module(widths))
        kept = units < self._limits(widths, ranks.device)
        mask = kept.index_select(1, tables.output_unit) & kept.index_select(1, tables.input_unit)
        return (_positions(mask, layout.size),
                _positions(kept.index_select(1, tables.buffer_unit), layout.buffer_size))

    def _limits_of(self, widths: tuple[int, ...], device: torch.device) -> Tensor:
        """For each unit the limit (U + 1,) below which its rank must be to belong to a model with these widths."""
        limits = [self.size + 1 if width == full else ranks[width]
                  for width, full, ranks in zip(widths, self.graph.widths, self._position_ranks, strict=True)]
        by_unit = np.append(np.repeat(limits, self.graph.widths), self.size + 1)
        return torch.tensor(by_unit, dtype=torch.int32, device=device)

    def _tables(self, device: torch.device) -> _Tables:
        if device not in self._known:
            tables = self._make_tables() if not self._known else next(iter(self._known.values()))
            blocks = tuple(_Block(*(tensor.to(device) for tensor in block)) for block in tables.blocks)
            self._known[device] = _Tables(blocks, *(tensor.to(device) for tensor in tables[1:]))
        return self._known[device]

    def _make_tables(self) -> _Tables:
        widths, never = self.graph.widths, self._units
        firsts = np.concatenate([[0], np.cumsum(widths)]).tolist()

        def units(names: Sequence[str], shapes: Sequence[torch.Size], place: int) -> Tensor:
            """The unit of each entry of these tensors, flattened and joined: the one that dimension ``place`` runs
            over."""
            found = [torch.full(shape, never, dtype=torch.int32) for shape in shapes]
            for i, (name, shape) in enumerate(zip(names, shapes, strict=True)):
                for part in self.graph.slices.get(name, ()):
                    if part.dim == place:
                        found[i] = unit_numbers(shape, part, firsts[part.group])
            return torch.cat([tensor.flatten() for tensor in found]) if found else torch.zeros(0, dtype=torch.int32)

        output, read = (units(self.layout.names, self.layout.shapes, place) for place in (0, 1))
        of_buffers = units(self.layout.buffer_names, self.layout.buffer_shapes, 0)
        weights = torch.arange(self.size)
        owners = torch.cat([output, read])
        order = owners.argsort(stable=True)
        members = torch.split(torch.cat([weights, weights])[order],
                              torch.bincount(owners, minlength=never + 1).tolist())
        by_form: dict[tuple[int, int], list[int]] = {}
        for group, width in enumerate(widths):
            by_form.setdefault((width, len(members[firsts[group]])), []).append(group)
        blocks = [_Block(torch.tensor([list(range(firsts[g], firsts[g + 1])) for g in groups]),
                         torch.stack([torch.stack(members[firsts[g]:firsts[g + 1]]) for g in groups]),
                         torch.tensor([self._position_ranks[g] for g in groups], dtype=torch.int32))
                  for groups in by_form.values()]
        return _Tables(tuple(blocks), output, read, of_buffers)

    # --- small models -----------------------------------------------------------------------------------------------

    def _small_module(self, widths: tuple[int, ...]) -> nn.Module:
        """A copy of the module with these widths. Its weights have no meaning. Do not change it, because it is
        cached."""
        small = copy.deepcopy(self.module)
        parts = dict(small.named_modules())
        for name, slices in self.graph.slices.items():
            owner, _, which = name.rpartition(".")
            part = parts[owner]
            tensor = getattr(part, which)
            shape = kept_shape(tensor.shape, slices, self.graph.widths, widths)
            if which in part._parameters:
                part.register_parameter(which, nn.Parameter(tensor.new_zeros(shape)))
            else:
                part.register_buffer(which, tensor.new_zeros(shape))
            _note_width(part, which, shape)
        return small

    @torch.no_grad()
    def _check(self) -> None:
        """Raise an InputError if a small model does not compute what the masked whole model computes.

        This happens when the forward pass has sizes written into it, or mixes channels in a way that tracing did not
        show."""
        whole = copy.deepcopy(self.module).double().eval()
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(2, *self.input_shape, generator=generator, dtype=torch.float64)
        weights, buffers = self.layout.weights(whole), self.layout.buffers(whole)
        keep = int(self.sizes[len(self.sizes) // 2])
        mask = self.ranks(torch.rand(self.size, generator=generator)) < keep
        self.layout.load(whole, weights * mask, buffers)
        try:
            expected, small = whole(inputs), copy.deepcopy(self.small_module(self.widths_of(keep))).double().eval()
            Layout.of(small).load(small, weights[mask], buffers[self.buffer_mask(mask)])
            given = small(inputs)
            right = given.shape == expected.shape and bool(
                (given - expected).abs().max() <= _TOLERANCE * expected.abs().max().clamp(min=1e-12))
        except (RuntimeError, ValueError, IndexError):
            right = False
        if not right:
            raise InputError(f"{KEY}: channels needs a model that works with fewer channels, and this one does not "
                             "(perhaps its forward pass contains fixed sizes); use weights")


def _positions(mask: Tensor, count: int) -> Tensor:
    """The column numbers of the True entries in each row of a mask (R, ·), as (R, count). Every row must have ``count``
    of them."""
    if mask.device.type == "cpu":
        return mask.nonzero()[:, 1].reshape(len(mask), count)
    places = torch.where(mask, mask.cumsum(1) - 1, count)  # avoids waiting for the GPU, as nonzero() would
    found = places.new_empty(len(mask), count + 1)
    return found.scatter_(1, places, torch.arange(mask.shape[1], device=mask.device).expand_as(places))[:, :count]


def _note_width(part: nn.Module, which: str, shape: Sequence[int]) -> None:
    """Write a layer's new width into attributes such as ``out_features``, which torch's layers keep beside their
    tensors."""
    if isinstance(part, nn.Linear) and which == "weight":
        part.out_features, part.in_features = shape
    elif isinstance(part, nn.modules.conv._ConvNd) and which == "weight":
        part.out_channels, part.in_channels = shape[0], shape[1]
    elif isinstance(part, nn.modules.batchnorm._NormBase):
        part.num_features = shape[0]


def _removal_order(widths: Sequence[int]) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """The order in which units are removed, as (group, position in the group's ranking), and the table of widths (E +
    1, groups) before the first removal and after each."""
    order = sorted((Fraction(gone - 1, width), group, width - gone)
                   for group, width in enumerate(widths) for gone in range(1, width))
    removals = [(group, position) for _, group, position in order]
    table = np.tile(np.array(widths, dtype=np.int64), (len(removals) + 1, 1))
    for number, (group, _) in enumerate(removals):
        table[number + 1:, group] -= 1
    return removals, table


def structure_of(name: str, module: nn.Module, input_shape: Sequence[int]) -> Structure:
    """The pruning structure ``name`` (one of :data:`STRUCTURES`) for a module."""
    if name not in STRUCTURES:
        raise InputError(f"{KEY}: must be one of {', '.join(STRUCTURES)}; got {name!r}")
    return Weights(Layout.of(module).size) if name == "weights" else Channels(module, input_shape)


class ModelShares(NamedTuple):
    """What a client with pruning ratio λ uploads and computes, as shares of the whole model's; three arrays of equal
    length.

    ``ratio`` rises from 0; ``bits`` and ``flops`` fall from 1. For a ratio between two entries a client takes the
    smaller model of the second entry, so straight lines between the entries are upper bounds."""

    ratio: NDArray[np.float64]
    bits: NDArray[np.float64]
    flops: NDArray[np.float64]


def cost_curve(module: nn.Module, input_shape: Sequence[int], structure: str = "channels") -> ModelShares:
    """The shares of bits and FLOPs against the pruning ratio, for a module and samples of ``input_shape``.

    With single weights both shares are 1 − λ, as the paper charges them. (An upload really has that many values; but on
    usual processors computing with masks takes as long as without.)"""
    shape = structure_of(structure, module, input_shape)
    if not isinstance(shape, Channels):
        return ModelShares(np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    bits, flops = shape.sizes / shape.size, shape.flops()
    return ModelShares(1.0 - bits, bits, flops / flops[0])
