"""A node's side of the algorithm, without Flower: it keeps a copy of the model up to date and computes updates.

All numerical work is done by :mod:`fedgap.learning`, as in the simulator. A node answers five kinds of requests:
``hello`` (is it there?), ``enrol`` (its profile), ``profile`` (how long its steps take), ``echo`` (send bytes) and
``round``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
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
from fedgap.learning.data.batches import draw_weighted_batches
from fedgap.learning.data.label_sampling import cumulative_probabilities
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.learner import Learner, ServerUpdate
from fedgap.learning.masks import digest
from fedgap.learning.models import build
from fedgap.learning.models.layout import Layout
from fedgap.learning.stacked_importance import Importances
from fedgap.learning.stochastic_rounding import upload_keys
from fedgap.learning.structure import Channels, Structure, structure_of
from fedgap.registry import IMPORTANCE, MODELS, Registry
from fedgap.running.device_profile import measure_steps, repeated_seconds
from fedgap.streams import stream_seed
from fedgap.upload_size import UPLOAD_BITS

MOST_SAMPLES = 2**24
"""Maximum number of samples that a node computes on in a round."""
MOST_RATIOS = 32
"""Maximum number of pruning ratios at which a node times its steps."""
PROFILE_REPEATS = 3
"""Number of measurements at each pruning ratio."""
MOST_BYTES = 2**28
"""Maximum number of bytes in the answer to an ``echo`` request."""


class NodeData(Protocol):
    """Provides a node's samples and its profile."""

    def profile(self) -> dict[str, Any]:
        """The fields of the answer to ``enrol``; they contain no raw data."""

    def samples(self) -> tuple[Tensor, Tensor]:
        """The node's inputs (D̂_n, *shape) and labels (D̂_n,)."""

    def allowed(self) -> set[str]:
        """Names of models and importance rules that the server may choose, in addition to those of fedgap itself."""


@dataclass
class _ModelCopy:
    """The node's copy of the global model, for one run.

    ``key`` is the random key of its mini-batches, ``upload_key`` that of the rounding of its uploads to
    ``upload_bits``."""

    run: str
    module: torch.nn.Module
    layout: Layout
    structure: Structure
    key: NDArray[np.uint64]
    upload_key: int
    upload_bits: int
    learner: Learner
    model: GlobalModel


class _BehindError(Exception):
    """The copy cannot be updated from this request; the server must send the whole state."""


class Node:
    """Answers the server's requests; it holds the node's samples and its copy of the model."""

    def __init__(self, data: NodeData) -> None:
        self._data = data
        self._samples: tuple[Tensor, Tensor] | None = None
        self._copy: _ModelCopy | None = None
        self._built: tuple[Any, torch.nn.Module, Structure] | None = None

    def answer(self, request: Packet) -> Packet:
        """Answer a request; an invalid request is answered with the reason."""
        kinds: dict[str, Callable[[Packet], Packet]] = {
            "hello": lambda request: Packet({"status": "here"}), "enrol": self._enrol, "profile": self._profile,
            "echo": self._echo, "round": self._round}
        try:
            kind = request.text("kind")
            if kind not in kinds:
                raise PacketError(f"kind: {kind!r} is not known; it must be one of {', '.join(kinds)}")
            return kinds[kind](request)
        except FedgapError as error:
            return Packet({"status": "refused", "reason": str(error)})

    def _enrol(self, request: Packet) -> Packet:
        return Packet({"status": "enrolled", "fedgap": metadata.version("fedgap"), **self._data.profile()})

    def _profile(self, request: Packet) -> Packet:
        """Time the local steps of a round on this node's samples, with the model that the task describes."""
        samples, task = self._read(), request.fields.get("task")
        module, structure = self._model(task)
        ratios, batch, steps = request.fields.get("ratios"), request.whole("batch"), request.whole("steps")
        if not isinstance(ratios, list) or not 1 <= len(ratios) <= MOST_RATIOS or not all(
                isinstance(ratio, float | int) and 0.0 <= ratio < 1.0 for ratio in ratios):
            raise PacketError(f"ratios: must be 1 to {MOST_RATIOS} numbers, at least 0 and below 1")
        if steps < 1 or not 1 <= batch <= MOST_SAMPLES // steps:
            raise PacketError(f"batch: must be between 1 and {MOST_SAMPLES // max(steps, 1)} samples; got {batch}")
        measured = measure_steps(module, structure, samples, ratios=ratios, batches=[batch], local_steps=steps,
                                 repeats=PROFILE_REPEATS)
        follows = repeated_seconds(partial(_practise_following, module, structure), PROFILE_REPEATS)
        watts = {key: None if value is None else list(value.values)
                 for key, value in (("idle_w", measured.idle_w), ("busy_w", measured.busy_w))}
        seconds = [list(measured.steps_s[batch, ratio].values) for ratio in ratios]
        return Packet({"status": "profiled", "seconds": seconds, "follow": list(follows.values),
                       "peak_bytes": measured.peak_bytes, "clock_hz": measured.clock_hz, **watts})

    def _echo(self, request: Packet) -> Packet:
        """Return the requested number of bytes, so that the server can measure the transfer time."""
        size = request.whole("bytes")
        if not 0 <= size <= MOST_BYTES:
            raise PacketError(f"bytes: must be between 0 and {MOST_BYTES}; got {size}")
        return Packet({"status": "echo"}, {"payload": secrets.token_bytes(size)})

    # --- a round ----------------------------------------------------------------------------------------------------

    def _round(self, request: Packet) -> Packet:
        number, plan = request.whole("round"), request.text("plan")
        try:
            copy = self._follow(request, number, plan)
        except _BehindError:
            return Packet({"status": "behind", "round": self._copy.model.round if self._copy else -1})
        if request.fields.get("ratio") is None:
            return Packet({"status": "updated", "round": number})
        began = time.perf_counter()
        ratio = request.number("ratio")
        if not 0.0 <= ratio <= 1.0:
            raise PacketError(f"ratio: must be in [0, 1]; got {ratio}")
        keep, model, structure = copy.structure.keep_count(ratio), copy.model, copy.structure
        ranks = model.rank(keep < copy.layout.size)
        if "place" in request.fields:
            model.follow_schedule([_place(request, "place", copy.learner)])
        elif number >= copy.learner.rounds:
            raise PacketError(f"round: must be below {copy.learner.rounds}, the number of rounds; got {number}")
        inputs, labels = self._batches(copy, number, request.whole("batch"), request.blobs.get("labels"))
        given = RoundInput(model.weights, ranks, model.buffers, (0,), (ratio,), inputs[None], labels[None], structure)
        out = reference.updates(copy.module, given, copy.learner.local, model.client_rates)
        if not bool(out.finite[0]):
            return Packet({"status": "not finite", "round": number})
        assert out.client_gradients is not None
        mask = ranks[0] < keep
        nested = digest(mask).hex() == request.text("mask")
        upload = encode(out.client_gradients[0], mask, round=number, plan=plan, nested=nested, bits=copy.upload_bits,
                        key=copy.upload_key)
        blobs = {"upload": upload}
        if copy.layout.buffer_size:
            own = structure.buffer_mask(mask) if isinstance(structure, Channels) else slice(None)
            blobs["buffers"] = floats_to_bytes(out.buffers[0, own])
        return Packet({"status": "done", "round": number, "loss": float(out.losses[0]),
                       "seconds": time.perf_counter() - began}, blobs)

    def _follow(self, request: Packet, number: int, plan: str) -> _ModelCopy:
        """Bring the copy to ω^(number): from the state if the request has it, otherwise with the direction of the last
        round."""
        run = request.text("run")
        if "state" in request.blobs:
            self._copy = self._fresh(run, request.fields.get("task"), request.blobs["state"], number)
            return self._copy
        if self._copy is None or self._copy.run != run or self._copy.model.round not in (number - 1, number):
            raise _BehindError
        copy, model = self._copy, self._copy.model
        if model.round == number:  # a repeated request, whose direction has already been applied
            return copy
        if "gradient" not in request.blobs:
            raise _BehindError
        kept = request.whole("known")
        try:
            update = decode(request.blobs["gradient"], size=copy.layout.size, round=number - 1, plan=plan,
                            mask=model.rank(kept < copy.layout.size)[0] < kept)
        except MaskMismatchError:
            raise _BehindError from None
        buffers = model.buffers
        if copy.layout.buffer_size:
            buffers = floats_from_bytes(request.blob("buffers"), copy.layout.buffer_size)[None]
        if "last_place" in request.fields:
            model.follow_schedule([_place(request, "last_place", copy.learner)])
        model.advance(update.gradient[None], update.mask[None], buffers, (0,))
        return copy

    def _fresh(self, run: str, task: Any, state: bytes, number: int) -> _ModelCopy:
        """A new copy of the model at round ``number``: the model that the task describes, with the server's state."""
        if not isinstance(task, dict):
            raise PacketError("task: must be a mapping that describes the model")
        try:
            self._check_allowed(IMPORTANCE, task["importance"]["rule"])
            module, structure = self._model(task)
            seed, layout = int(task["seed"]), Layout.of(module)
            importance = Importances([task["importance"]], [stream_seed(seed, "selection")], torch.device("cpu"))
            learner, bits, client = Learner(**task["learner"]), task["upload_bits"], [int(task["client"])]
            weights = torch.zeros(1, layout.size)
            update = ServerUpdate([learner], weights)
            if bits not in UPLOAD_BITS:
                raise PacketError(f"task: upload_bits must be 32, 8 or 4; got {bits}")
            keys = batch_keys(seed, client), int(upload_keys(seed, client)[0])
        except (KeyError, TypeError, ValueError) as error:
            raise PacketError(f"task: a key is missing or has a wrong value ({error})") from None
        model = GlobalModel(weights, torch.zeros(1, layout.buffer_size), importance, update, structure.ranks)
        model.load([_read_state(state, layout, update)], number)
        return _ModelCopy(run, module, layout, structure, *keys, bits, learner, model)

    def _model(self, task: Any) -> tuple[torch.nn.Module, Structure]:
        """The model that a task describes, with its initial weights, and its pruning structure."""
        if not isinstance(task, dict):
            raise PacketError("task: must be a mapping that describes the model")
        inputs, _ = self._read()
        try:
            if tuple(inputs.shape[1:]) != tuple(task["input_shape"]):
                raise PacketError(f"task: expects samples of shape {tuple(task['input_shape'])}; this node's have "
                                  f"{tuple(inputs.shape[1:])}")
            self._check_allowed(MODELS, task["model"]["name"])
            described = {key: task.get(key) for key in ("model", "input_shape", "classes", "seed", "structure")}
            if self._built is None or self._built[0] != described:  # the profiled model is trained next
                module = build(**task["model"], input_shape=task["input_shape"], classes=int(task["classes"]),
                               seed=stream_seed(int(task["seed"]), "model"))
                structure = structure_of(task.get("structure", "weights"), module, task["input_shape"])
                self._built = described, module, structure
            return self._built[1:]
        except (KeyError, TypeError, ValueError) as error:
            raise PacketError(f"task: a key is missing or has a wrong value ({error})") from None

    def _check_allowed(self, registry: Registry, name: object) -> None:
        """Refuse code that the server names but this node's operator has not allowed, before anything is imported."""
        if name not in registry.built_in and name not in self._data.allowed():
            raise PacketError(f"task: the {registry.noun} {str(name)[:200]!r} is not allowed on this node; its "
                              "operator can add it to `allow` in the node's file")

    def _batches(self, copy: _ModelCopy, number: int, size: int, wanted: bytes | None) -> tuple[Tensor, Tensor]:
        """This client's τ mini-batches of the round, (τ, Z, ...). With the same samples they equal the simulator's.

        ``wanted`` is the probability with which each label is drawn, float64 bytes; None to draw all samples with equal
        probability."""
        inputs, labels = self._read()
        steps = copy.learner.local_steps
        if not 1 <= size <= MOST_SAMPLES // steps:
            raise PacketError(f"batch: must be between 1 and {MOST_SAMPLES // steps} samples; got {size}")
        if wanted is None:
            drawn = batch_indices(copy.key, np.array([number]), np.array([len(labels)]), size, steps)[0, 0]
            index = torch.from_numpy(drawn)
        else:
            try:
                cumulative = cumulative_probabilities(labels.numpy(), np.frombuffer(wanted, dtype="<f8"))
            except (ValueError, IndexError) as error:
                raise PacketError(f"labels: cannot be drawn with these probabilities ({error})") from None
            key, round_number, samples, start = (
                torch.tensor([value]) for value in (int(copy.key[0]), number, len(labels), 0))
            index = draw_weighted_batches(key, round_number, samples, start, torch.from_numpy(cumulative), size,
                                          steps)[0].long()
        return inputs[index], labels[index]

    def _read(self) -> tuple[Tensor, Tensor]:
        if self._samples is None:
            self._samples = self._data.samples()
        return self._samples


def _practise_following(module: torch.nn.Module, structure: Structure) -> None:
    """Do what a node does in a round besides its local steps: read the last round's direction and rank the weights."""
    weights = Layout.of(module).weights(module)
    everything = torch.ones(len(weights), dtype=torch.bool)
    decode(encode(weights, everything, round=0, plan=""), size=len(weights), round=0, plan="", mask=everything)
    structure.ranks(weights.abs()[None])


def _place(request: Packet, key: str, learner: Learner) -> int:
    """The position of a round in the rate schedule, from the field ``key`` of the request."""
    place = request.whole(key)
    if not 0 <= place < learner.rounds:
        raise PacketError(f"{key}: must be below {learner.rounds}, the steps of the rate schedule; got {place}")
    return place


def _read_state(data: bytes, layout: Layout, update: ServerUpdate) -> dict[str, Tensor]:
    """Read and check the server's state, for :meth:`GlobalModel.load`."""
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise PacketError(f"state: cannot be read ({error})") from None
    optimiser = [f"optimiser.{name}" for name in update.state]
    for name, tensor in tensors.items():
        size = layout.buffer_size if name == "buffers" else layout.size
        known = name in ("weights", "buffers", *optimiser) or name.startswith("importance.")
        if not known or tensor.shape != (size,) or tensor.dtype != torch.float32:
            raise PacketError(f"state: {name} must be a float32 tensor of the model, with {size} entries")
    if missing := {"weights", *optimiser} - set(tensors):
        raise PacketError(f"state: the tensor {min(missing)} is missing")
    return {"buffers": torch.zeros(0), **{name: tensor[None] if name.startswith("importance.") else tensor
                                          for name, tensor in tensors.items()}}


def floats_to_bytes(values: Tensor) -> bytes:
    """The values as little-endian float32 bytes."""
    return bytes(values.detach().cpu().to(torch.float32).numpy().astype("<f4").tobytes())


def floats_from_bytes(data: bytes, count: int) -> Tensor:
    """Exactly ``count`` finite float32 values from little-endian bytes."""
    if len(data) != 4 * count:
        raise PacketError(f"buffers: must have {4 * count} bytes; got {len(data)}")
    values = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise PacketError("buffers: must be finite")
    return torch.from_numpy(values)
