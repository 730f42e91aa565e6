"""The server's messages of a round, and the nodes' answers, checked in every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedgap.deploy.node import floats_from_bytes, floats_to_bytes
from fedgap.deploy.packet import Packet, PacketError
from fedgap.learning.aggregators import aggregate, load_aggregator, mean, weighted_mean
from fedgap.learning.codec import HEADER_BYTES, Upload, decode, encode
from fedgap.learning.contract import mean_buffers
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.masks import digest
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import Channels, Structure
from fedgap.running.clients import Update
from fedgap.running.job import Job
from fedgap.upload_size import upload_bytes

MARGIN_BYTES = 4096
"""What a packet may have beyond its payload: fields, names, lengths."""


@dataclass(frozen=True)
class AcceptedUpdate:
    """A node's update that passed every check: masked gradient and mask (M,), buffers after the step (B,), loss, the
    node's own seconds, bytes of its payload, and whether indices had to come along."""

    upload: Upload
    buffers: Tensor
    loss: float
    seconds: float
    bytes: int
    indices: bool


def most_answer_bytes(layout: Layout) -> int:
    """The longest answer of a round with this model: header, indices as a bitmap, all values, buffers, a margin."""
    return HEADER_BYTES + layout.size // 8 + 1 + 4 * (layout.size + layout.buffer_size) + MARGIN_BYTES


class RoundMessages:
    """Messages of one run. ``run`` names it towards the nodes, ``plan`` is its plan's hash."""

    def __init__(self, job: Job, layout: Layout, structure: Structure, *, run: str, plan: str) -> None:
        self.job, self.run, self.plan, self._layout, self._structure = job, run, plan, layout, structure
        self._aggregator = load_aggregator(job.aggregator)
        self._last: bytes | None = None  # the last round's direction, for nodes that are up to date
        self._last_indices: bytes | None = None  # the same with indices, for nodes whose floats differ
        self._known = layout.size
        self.most_bytes = most_answer_bytes(layout)
        """No answer of a round may be longer."""

    def ratio(self, model: GlobalModel, client: int) -> float:
        """The client's pruning ratio in the current round."""
        return float(self.job.ratio[self.job.schedule[model.round], client])

    def mask(self, model: GlobalModel, client: int) -> Tensor:
        """The client's mask (M,) in the current round, as rebuilt here."""
        return (model.ranks[0] < self._structure.keep_count(self.ratio(model, client))).cpu()

    def request(self, model: GlobalModel, client: int, *, state: bool, indices: bool,
                settings: Mapping[str, float] | None) -> Packet:
        """The current round's message to a client.

        ``state`` sends the whole state instead of the last round's direction; ``indices`` sends the direction's indices
        too, for a node whose floats differ; ``settings`` are power and frequency of a client that is selected.
        """
        fields: dict[str, Any] = {"kind": "round", "run": self.run, "plan": self.plan, "round": model.round}
        blobs: dict[str, bytes] = {}
        if state or model.round == 0:
            job = self.job
            fields["task"] = {"seed": job.seed, "client": client, "model": job.model, "importance": job.importance,
                              "learner": asdict(job.learner), "upload_bits": job.upload_bits,
                              "structure": job.structure, "input_shape": job.extra["input_shape"],
                              "classes": job.extra["classes"]}
            blobs["state"] = bytes(save_tensors({name: tensor.detach().cpu().float().flatten() for name, tensor
                                                 in model.state(0).items() if name != "ranks" and tensor.numel()}))
        elif self._last is not None:
            fields["known"] = self._known
            last = self._last_indices if indices else self._last
            assert last is not None
            blobs["gradient"] = last
            if self._layout.buffer_size:
                blobs["buffers"] = floats_to_bytes(model.buffers[0])
        if settings is not None:
            fields |= {"ratio": self.ratio(model, client), "mask": digest(self.mask(model, client)).hex(),
                       "batch": int(self.job.batch_size[client]), **settings}
            if self.job.batches != "as_is":
                wanted = self.job.label_probabilities[self.job.schedule[model.round], client]
                blobs["labels"] = wanted.astype("<f8").tobytes()
        return Packet(fields, blobs)

    def accept(self, model: GlobalModel, client: int, answer: Packet) -> AcceptedUpdate:
        """A client's answer, checked in every field; :class:`~fedgap.errors.FedgapError` says what is wrong with it."""
        if answer.whole("round") != model.round:
            raise PacketError(f"the answer is of round {answer.whole('round')}; this is round {model.round}")
        data, layout = answer.blob("upload"), self._layout
        upload = decode(data, size=layout.size, round=model.round, plan=self.plan, mask=self.mask(model, client),
                        bits=self.job.upload_bits)
        kept = self._structure.keep_count(self.ratio(model, client))
        if int(upload.mask.sum()) != kept:
            raise PacketError(f"{int(upload.mask.sum())} weights are kept; the plan says {kept}")
        buffers = torch.zeros(0)
        if layout.buffer_size:
            buffers = self._whole_buffers(answer.blob("buffers"), upload.mask)
        nested = len(data) == upload_bytes(kept, self.job.upload_bits)
        return AcceptedUpdate(upload, buffers, answer.number("loss"), answer.number("seconds"),
                              sum(map(len, answer.blobs.values())), not nested)

    def _whole_buffers(self, data: bytes, mask: Tensor) -> Tensor:
        """A client's buffers (B,), 0 for those of channels that it removed."""
        if not isinstance(self._structure, Channels):
            return floats_from_bytes(data, self._layout.buffer_size)
        own = self._structure.buffer_mask(mask)
        return torch.zeros(self._layout.buffer_size).masked_scatter(own, floats_from_bytes(data, int(own.sum())))

    def aggregate(self, model: GlobalModel, arrived: Mapping[int, AcceptedUpdate]) -> Update | None:
        """The round's update of what arrived, which the next requests carry; None where nothing did."""
        if not arrived:
            self._last = self._last_indices = None
            return None
        accepted = [arrived[client] for client in sorted(arrived)]  # the order of arrival must not change a float
        masks = torch.stack([update.upload.mask for update in accepted])
        updates, job = torch.stack([update.upload.gradient for update in accepted]), self.job
        if self._aggregator is mean and (job.weighting == "samples" or job.upload_bits < 32):  # as in the simulator
            samples = job.sizes[sorted(arrived)] if job.weighting == "samples" else np.ones(len(accepted))
            direction = weighted_mean(updates, torch.from_numpy(samples).to(updates))
        else:
            direction = aggregate(self._aggregator, updates, masks)
        direction, known, buffers = direction.to(model.weights), masks.any(0), model.buffers
        if self._layout.buffer_size:
            counted = self._structure.buffer_mask(masks) if isinstance(self._structure, Channels) else None
            statistics = mean_buffers(torch.stack([update.buffers for update in accepted]), counted,
                                      model.buffers[0].cpu().float())
            buffers = statistics.to(model.buffers)[None]
        self._known = int(known.sum())
        # A node whose floats differ keeps weights that the others cannot know from their own ranking.
        nested = bool(torch.equal(known, (model.ranks[0] < self._known).cpu()))
        self._last_indices = encode(direction, known, round=model.round, plan=self.plan, nested=False)
        self._last = encode(direction, known, round=model.round, plan=self.plan) if nested else self._last_indices
        return Update(direction[None], known.to(model.weights.device)[None], buffers, (0,))
