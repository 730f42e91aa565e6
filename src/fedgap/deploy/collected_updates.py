"""The accepted updates of a round, which are added up in the order of the clients without storing them all."""

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
"""Maximum number of updates in memory that wait for that of an earlier client; other answers are fetched later."""


@dataclass(frozen=True, eq=False)
class UpdateFacts:
    """What is kept of an accepted update.

    The client's loss and seconds, the bytes of its payload, whether it had indices, the Euclidean norm of the update,
    its entries for the last layer's bias, and the Euclidean distance by which its BatchNorm statistics moved."""

    loss: float
    seconds: float
    bytes: int
    indices: bool
    norm: float
    last_bias: Tensor | None
    """Entries for the last layer's bias, (classes,), NaN where pruned; None if the model has no such bias."""
    buffers_moved: float = 0.0


@dataclass(frozen=True, eq=False)
class AcceptedUpdate:
    """A node's update that passed every check: masked gradient and mask (M,), and buffers after the last step (B,)."""

    facts: UpdateFacts
    upload: Upload
    buffers: Tensor
    """BatchNorm's statistics (B,), 0 where the client removed the channel."""
    kept_buffers: Tensor | None = None
    """Which buffer entries the client has, boolean (B,); None if every client has all of them."""


class CollectedUpdates:
    """The updates of one attempt at a round.

    The order of arrival must not change the result. So ``mean`` adds an update only when all selected clients before it
    have delivered or were given up, and then discards it. Other aggregators need all updates at once."""

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
        self._buffer_clients: Tensor | None = None  # how many clients have each entry (B,), if channels are pruned

    @property
    def full(self) -> bool:
        """Whether no more answers may be fetched until the next update in order arrives or is given up."""
        return self._mean is not None and len(self._held) >= MOST_HELD

    @property
    def next(self) -> int | None:
        """The first selected client whose update has neither arrived nor been given up."""
        return self._open[0] if self._open else None

    def add(self, client: int, update: AcceptedUpdate) -> None:
        """Add a client's update."""
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
        """The mean of each buffer entry over the clients that have it, and ``previous`` (B,) where nobody has it.

        The result equals that of :func:`~fedgap.learning.contract.mean_buffers` bit for bit."""
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
        """The round's update, which may contain infinities; None if no update arrived. All missing clients must have
        been given up."""
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
