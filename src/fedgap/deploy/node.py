"""A node's side of the algorithm, without Flower: it keeps a copy of the model up to date and computes gradients.

Everything numerical is :mod:`fedgap.learning`'s, as in the simulator. A node answers three kinds of requests: ``hello``
(are you there?), ``enrol`` (its profile) and ``round``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from fedgap.deploy.packet import Packet, PacketError
from fedgap.errors import FedgapError
from fedgap.learning import reference
from fedgap.learning.codec import MaskMismatchError, decode, encode
from fedgap.learning.contract import RoundInput
from fedgap.learning.data import batch_indices, batch_keys
from fedgap.learning.importance import Importance
from fedgap.learning.masks import digest, keep_count, ranks
from fedgap.learning.models import build
from fedgap.learning.models.layout import Layout
from fedgap.streams import stream_seed


class Source(Protocol):
    """What a node has: its samples, and what it tells about itself."""

    def profile(self) -> dict[str, Any]:
        """The enrolment's fields; no raw data."""

    def samples(self) -> tuple[Tensor, Tensor]:
        """Inputs (D̂_n, *shape) and labels (D̂_n,)."""


@dataclass
class _Copy:
    """The node's copy of the model, for one run. ``round`` s: ``weights`` are ω^(s)."""

    run: str
    task: dict[str, Any]
    module: torch.nn.Module
    layout: Layout
    importance: Importance
    key: NDArray[np.uint64]
    weights: Tensor
    buffers: Tensor
    round: int = -1

    def ranking(self) -> Tensor:
        """The ranks of the copy's round, (1, M)."""
        return ranks(self.importance.scores(self.weights, self.round))

    def cut(self, keep: int) -> Tensor:
        """The mask (M,) of the ``keep`` most important weights."""
        size = self.layout.size
        if keep == size:  # where nobody prunes the ranking decides nothing
            return torch.ones(size, dtype=torch.bool)
        return self.ranking()[0] < keep


class _BehindError(Exception):
    """The copy cannot follow: the server must send the state."""


class Node:
    """Answers the server's requests."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._samples: tuple[Tensor, Tensor] | None = None
        self._copy: _Copy | None = None

    def answer(self, request: Packet) -> Packet:
        """The reply; a request that makes no sense is answered with the reason."""
        kinds: dict[str, Callable[[Packet], Packet]] = {
            "hello": lambda request: Packet({"status": "here"}), "enrol": self._enrol, "round": self._round}
        try:
            kind = request.text("kind")
            if kind not in kinds:
                raise PacketError(f"kind: {kind!r} is not known")
            return kinds[kind](request)
        except FedgapError as error:
            return Packet({"status": "refused", "reason": str(error)})

    def _enrol(self, request: Packet) -> Packet:
        return Packet({"status": "enrolled", **self._source.profile()})

    # --- a round ----------------------------------------------------------------------------------------------------

    def _round(self, request: Packet) -> Packet:
        number, plan = request.whole("round"), request.text("plan")
        try:
            copy = self._follow(request, number, plan)
        except _BehindError:
            return Packet({"status": "behind", "round": self._copy.round if self._copy else -1})
        if request.fields.get("ratio") is None:
            return Packet({"status": "updated", "round": number})
        began = time.perf_counter()
        ratio = request.number("ratio")
        if not 0.0 <= ratio <= 1.0:
            raise PacketError(f"ratio: must lie in [0, 1], not {ratio}")
        keep = keep_count(ratio, copy.layout.size)
        own_ranks = (copy.ranking() if keep < copy.layout.size
                     else torch.arange(keep, dtype=torch.int32)[None])
        inputs, labels = self._batch(copy, number, int(request.whole("batch")))
        out = reference.gradients(copy.module, RoundInput(copy.weights, own_ranks, copy.buffers, (0,), (ratio,),
                                                          inputs[None], labels[None]))
        if not bool(out.finite[0]):
            return Packet({"status": "not finite", "round": number})
        assert out.client_gradients is not None
        mask = own_ranks[0] < keep
        nested = digest(mask).hex() == request.text("mask")
        upload = encode(out.client_gradients[0], mask, round=number, plan=plan, nested=nested)
        blobs = {"upload": upload}
        if copy.layout.buffer_size:
            blobs["buffers"] = floats_to_bytes(out.buffers[0])
        return Packet({"status": "done", "round": number, "loss": float(out.losses[0]),
                       "seconds": time.perf_counter() - began}, blobs)

    def _follow(self, request: Packet, number: int, plan: str) -> _Copy:
        """Brings the copy to ω^(number): by the state, where it came along, else by the last round's gradient."""
        run = request.text("run")
        if "state" in request.blobs:
            self._copy = copy = self._fresh(run, request.fields.get("task"))
            _load_state(copy, request.blobs["state"])
            copy.round = number
            return copy
        if self._copy is None or self._copy.run != run or self._copy.round not in (number - 1, number):
            raise _BehindError
        copy = self._copy
        if copy.round == number:  # the same request again: the gradient is in already
            return copy
        if "gradient" in request.blobs:
            known = copy.cut(request.whole("known"))
            try:
                global_gradient = decode(request.blobs["gradient"], size=copy.layout.size, round=number - 1, plan=plan,
                                         mask=known)
            except MaskMismatchError:
                raise _BehindError from None
            gradient = global_gradient.gradient[None]
            copy.importance.observe(copy.weights, gradient, global_gradient.mask[None])
            rate = torch.tensor([[float(copy.task["learning_rate"])]])
            copy.weights = copy.weights - rate * gradient
            if copy.layout.buffer_size:
                copy.buffers = floats_from_bytes(request.blob("buffers"), copy.layout.buffer_size)[None]
        copy.round = number
        return copy

    def _fresh(self, run: str, task: Any) -> _Copy:
        if not isinstance(task, dict):
            raise PacketError("task: is missing")
        inputs, _ = self._read()
        try:
            if tuple(inputs.shape[1:]) != tuple(task["input_shape"]):
                raise PacketError(f"task: expects samples of shape {tuple(task['input_shape'])}; this node's have "
                                  f"{tuple(inputs.shape[1:])}")
            seed = int(task["seed"])
            module = build(**task["model"], input_shape=task["input_shape"], classes=int(task["classes"]),
                           seed=stream_seed(seed, "model"))
            return _Copy(run, task, module, Layout.of(module),
                         Importance(**task["importance"], seeds=(stream_seed(seed, "selection"),)),
                         batch_keys(seed, [int(task["client"])]), torch.empty(0), torch.empty(0))
        except (KeyError, TypeError, ValueError) as error:
            raise PacketError(f"task: cannot be understood ({error})") from None

    def _batch(self, copy: _Copy, number: int, size: int) -> tuple[Tensor, Tensor]:
        """The mini-batch of this client and round: the simulator's, if the node's samples are."""
        inputs, labels = self._read()
        if not 1 <= size <= 2**20:
            raise PacketError(f"batch: must be a number of samples, not {size}")
        position = batch_indices(copy.key, np.array([number]), np.array([len(labels)]), size)[0, 0]
        index = torch.from_numpy(position)
        return inputs[index], labels[index]

    def _read(self) -> tuple[Tensor, Tensor]:
        if self._samples is None:
            self._samples = self._source.samples()
        return self._samples


def _load_state(copy: _Copy, data: bytes) -> None:
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise PacketError(f"state: cannot be read ({error})") from None
    size, buffers = copy.layout.size, copy.layout.buffer_size
    shapes = {"weights": size, "buffers": buffers, "importance.gradient": size, "importance.weights": size}
    for name, tensor in tensors.items():
        if name not in shapes or tensor.shape != (shapes[name],) or tensor.dtype != torch.float32:
            raise PacketError(f"state: {name} does not fit the model")
    if "weights" not in tensors:
        raise PacketError("state: has no weights")
    copy.weights = tensors["weights"][None]
    copy.buffers = tensors.get("buffers", torch.zeros(0))[None]
    prefix = "importance."
    copy.importance.load({name.removeprefix(prefix): tensor[None] for name, tensor in tensors.items()
                          if name.startswith(prefix)})


def floats_to_bytes(values: Tensor) -> bytes:
    """float32 values as they lie in memory, little-endian."""
    return bytes(values.detach().cpu().to(torch.float32).numpy().astype("<f4").tobytes())


def floats_from_bytes(data: bytes, count: int) -> Tensor:
    """Exactly ``count`` finite float32 values."""
    if len(data) != 4 * count:
        raise PacketError(f"{4 * count} bytes of buffers were expected, {len(data)} came")
    values = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise PacketError("the buffers are not finite")
    return torch.from_numpy(values)
