"""A round of clients whose models are really smaller: one engine per model size, and their combined results.

Extracting the small models from the whole one and putting their gradients back takes dozens of small operations. On a
GPU launching these would cost as much as the round, so the whole round is recorded in one graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedgap.learning.contract import LocalTraining, RoundInput, RoundOutput
from fedgap.learning.engine.graphs import Recorder
from fedgap.learning.structure import Channels

_KEPT = 64  # cached engines; a plan has a few ratios for each client
_DIVISIONS = 256  # cached divisions of a round's jobs into sizes


class _Engine(Protocol):
    device: torch.device
    dtype: torch.dtype

    def gradients(self, round_input: RoundInput, *, per_client: bool = False) -> RoundOutput:
        """Compute a round of FedSGD."""

    def updates(self, round_input: RoundInput, local: LocalTraining, rates: Tensor, *,
                per_client: bool = False) -> RoundOutput:
        """Compute a round with local steps."""


EngineKind = TypeVar("EngineKind", bound=_Engine)


class _Size(NamedTuple):
    """The jobs that are computed with one model size, whose layers have ``widths`` units.

    ``jobs`` are their numbers in the round, ``places`` the position of each job's run among the runs that occur here,
    ``keeps`` each job's number of kept weights. ``on_device`` holds the same as tensors, so that the host need not wait
    for the device."""

    widths: tuple[int, ...]
    jobs: list[int]
    places: list[int]
    keeps: list[int]
    on_device: _OnDevice


class _OnDevice(NamedTuple):
    """The numbers of a :class:`_Size` as tensors: ``jobs``, ``places``, ``job_runs`` (each job's run), ``keeps`` (J,),
    and ``runs`` (r,), the runs that occur."""

    jobs: Tensor
    places: Tensor
    job_runs: Tensor
    keeps: Tensor
    runs: Tensor


class Passes(NamedTuple):
    """How the jobs of small models are grouped into passes on a device.

    ``aligned``: widths are rounded up to multiples of it; the additional units are computed, and masked for jobs that
    do not keep them. ``least_jobs``: a pass with fewer jobs than this takes in the jobs of the next smaller size."""

    aligned: int
    least_jobs: int


ON_CPU = Passes(aligned=1, least_jobs=1)
ON_GPU = Passes(aligned=8, least_jobs=16)
"""Tensor cores multiply eight channels at once, cuDNN's kernels for other widths are slow, and a GPU is not busy with a
few clients: ten clients of as many sizes took five times as long as ten of one size."""


class _Tensors(NamedTuple):
    """The tensors of a round on the device; see :class:`~fedgap.learning.contract.RoundInput`."""

    weights: Tensor
    ranks: Tensor
    buffers: Tensor
    inputs: Tensor
    labels: Tensor
    rates: Tensor


class _Result(NamedTuple):
    """The tensors of :class:`~fedgap.learning.contract.RoundOutput`. ``gradients`` is (0, M) unless each client's was
    requested."""

    gradient: Tensor
    losses: Tensor
    finite: Tensor
    accepted: Tensor
    buffers: Tensor
    gradients: Tensor
    kept: Tensor
    client_buffers: Tensor
    """(0, B) unless each client's was requested."""


class SmallModels(Generic[EngineKind]):
    """Computes rounds with small models: jobs are divided by the size of their models, and those of one size are
    computed together.

    ``whole`` is the engine of the whole model, and ``make`` creates the engine of a module. With a ``recorder`` rounds
    are recorded and replayed; the engines that ``make`` creates must then not record."""

    def __init__(self, structure: Channels, whole: EngineKind, make: Callable[[nn.Module], EngineKind],
                 passes: Passes, recorder: Recorder | None) -> None:
        self.structure, self._whole, self._make, self._passes = structure, whole, make, passes
        self._recorder = recorder
        self._engines: OrderedDict[tuple[int, ...], EngineKind] = OrderedDict()
        self._divisions: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Size]] = {}

    def round(self, round_input: RoundInput, local: LocalTraining | None, rates: Tensor,
              per_client: bool) -> RoundOutput:
        """Compute a round; see :meth:`~fedgap.learning.engine.core.Engine.updates`. ``local`` None stands for
        FedSGD."""
        device, dtype = self._whole.device, self._whole.dtype
        weights, buffers = (tensor.to(device, dtype) for tensor in (round_input.weights, round_input.buffers))
        given = replace(round_input, weights=weights, buffers=buffers, ranks=round_input.ranks.to(device))
        rates = rates.to(device)
        if self._recorder is None or not isinstance(given.inputs, Tensor) or not isinstance(given.labels, Tensor):
            result = self._compute(given, local, rates, per_client)
        else:
            tensors = _Tensors(weights, given.ranks, buffers, given.inputs.to(device, dtype), given.labels.to(device),
                               rates)

            def compute(tensors: _Tensors) -> _Result:
                now = replace(given, **{name: getattr(tensors, name) for name in _Tensors._fields if name != "rates"})
                return self._compute(now, local, tensors.rates, per_client)

            key = (tuple(given.run), tuple(given.keeps), local, per_client, *(tensor.shape for tensor in tensors))
            result = self._recorder.run(key, compute, tensors)
        each, each_buffers = (result.gradients, result.client_buffers) if per_client else (None, None)
        return RoundOutput(result.gradient, result.losses, result.finite, result.accepted, result.buffers, each,
                           result.kept, each_buffers)

    def _compute(self, round_input: RoundInput, local: LocalTraining | None, rates: Tensor,
                 per_client: bool) -> _Result:
        """Compute a round whose tensors are on the device. On a GPU nothing in here may wait for the device, or the
        round could not be recorded."""
        weights, buffers, ranks = round_input.weights, round_input.buffers, round_input.ranks
        device, dtype, jobs = weights.device, weights.dtype, len(round_input.run)
        units = self.structure.unit_ranks(ranks)
        buffer_ranks = self.structure.buffer_ranks(units)
        gradient, buffer_sums, buffer_counts = (torch.zeros_like(like) for like in (weights, buffers, buffers))
        losses, finite = weights.new_zeros(jobs), torch.zeros(jobs, dtype=torch.bool, device=device)
        accepted = torch.zeros(len(weights), dtype=torch.int64, device=device)
        kept = torch.zeros(len(weights), dtype=torch.int32, device=device)
        each = weights.new_zeros(jobs if per_client else 0, weights.shape[1])
        each_buffers = buffers.new_zeros(jobs if per_client else 0, buffers.shape[1])
        for size in self._divided(round_input):
            here = size.on_device
            index, buffer_index = self.structure.part(ranks[here.runs], units[here.runs], size.widths)
            has = buffer_ranks[here.job_runs] < here.keeps[:, None]  # which buffers each job has, (J, B)
            small = RoundInput(weights[here.runs].gather(1, index), ranks[here.runs].gather(1, index),
                               buffers[here.runs].gather(1, buffer_index), size.places,
                               [round_input.ratios[job] for job in size.jobs], _take(round_input.inputs, size),
                               _take(round_input.labels, size), keep_counts=size.keeps,
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
            if out.client_gradients is not None:
                each[here.jobs] = each[here.jobs].scatter(1, index[here.places], out.client_gradients)
            if out.client_buffers is not None:
                before = buffers[here.job_runs]
                moved = before.scatter(1, buffer_index[here.places], out.client_buffers)
                each_buffers[here.jobs] = torch.where(has, moved, before)
        buffers = torch.where(buffer_counts > 0, buffer_sums / buffer_counts.clamp(min=1), buffers)
        return _Result(gradient / accepted.clamp(min=1)[:, None], losses, finite, accepted, buffers, each, kept,
                       each_buffers)

    def _divided(self, round_input: RoundInput) -> list[_Size]:
        """Divide the jobs by the widths of their models. Divisions are cached, because a plan's rounds repeat."""
        key = tuple(round_input.run), tuple(round_input.keeps)
        if key not in self._divisions:
            if len(self._divisions) >= _DIVISIONS:
                self._divisions.clear()
            by_widths: dict[tuple[int, ...], list[int]] = {}
            for job, keep in enumerate(key[1]):
                by_widths.setdefault(self._computed_widths(keep), []).append(job)
            together: list[tuple[tuple[int, ...], list[int]]] = []
            # Largest size first: none of its widths is smaller than the next size's, so a pass of it can take that in.
            for widths in sorted(by_widths, key=sum, reverse=True):
                if together and len(together[-1][1]) < self._passes.least_jobs:
                    together[-1][1].extend(by_widths[widths])
                else:
                    together.append((widths, by_widths[widths]))
            self._divisions[key] = [self._size(widths, sorted(jobs), *key) for widths, jobs in together]
        return self._divisions[key]

    def _computed_widths(self, keep: int) -> tuple[int, ...]:
        aligned = self._passes.aligned
        return tuple(min(full, -(-width // aligned) * aligned) for width, full in
                     zip(self.structure.widths_of(keep), self.structure.graph.widths, strict=True))

    def _size(self, widths: tuple[int, ...], jobs: list[int], run: Sequence[int], keeps: Sequence[int]) -> _Size:
        job_runs, job_keeps = [run[job] for job in jobs], [keeps[job] for job in jobs]
        runs = sorted(set(job_runs))
        places = [runs.index(owner) for owner in job_runs]
        here = _OnDevice(*(torch.tensor(numbers, device=self._whole.device)
                           for numbers in (jobs, places, job_runs, job_keeps, runs)))
        return _Size(widths, jobs, places, job_keeps, here)

    def _engine(self, widths: tuple[int, ...]) -> EngineKind:
        if widths == self.structure.graph.widths and self._recorder is None:
            return self._whole
        if widths not in self._engines:
            self._engines[widths] = self._make(self.structure.small_module(widths))
            if len(self._engines) > _KEPT:
                self._engines.popitem(last=False)
        self._engines.move_to_end(widths)
        return self._engines[widths]


def _take(batches: Tensor | Sequence[Tensor], size: _Size) -> Tensor | list[Tensor]:
    """Those of the round's batches that belong to the jobs of this size."""
    if not isinstance(batches, Tensor):
        return [batches[job] for job in size.jobs]
    return batches if len(size.jobs) == len(batches) else batches[size.on_device.jobs.to(batches.device)]
