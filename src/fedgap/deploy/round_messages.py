"""The server's messages of a round, and the check of every field of the nodes' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedgap.deploy.collected_updates import AcceptedUpdate, CollectedUpdates, UpdateFacts
from fedgap.deploy.node import floats_from_bytes, floats_to_bytes
from fedgap.deploy.packet import Packet, PacketError
from fedgap.learning.aggregators import load_aggregator
from fedgap.learning.codec import HEADER_BYTES, decode, encode
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.masks import digest
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import Channels, Structure
from fedgap.running.clients import Update
from fedgap.running.job import Job
from fedgap.upload_size import upload_bytes

MARGIN_BYTES = 4096
"""Bytes that a packet may have in addition to its payload: fields, names, lengths."""
MOST_LOSS = 1e30
"""Largest accepted loss; the mean of many such losses is still finite."""
MOST_SECONDS = 1e9
VARIANCE = "running_var"
"""The ending of the names of buffers with BatchNorm's variances."""


def most_answer_bytes(layout: Layout) -> int:
    """Maximum length in bytes of a node's answer with this model: header, indices as a bitmap, all values, buffers, a
    margin."""
    return HEADER_BYTES + layout.size // 8 + 1 + 4 * (layout.size + layout.buffer_size) + MARGIN_BYTES


class RoundMessages:
    """The messages of one run. ``run`` identifies it for the nodes; ``plan`` is the hash of its plan."""

    def __init__(self, job: Job, layout: Layout, structure: Structure, *, run: str, plan: str) -> None:
        self.job, self.run, self.plan, self._layout, self._structure = job, run, plan, layout, structure
        self.aggregator = load_aggregator(job.aggregator)
        self._last: bytes | None = None  # the last round's direction, for nodes that are up to date
        self._last_indices: bytes | None = None  # the same with indices, for nodes whose floats differ
        self._known = layout.size
        self._last_place = 0  # position of the last round in the rate schedule, if that follows the budgets
        self._bias = _last_bias(layout, int(job.extra["classes"]))
        self._variances = layout.join_buffers({name: torch.full(shape, name.endswith(VARIANCE)) for name, shape in
                                               zip(layout.buffer_names, layout.buffer_shapes, strict=True)}).bool()
        self.most_bytes = most_answer_bytes(layout)
        """Maximum length of an answer in a round."""

    def ratio(self, model: GlobalModel, client: int) -> float:
        """The client's pruning ratio in the current round."""
        return float(self.job.ratio[self.job.schedule[model.round], client])

    def mask(self, model: GlobalModel, client: int) -> Tensor:
        """The client's mask (M,) in the current round, as the server computes it."""
        return (model.ranks[0] < self._structure.keep_count(self.ratio(model, client))).cpu()

    def request(self, model: GlobalModel, client: int, *, state: bool, indices: bool,
                settings: Mapping[str, float] | None) -> Packet:
        """The message of the current round to a client.

        ``state`` sends the whole state instead of the last round's direction; ``indices`` adds the direction's indices,
        for a node whose floating-point results differ; ``settings`` are the power and frequency of a selected client.
        """
        fields: dict[str, Any] = {"kind": "round", "run": self.run, "plan": self.plan, "round": model.round}
        blobs: dict[str, bytes] = {}
        if model.places is not None:
            fields["place"] = model.places[0]
        if state or model.round == 0:
            job = self.job
            fields["task"] = {"seed": job.seed, "client": client, "model": job.model, "importance": job.importance,
                              "learner": asdict(job.learner), "upload_bits": job.upload_bits,
                              "structure": job.structure, "input_shape": job.extra["input_shape"],
                              "classes": job.extra["classes"]}
            blobs["state"] = bytes(save_tensors({name: tensor.detach().cpu().float().flatten() for name, tensor
                                                 in model.state(0).items() if name != "ranks" and tensor.numel()}))
        else:
            fields["known"] = self._known
            last = self._last_indices if indices else self._last
            assert last is not None
            blobs["gradient"] = last
            if model.places is not None:
                fields["last_place"] = self._last_place
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
        """Check every field of a client's answer and return its update. A :class:`~fedgap.errors.FedgapError` says what
        is wrong."""
        if answer.whole("round") != model.round:
            raise PacketError(f"the answer belongs to round {answer.whole('round')}; this is round {model.round}")
        loss, seconds = answer.number("loss", MOST_LOSS), answer.number("seconds", MOST_SECONDS)
        if loss < 0.0 or seconds < 0.0:
            raise PacketError("loss, seconds: must not be negative")
        data, layout = answer.blob("upload"), self._layout
        upload = decode(data, size=layout.size, round=model.round, plan=self.plan, mask=self.mask(model, client),
                        bits=self.job.upload_bits)
        kept = self._structure.keep_count(self.ratio(model, client))
        if int(upload.mask.sum()) != kept:
            raise PacketError(f"the upload must keep {kept} weights, as planned; it keeps {int(upload.mask.sum())}")
        buffers, kept_buffers, moved = torch.zeros(0), None, 0.0
        if layout.buffer_size:
            kept_buffers = self._kept_buffers(upload.mask)
            buffers = self._whole_buffers(answer.blob("buffers"), kept_buffers)
            change = buffers.double() - model.buffers[0].cpu().double()
            moved = float((change if kept_buffers is None else change[kept_buffers]).norm())
        nested = len(data) == upload_bytes(kept, self.job.upload_bits)
        bias = None
        if self._bias is not None:
            bias = torch.where(upload.mask[self._bias], upload.gradient[self._bias], torch.nan)
        norm = float(torch.linalg.vector_norm(upload.gradient, dtype=torch.float64))
        facts = UpdateFacts(loss, seconds, sum(map(len, answer.blobs.values())), not nested, norm, bias, moved)
        return AcceptedUpdate(facts, upload, buffers, kept_buffers)

    def _kept_buffers(self, mask: Tensor) -> Tensor | None:
        """Which buffer entries (B,) a client with this mask has; None if all clients have all of them."""
        return self._structure.buffer_mask(mask) if isinstance(self._structure, Channels) else None

    def _whole_buffers(self, data: bytes, kept: Tensor | None) -> Tensor:
        """A client's buffers (B,), with 0 for those of channels that it removed."""
        size = self._layout.buffer_size
        if kept is None:
            buffers = floats_from_bytes(data, size)
        else:
            buffers = torch.zeros(size).masked_scatter(kept, floats_from_bytes(data, int(kept.sum())))
        if bool((buffers[self._variances] < 0).any()):
            raise PacketError("buffers: a variance must not be negative")
        return buffers

    def collect(self, model: GlobalModel, selected: Sequence[int]) -> CollectedUpdates:
        """The object that adds up the updates of the selected clients in the current round."""
        return CollectedUpdates(self.job, self.aggregator, model, selected)

    def carry(self, model: GlobalModel, update: Update) -> None:
        """Store the update of the current round, which the requests of the next round include."""
        direction, known = update.direction[0].cpu(), update.known[0].cpu()
        self._known = int(known.sum())
        if model.places is not None:
            self._last_place = model.places[0]
        # If a node's floating-point results differ, it keeps weights that others cannot compute from their ranking.
        nested = bool(torch.equal(known, (model.ranks[0] < self._known).cpu()))
        self._last_indices = encode(direction, known, round=model.round, plan=self.plan, nested=False)
        self._last = encode(direction, known, round=model.round, plan=self.plan) if nested else self._last_indices


def _last_bias(layout: Layout, classes: int) -> slice | None:
    """The position of the last layer's bias among the weights: the last parameter, if it has one entry per class; else
    None."""
    return slice(layout.size - classes, layout.size) if layout.shapes[-1] == (classes,) else None
