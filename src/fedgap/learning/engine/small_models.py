"""A round of clients whose models are really smaller: an engine for each size, and their results put together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedgap.learning.contract import LocalTraining, RoundInput, RoundOutput
from fedgap.learning.structure import Channels

_KEPT = 64  # engines; a plan has a few ratios for each client
_DIVISIONS = 256  # of rounds' jobs into sizes
_ALIGNED = 8  # channels: tensor cores multiply so many at once, and cuDNN's kernels for other widths are slow


class _Engine(Protocol):
    device: torch.device
    dtype: torch.dtype

    def gradients(self, round_input: RoundInput, *, per_client: bool = False) -> RoundOutput:
        """A round of FedSGD."""

    def updates(self, round_input: RoundInput, local: LocalTraining, rates: Tensor, *,
                per_client: bool = False) -> RoundOutput:
        """A round with local steps."""


EngineKind = TypeVar("EngineKind", bound=_Engine)


class _Size(NamedTuple):
    """The jobs of one size: their numbers, runs (all that there are, and each job's place among them) and counts of
    kept weights; the same on the device, where reading or writing them would make the host wait."""

    widths: tuple[int, ...]
    jobs: list[int]
    places: list[int]
    keeps: list[int]
    on_device: _OnDevice


class _OnDevice(NamedTuple):
    """``jobs``, ``places``, ``job_runs`` and ``keeps`` (J,) and ``runs`` (r,) of a size."""

    jobs: Tensor
    places: Tensor
    job_runs: Tensor
    keeps: Tensor
    runs: Tensor


class SmallModels(Generic[EngineKind]):
    """Jobs are divided by the size of their models; those of one size are computed together.

    On a GPU widths are rounded up to multiples of eight: a few units that the job does not keep come along, and are
    masked. Jobs of nearly equal size are then computed together as well. ``whole`` is the engine of the whole model,
    ``make`` makes that of a small one.
    """

    def __init__(self, structure: Channels, whole: EngineKind, make: Callable[[nn.Module], EngineKind]) -> None:
        self.structure, self._whole, self._make = structure, whole, make
        self._engines: OrderedDict[tuple[int, ...], EngineKind] = OrderedDict()
        self._divisions: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Size]] = {}

    def round(self, round_input: RoundInput, local: LocalTraining | None, rates: Tensor,
              per_client: bool) -> RoundOutput:
        """The round; see :class:`~fedgap.learning.engine.core.Engine`."""
        device, dtype, jobs = self._whole.device, self._whole.dtype, len(round_input.run)
        weights, buffers = (tensor.to(device, dtype) for tensor in (round_input.weights, round_input.buffers))
        ranks, rates = round_input.ranks.to(device), rates.to(device)
        units = self.structure.unit_ranks(ranks)
        buffer_ranks = self.structure.buffer_ranks(units)
        gradient, buffer_sums, buffer_counts = (torch.zeros_like(like) for like in (weights, buffers, buffers))
        losses, finite = weights.new_zeros(jobs), torch.zeros(jobs, dtype=torch.bool, device=device)
        accepted = torch.zeros(len(weights), dtype=torch.int64, device=device)
        kept = torch.zeros(len(weights), dtype=torch.int32, device=device)
        each = weights.new_zeros(jobs, weights.shape[1]) if per_client else None
        each_buffers = buffers[list(round_input.run)] if per_client else None
        for size in self._divided(round_input):
            here = size.on_device
            index, buffer_index = self.structure.part(ranks[here.runs], units[here.runs], size.widths)
            has = buffer_ranks[here.job_runs] < here.keeps[:, None]  # which buffers each job has, (J, B)
            small = RoundInput(weights[here.runs].gather(1, index), ranks[here.runs].gather(1, index),
                               buffers[here.runs].gather(1, buffer_index), size.places,
                               [round_input.ratios[job] for job in size.jobs], _take(round_input.inputs, size.jobs),
                               _take(round_input.labels, size.jobs), keep_counts=size.keeps,
                               counted=has.gather(1, buffer_index[here.places]) if buffers.shape[1] else None)
            engine = self._engine(size.widths)
            out = (engine.gradients(small, per_client=per_client) if local is None else
                   engine.updates(small, local, rates[here.runs], per_client=per_client))
            assert out.kept is not None
            clients = out.accepted[:, None]
            gradient[here.runs] = gradient[here.runs].scatter_add(1, index, out.gradient * clients)
            losses[here.jobs], finite[here.jobs] = out.losses, out.finite
            accepted[here.runs] += out.accepted
            kept[here.runs] = torch.maximum(kept[here.runs], out.kept)
            buffer_sums[here.runs] = buffer_sums[here.runs].scatter_add(1, buffer_index, out.buffers * clients)
            buffer_counts.index_add_(0, here.job_runs, (has & out.finite[:, None]).to(dtype))
            if each is not None and out.client_gradients is not None:
                each[here.jobs] = each[here.jobs].scatter(1, index[here.places], out.client_gradients)
            if each_buffers is not None and out.client_buffers is not None:
                moved = each_buffers[here.jobs].scatter(1, buffer_index[here.places], out.client_buffers)
                each_buffers[here.jobs] = torch.where(has, moved, each_buffers[here.jobs])
        buffers = torch.where(buffer_counts > 0, buffer_sums / buffer_counts.clamp(min=1), buffers)
        return RoundOutput(gradient / accepted.clamp(min=1)[:, None], losses, finite, accepted, buffers, each, kept,
                           each_buffers)

    def _divided(self, round_input: RoundInput) -> list[_Size]:
        """The jobs by the widths of their models; a plan's rounds repeat, so divisions are kept."""
        key = tuple(round_input.run), tuple(round_input.keeps)
        if key not in self._divisions:
            if len(self._divisions) >= _DIVISIONS:
                self._divisions.clear()
            by_widths: dict[tuple[int, ...], list[int]] = {}
            for job, keep in enumerate(key[1]):
                by_widths.setdefault(self._computed_widths(keep), []).append(job)
            self._divisions[key] = [self._size(widths, jobs, *key) for widths, jobs in by_widths.items()]
        return self._divisions[key]

    def _computed_widths(self, keep: int) -> tuple[int, ...]:
        widths = self.structure.widths_of(keep)
        if self._whole.device.type != "cuda":
            return widths
        return tuple(min(full, -(-width // _ALIGNED) * _ALIGNED)
                     for width, full in zip(widths, self.structure.graph.widths, strict=True))

    def _size(self, widths: tuple[int, ...], jobs: list[int], run: Sequence[int], keeps: Sequence[int]) -> _Size:
        job_runs, job_keeps = [run[job] for job in jobs], [keeps[job] for job in jobs]
        runs = sorted(set(job_runs))
        places = [runs.index(owner) for owner in job_runs]
        here = _OnDevice(*(torch.tensor(numbers, device=self._whole.device)
                           for numbers in (jobs, places, job_runs, job_keeps, runs)))
        return _Size(widths, jobs, places, job_keeps, here)

    def _engine(self, widths: tuple[int, ...]) -> EngineKind:
        if widths == self.structure.graph.widths:
            return self._whole
        if widths not in self._engines:
            self._engines[widths] = self._make(self.structure.small_module(widths))
            if len(self._engines) > _KEPT:
                self._engines.popitem(last=False)
        self._engines.move_to_end(widths)
        return self._engines[widths]


def _take(batches: Tensor | Sequence[Tensor], jobs: list[int]) -> Tensor | list[Tensor]:
    if len(jobs) == len(batches):
        return batches if isinstance(batches, Tensor) else list(batches)
    return batches[jobs] if isinstance(batches, Tensor) else [batches[job] for job in jobs]
