"""A round of clients whose models are really smaller: an engine for each size, and their results put together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedgap.learning.contract import LocalTraining, RoundInput, RoundOutput
from fedgap.learning.structure import Channels

_KEPT = 64  # engines; a plan has a few ratios for each client
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


class SmallModels(Generic[EngineKind]):
    """Jobs are divided by the size of their models; those of one size are computed together.

    On a GPU widths are rounded up to multiples of eight: a few units that the job does not keep come along, and are
    masked. Jobs of nearly equal size are then computed together as well. ``whole`` is the engine of the whole model,
    ``make`` makes that of a small one.
    """

    def __init__(self, structure: Channels, whole: EngineKind, make: Callable[[nn.Module], EngineKind]) -> None:
        self.structure, self._whole, self._make = structure, whole, make
        self._engines: OrderedDict[tuple[int, ...], EngineKind] = OrderedDict()

    def round(self, round_input: RoundInput, local: LocalTraining | None, rates: Tensor,
              per_client: bool) -> RoundOutput:
        """The round; see :class:`~fedgap.learning.engine.core.Engine`."""
        device, dtype, jobs, runs = self._whole.device, self._whole.dtype, len(round_input.run), len(round_input.weights)
        weights, buffers = (tensor.to(device, dtype) for tensor in (round_input.weights, round_input.buffers))
        ranks = round_input.ranks.to(device)
        gradient, buffer_sums, buffer_counts = (torch.zeros_like(like) for like in (weights, buffers, buffers))
        losses, finite = weights.new_zeros(jobs), torch.zeros(jobs, dtype=torch.bool, device=device)
        accepted = torch.zeros(runs, dtype=torch.int64, device=device)
        kept = torch.zeros(runs, dtype=torch.int32, device=device)
        each = weights.new_zeros(jobs, weights.shape[1]) if per_client else None
        for widths, members in self._divided(round_input).items():
            rows = sorted({round_input.run[job] for job in members})
            places, own = torch.tensor(rows, device=device), torch.tensor(members, device=device)
            job_run = torch.tensor([round_input.run[job] for job in members], device=device)
            row_of_job = torch.tensor([rows.index(round_input.run[job]) for job in members], device=device)
            index, buffer_index = self.structure.part(ranks[places], widths)
            keeps = [round_input.keeps[job] for job in members]
            counted = None
            if buffers.shape[1]:
                limits = torch.tensor(keeps, dtype=torch.int32, device=device)[:, None]
                whole_counted = self.structure.buffer_mask(ranks[job_run] < limits)
                counted = whole_counted.gather(1, buffer_index[row_of_job])
            small = RoundInput(weights[places].gather(1, index), ranks[places].gather(1, index),
                               buffers[places].gather(1, buffer_index), row_of_job.tolist(),
                               [round_input.ratios[job] for job in members], _take(round_input.inputs, members),
                               _take(round_input.labels, members), keeps=keeps, counted=counted)
            engine = self._engine(widths)
            out = (engine.gradients(small, per_client=per_client) if local is None else
                   engine.updates(small, local, rates.to(device)[places], per_client=per_client))
            rows_of = places[:, None]
            gradient[rows_of, index] += out.gradient * out.accepted[:, None]
            losses[own], finite[own] = out.losses, out.finite
            accepted[places] += out.accepted
            assert out.kept is not None
            kept[places] = torch.maximum(kept[places], out.kept)
            if counted is not None:
                buffer_sums[rows_of, buffer_index] += out.buffers * out.accepted[:, None]
                buffer_counts.index_add_(0, job_run, (whole_counted & out.finite[:, None]).to(dtype))
            if each is not None and out.client_gradients is not None:
                each[own] = each[own].scatter(1, index[row_of_job], out.client_gradients)
        buffers = torch.where(buffer_counts > 0, buffer_sums / buffer_counts.clamp(min=1), buffers)
        return RoundOutput(gradient / accepted.clamp(min=1)[:, None], losses, finite, accepted, buffers, each, kept)

    def _divided(self, round_input: RoundInput) -> dict[tuple[int, ...], list[int]]:
        """The jobs by the widths of their models."""
        by_widths: dict[tuple[int, ...], list[int]] = {}
        for job, keep in enumerate(round_input.keeps):
            widths = self.structure.widths_of(keep)
            if self._whole.device.type == "cuda":
                widths = tuple(min(full, -(-width // _ALIGNED) * _ALIGNED)
                               for width, full in zip(widths, self.structure.graph.widths, strict=True))
            by_widths.setdefault(widths, []).append(job)
        return by_widths

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
