"""A round's accepted updates: checked one by one, and added up in the clients' order without keeping them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgap.learning.aggregators import Aggregator, NotFiniteError, aggregate, mean
from fedgap.learning.codec import Upload
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.robust_aggregators import aggregate_buffers
from fedgap.learning.running_mean import RunningMean, RunningSum
from fedgap.running.clients import Update
from fedgap.running.job import Job

MOST_HELD = 8
"""Maximum number of updates that wait in memory for those of clients before them; further answers are fetched later."""


@dataclass(frozen=True, eq=False)
class UpdateFacts:
    """What is kept of an accepted update: the client's loss and seconds, the bytes of its payload, whether it had
    indices, its Euclidean length, its entries for the last layer's bias, and how far its BatchNorm statistics moved, as
    a Euclidean distance."""

    loss: float
    seconds: float
    bytes: int
    indices: bool
    norm: float
    last_bias: Tensor | None
    """(classes,), NaN where pruned; None where the model has no such bias."""
    buffers_moved: float = 0.0


@dataclass(frozen=True, eq=False)
class AcceptedUpdate:
    """A node's update that passed every check: masked gradient and mask (M,), buffers after the step (B,)."""

    facts: UpdateFacts
    upload: Upload
    buffers: Tensor
    """0 where the client removed the buffer's channel."""
    kept_buffers: Tensor | None = None
    """The buffers that the client has, boolean (B,); None where every client has all."""


class CollectedUpdates:
    """The updates of one try of a round.

    The order of arrival must not change the result, so ``mean`` adds an update when all selected clients before it have
    delivered or were given up, and then discards it. Other aggregators need all updates at once.
    """

    def __init__(self, job: Job, aggregator: Aggregator, model: GlobalModel, selected: Sequence[int]) -> None:
        self.facts: dict[int, UpdateFacts] = {}
        self._job, self._aggregator, self._model = job, aggregator, model
        self._open = sorted(selected)
        self._held: dict[int, AcceptedUpdate] = {}
        size, buffer_size = model.weights.shape[1], model.buffers.shape[1]
        self._mean: RunningMean | None = None
        if aggregator is mean:
            self._mean = RunningMean(size, weighted=job.weighting == "samples" or job.upload_bits < 32)
        self._buffers = RunningSum(buffer_size)
        self._buffer_clients: Tensor | None = None  # clients that have each buffer (B,), where channels are pruned

    @property
    def full(self) -> bool:
        """Whether the next update in order must arrive, or be given up, before others are fetched."""
        return self._mean is not None and len(self._held) >= MOST_HELD

    @property
    def next(self) -> int | None:
        """The first selected client of which nothing is known yet."""
        return self._open[0] if self._open else None

    def add(self, client: int, update: AcceptedUpdate) -> None:
        """Take in a client's update."""
        self.facts[client] = update.facts
        self._held[client] = update
        self._add_up()

    def give_up(self, client: int) -> None:
        """Record that no update of this client will arrive."""
        if client in self._open:
            self._open.remove(client)
        self._add_up()

    def _add_up(self) -> None:
        while self._mean is not None and self._open and self._open[0] in self._held:
            client = self._open.pop(0)
            update = self._held.pop(client)
            weight = float(self._job.sizes[client]) if self._job.weighting == "samples" else 1.0
            self._mean.add(update.upload.gradient, update.upload.mask, weight)
            self._add_buffers(update)

    def _add_buffers(self, update: AcceptedUpdate) -> None:
        self._buffers.add(update.buffers)
        if update.kept_buffers is not None:
            before = 0 if self._buffer_clients is None else self._buffer_clients
            self._buffer_clients = before + update.kept_buffers.to(torch.int64)

    def _mean_buffers(self, previous: Tensor) -> Tensor:
        """The bits of :func:`~fedgap.learning.contract.mean_buffers`: the mean over the clients that have a buffer, and
        ``previous`` (B,) where nobody has it."""
        clients = self._buffer_clients
        if clients is None:
            return self._buffers.total() / self._buffers.count
        return torch.where(clients > 0, self._buffers.total() / clients.clamp(min=1), previous)

    def _robust_buffers(self, before: Tensor) -> Tensor:
        updates = [self._held[client] for client in sorted(self._held)]
        masks = [update.kept_buffers for update in updates if update.kept_buffers is not None]
        return aggregate_buffers(self._aggregator, torch.stack([update.buffers for update in updates]),
                                 torch.stack(masks) if masks else None, before)

    def result(self) -> Update | None:
        """The round's update, which may be infinite; None if no update arrived. All other clients must have been given
        up."""
        if not self.facts:
            return None
        model = self._model
        if self._mean is not None:
            direction, known = self._mean.mean(), self._mean.known
        else:
            accepted = [self._held[client] for client in sorted(self._held)]
            masks = torch.stack([update.upload.mask for update in accepted])
            known = masks.any(0)
            updates = torch.stack([update.upload.gradient for update in accepted])
            try:
                direction = aggregate(self._aggregator, updates, masks)
            except NotFiniteError:
                direction = torch.where(known, torch.inf, 0.0)
        after = model.buffers
        if after.numel():
            before = after[0].cpu().float()
            found = self._mean_buffers(before) if self._mean is not None else self._robust_buffers(before)
            after = found.to(after)[None]
        return Update(direction.to(model.weights)[None], known.to(model.weights.device)[None], after, (0,))
