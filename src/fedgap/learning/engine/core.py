"""The engine's interface: one call computes a round, another one evaluates models."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from fedgap.errors import InputError
from fedgap.learning.contract import LocalTraining, RoundInput, RoundOutput
from fedgap.learning.engine.cpu_probe import check_cpu_precision
from fedgap.learning.engine.forwards import Forward, Generic
from fedgap.learning.engine.graphs import RecordedRanks, Recorder
from fedgap.learning.engine.passes import PassOutput, compute, compute_round, finish
from fedgap.learning.engine.precision import PRECISIONS, arithmetic, compute_dtype, storage_dtype
from fedgap.learning.engine.pruned_models import PassInput, Shape
from fedgap.learning.engine.schedule import Chunk, schedule
from fedgap.learning.engine.small_models import ON_CPU, ON_GPU, SmallModels
from fedgap.learning.engine.stacked import local_stack_of, stack_of
from fedgap.learning.masks import ranks
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models.layout import Layout
from fedgap.learning.structure import Channels, Structure, Weights

STRATEGIES = ("auto", "stacked", "vmap", "loop")
"""How several models with different weights are computed: ``stacked`` by a hand-written stack (only fedgap's own
models), ``vmap`` with ``torch.func.vmap``, ``loop`` one after the other, ``auto`` by the fastest of these."""
_EVALUATED = 16_384  # samples of one evaluation pass on a GPU, over all its models
_SAMPLES, _MODELS = 2**19, 4096  # upper limits of a training pass on a GPU
_RANKED = 2**20  # with at most this many scores, launching a sort on a GPU takes longer than the sort
_ALONE = 64  # with at most this many jobs on a GPU, one model per job costs no more than sharing models


@dataclass(frozen=True)
class _Planned:
    """A chunk with its tensors on the device. ``back`` reorders its jobs to the round's order; None if they already
    have it."""

    chunk: Chunk
    shape: Shape
    run: Tensor
    keeps: Tensor
    jobs: Tensor
    back: Tensor | None


def check_device(device: str | torch.device) -> torch.device:
    """The torch device with this name (``auto``: a GPU if there is one). Raises an InputError if it does not exist."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError("engine.device: torch finds no CUDA device on this machine; use cpu or auto")
    return found


class Engine:
    """Computes rounds and evaluations of one model on one device.

    ``module`` is a template: its weights are never read or changed; each call brings flat weights, in the order of
    ``engine.layout``. ``precision`` is one of :data:`PRECISIONS`, ``strategy`` one of :data:`STRATEGIES`.
    ``memory_bytes`` limits the memory for the activations of one pass; a round that needs more is divided into passes.
    On a GPU rounds are replayed as CUDA graphs unless ``graphs`` is False. The tensors of a call may be on any device;
    results are on ``device``."""

    def __init__(self, module: nn.Module, *, device: str | torch.device = "cpu", precision: str = "float32",
                 strategy: str = "auto", memory_bytes: int | None = None, graphs: bool = True) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision: must be one of {', '.join(PRECISIONS)}; got {precision!r}")
        for name, layer in module.named_modules():
            if isinstance(layer, _DropoutNd) and layer.p > 0:
                raise InputError(f"model: layer {name} is dropout, which draws random numbers inside the model, so a "
                                 "round could not be repeated exactly; set its p to 0")
        self.device = check_device(device)
        if self.device.type == "cpu":
            check_cpu_precision(precision)
        self.precision = precision
        self.dtype = storage_dtype(precision)
        self.module = copy.deepcopy(module).to(self.device, self.dtype)
        self.layout = Layout.of(self.module)
        self.memory_bytes = memory_bytes or _default_memory(self.device)
        self._strategy, self._auto = strategy, strategy == "auto"
        self._forward = self._choose(strategy)
        self._stacks = self.device.type == "cuda" and not isinstance(self._forward, Generic)
        if self._stacks:
            _wake_autograd(self.device)
        on_gpu = self.device.type == "cuda"
        self._recorder = Recorder() if graphs and on_gpu and self._forward.at_once else None
        self._recorded_ranks = RecordedRanks() if graphs and on_gpu else None
        self._local_forward: Forward | None = None  # chosen when the shape of the inputs is known
        self._no_rates = torch.empty(0, dtype=self.dtype, device=self.device)
        self._fusable: bool | None = False if self.layout.buffer_size else None
        self._sample_bytes = 0
        self._plans: dict[object, list[_Planned]] = {}
        self._smaller: SmallModels[Engine] | None = None

    def _choose(self, strategy: str) -> Forward:
        dtype = compute_dtype(self.precision)
        stack = stack_of(self.module, self.layout, dtype, self.device)
        on_gpu = self.device.type == "cuda"
        if strategy == "auto":
            # On a CPU a stack is faster only if layers are too small to fill a vector unit. Of our models these are
            # the ones without BatchNorm.
            stack_pays = on_gpu or not self.layout.buffer_size
            strategy = "stacked" if stack and stack_pays else "vmap" if on_gpu else "loop"
        if strategy == "stacked":
            if stack is None:
                raise InputError("strategy: 'stacked' works only for fedgap's own models; use 'vmap', 'loop' or 'auto'")
            return stack
        if strategy not in STRATEGIES:
            raise InputError(f"strategy: must be one of {', '.join(STRATEGIES)}; got {strategy!r}")
        return Generic(self.module, self.layout, dtype, vectorised=strategy == "vmap")

    def _choose_for_steps(self, image: torch.Size) -> Forward:
        """The computation to use for local steps on images of this shape."""
        if not self._auto:
            return self._forward
        dtype = compute_dtype(self.precision)
        return local_stack_of(self.module, self.layout, dtype, self.device, image) or self._forward

    # --- a round ----------------------------------------------------------------------------------------------------

    def rank(self, scores: Tensor) -> Tensor:
        """:func:`~fedgap.learning.masks.ranks` of scores (R, M). On a GPU the next call may overwrite the result."""
        if self._recorded_ranks is None or scores.numel() > _RANKED or not scores.is_cuda:
            return ranks(scores)
        return self._recorded_ranks(scores)

    def ranking(self, structure: Structure) -> Callable[[Tensor], Tensor]:
        """The structure's ranking function. On a GPU it is replayed as a graph, and the next call may overwrite the
        result."""
        if isinstance(structure, Weights):
            return self.rank
        return structure.ranks if self._recorded_ranks is None else RecordedRanks(structure.ranks)

    def gradients(self, round_input: RoundInput, *, per_client: bool = False) -> RoundOutput:
        """Compute a round of FedSGD.

        ``per_client`` also returns ``client_gradients`` (K, M); clients then share no passes."""
        return self._round(round_input, per_client, None, self._no_rates)

    def updates(self, round_input: RoundInput, local: LocalTraining, rates: Tensor, *,
                per_client: bool = False) -> RoundOutput:
        """Compute a round with local steps; ``rates`` (R,) is each run's learning rate η. See
        :mod:`fedgap.learning.contract`.

        One step without clipping is a round of FedSGD, and is computed by :meth:`gradients`."""
        round_input.check_steps(local, rates)
        if local.is_gradient:
            return self.gradients(round_input.first_step(), per_client=per_client)
        return self._round(round_input, per_client, local, self._here(rates))

    def _round(self, round_input: RoundInput, per_client: bool, local: LocalTraining | None,
               rates: Tensor) -> RoundOutput:
        if isinstance(round_input.structure, Channels):
            return self._small_models(round_input.structure).round(round_input, local, rates, per_client)
        weights, buffers = self._here(round_input.weights).contiguous(), self._here(round_input.buffers)
        ranks = round_input.ranks.to(self.device).contiguous()  # kernels read rows
        plan = self._plan(round_input, per_client, local)
        if len(plan) == 1 and plan[0].shape.clients == 1:  # one model per client
            out = self._pass(compute_round, plan[0], round_input, weights, ranks, buffers, rates)
            back = plan[0].back
            losses, finite = out.losses[:, 0], out.finite
            if back is not None:
                losses, finite = losses[back], finite[back]
            each, each_buffers = ((values.clone() if back is None else values[back]) if per_client else None
                                  for values in (out.gradients, out.client_buffers))
            return RoundOutput(out.gradient, losses, finite, out.accepted, out.buffers, each, out.kept, each_buffers)
        return self._divided(plan, round_input, weights, ranks, buffers, rates, per_client)

    def _small_models(self, structure: Channels) -> SmallModels["Engine"]:
        """The engines of the structure's small models, cached for the next round."""
        if self._smaller is None or self._smaller.structure is not structure:
            on_gpu = self.device.type == "cuda"
            self._smaller = SmallModels(structure, self, self._of_small_module, ON_GPU if on_gpu else ON_CPU,
                                        None if self._recorder is None else Recorder())
        return self._smaller

    def _of_small_module(self, module: nn.Module) -> "Engine":
        return Engine(module, device=self.device, precision=self.precision, memory_bytes=self.memory_bytes,
                      strategy=self._strategy, graphs=False)

    def _divided(self, plan: list[_Planned], round_input: RoundInput, weights: Tensor, ranks: Tensor, buffers: Tensor,
                 rates: Tensor, per_client: bool) -> RoundOutput:
        """Compute a round that needs several passes, or in which clients share a model."""
        jobs, runs = len(round_input.run), len(weights)
        losses = torch.zeros(jobs, dtype=self.dtype, device=self.device)
        finite = torch.zeros(jobs, dtype=torch.bool, device=self.device)
        each, each_buffers = (torch.zeros(jobs, values.shape[1], dtype=self.dtype, device=self.device)
                              if per_client else None for values in (weights, buffers))
        total = PassOutput(torch.zeros_like(weights), torch.zeros_like(buffers),
                           torch.zeros(runs, dtype=torch.int64, device=self.device),
                           torch.zeros(runs, dtype=torch.int32, device=self.device), losses, finite, losses, losses)
        pending = list(plan)
        while pending:
            planned = pending.pop()
            clients = planned.shape.clients
            out = self._pass(compute, planned, round_input, weights, ranks, buffers, rates)
            if clients > 1 and not bool(out.finite.all()):
                # Find the clients whose values are not finite.
                pending += [self._planned(Chunk(((job,),)), round_input, False, None) for job in planned.chunk.jobs]
                continue
            total = total._replace(gradient=total.gradient + out.gradient, buffers=total.buffers + out.buffers,
                                   accepted=total.accepted + out.accepted, kept=torch.maximum(total.kept, out.kept))
            losses[planned.jobs] = out.losses.flatten()
            finite[planned.jobs] = out.finite.repeat_interleave(clients)
            if each is not None and each_buffers is not None:
                each[planned.jobs], each_buffers[planned.jobs] = out.gradients, out.client_buffers
        mean = finish(total, buffers)
        return RoundOutput(mean.gradient, losses, finite, mean.accepted, mean.buffers, each, mean.kept, each_buffers)

    def _plan(self, round_input: RoundInput, per_client: bool, local: LocalTraining | None) -> list[_Planned]:
        """The chunks of a round. They are cached, because a plan's rounds repeat."""
        labels = round_input.labels
        sizes = ((labels.shape[-1],) * len(labels) if isinstance(labels, Tensor) else
                 tuple(batch.shape[-1] for batch in labels))
        key = (tuple(round_input.run), tuple(round_input.keeps), sizes, per_client, local)
        if key not in self._plans:
            if len(self._plans) >= 256:
                self._plans.clear()
            batch = round_input.inputs[0] if local is None else round_input.inputs[0][0]
            if not self._sample_bytes:
                self._sample_bytes = self._measure(batch, round_input.buffers)
            if local is not None and self._local_forward is None:
                self._local_forward = self._choose_for_steps(batch.shape[1:])
            if local is None and self._fusable is None:
                self._fusable = _samples_are_independent(self.module, batch)
            on_gpu = self.device.type == "cuda"
            # A pass holds the mask, the pruned weights and the gradient in three forms; local steps also need the
            # update, the momentum and the starting weights.
            model_bytes = (5 if local is None else 8) * self.layout.size * self.dtype.itemsize
            samples = max(1, self.memory_bytes // self._sample_bytes)
            models = max(1, self.memory_bytes // model_bytes) if self._forward.at_once else 1
            if on_gpu:  # kernels use 32-bit addresses
                samples = min(samples, _SAMPLES, addressable(batch.shape[1:]))
                models = max(1, min(models, _MODELS, (2**31 - 1) // self.layout.size))
            chunks = schedule(
                round_input.run, round_input.keeps, sizes, uniform=on_gpu,
                fuse=bool(self._fusable) and local is None and not per_client and not (on_gpu and len(sizes) <= _ALONE),
                samples=samples, models=models)
            self._plans[key] = [self._planned(chunk, round_input, per_client, local) for chunk in chunks]
        return self._plans[key]

    def _planned(self, chunk: Chunk, round_input: RoundInput, each: bool, local: LocalTraining | None) -> _Planned:
        firsts, keeps = [group[0] for group in chunk.groups], round_input.keeps
        run = [round_input.run[job] for job in firsts]
        jobs = torch.tensor(chunk.jobs, device=self.device)
        shape = Shape(tuple(run), len(chunk.groups[0]), each, local)
        return _Planned(chunk, shape, torch.tensor(run, device=self.device),
                        torch.tensor([keeps[job] for job in firsts], dtype=torch.int32, device=self.device), jobs,
                        None if chunk.jobs == list(range(len(chunk.jobs))) else jobs.argsort())

    def _pass(self, what: Callable[[Forward, Shape, PassInput], PassOutput], planned: _Planned,
              round_input: RoundInput, weights: Tensor, ranks: Tensor, buffers: Tensor, rates: Tensor) -> PassOutput:
        jobs, models = planned.chunk.jobs, len(planned.chunk.groups)
        inputs = self._here(_take(round_input.inputs, jobs, planned.jobs))
        labels = _take(round_input.labels, jobs, planned.jobs).to(self.device)
        if planned.shape.local is None:
            inputs, labels = inputs.reshape(models, -1, *inputs.shape[2:]), labels.reshape(models, -1)
        counted = round_input.counted
        given = PassInput(weights, ranks, buffers, planned.run, planned.keeps, inputs, labels, rates,
                          self._no_rates if counted is None else self._here(counted[planned.jobs.to(counted.device)]))
        function = partial(self._compute, what, planned.shape)
        if self._recorder is None:
            return function(given)
        key = what, planned.shape, inputs.shape, weights.shape[0], counted is None
        return self._recorder.run(key, function, given)

    def _compute(self, what: Callable[[Forward, Shape, PassInput], PassOutput], shape: Shape,
                 given: PassInput) -> PassOutput:
        with arithmetic(self.precision, self.device):
            forward = self._forward if shape.local is None else self._local_forward
            assert forward is not None
            return what(forward, shape, given)

    def _measure(self, batch: Tensor, buffers: Tensor) -> int:
        """Bytes of memory per sample in a training pass: twice what the backward pass keeps, because gradients of
        activations need as much."""
        try:
            kept = self._kept_bytes(batch, buffers)
        except RuntimeError:
            if not (isinstance(self._forward, Generic) and self._forward.at_once):
                raise
            self._forward, self._recorder = self._choose("loop"), None  # vmap cannot vectorise this module
            kept = self._kept_bytes(batch, buffers)
        return 2 * kept

    def _kept_bytes(self, batch: Tensor, buffers: Tensor) -> int:
        kept = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        samples = self._here(batch[:2])[None]
        parameters = self._forward.spread(torch.zeros(1, self.layout.size, dtype=self.dtype, device=self.device))
        buffers = self._here(buffers[:1]).clone()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self._forward(parameters, buffers, samples, True)
        own = sum(p.numel() * p.element_size() for p in parameters.values())
        return max(samples[0, 0].nbytes, (kept - own) // samples.shape[1])

    # --- an evaluation ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, weights: Tensor, buffers: Tensor, inputs: Tensor, labels: Tensor,
                 batch_size: int | None = None) -> list[Evaluation]:
        """Loss and accuracy of each run's model, with ``weights`` (R, M) and ``buffers`` (R, B), in evaluation mode.

        ``inputs`` and ``labels`` are T samples for all runs, (T, *shape) and (T,), or separate ones for each run, (R,
        T, *shape) and (R, T). To evaluate the pruned model, pass the weights times
        :func:`fedgap.learning.masks.kept_fraction`."""
        weights, buffers = self._here(weights), self._here(buffers)
        runs, own = len(weights), labels.dim() == 2
        at_once = min(runs, _ALONE) if self._stacks else 1
        batch = self._batch(at_once, labels.shape[-1], batch_size)
        totals = torch.zeros(runs, 2, dtype=torch.float64, device=self.device)
        for first in range(0, runs, at_once):
            rows = slice(first, first + at_once)
            parameters, models = self._forward.spread(weights[rows]), len(weights[rows])
            sets = (inputs[rows], labels[rows]) if own else (inputs[None], labels[None])
            for x, y in zip(*(torch.split(part, batch, dim=1) for part in sets)):
                x, y = self._here(x), y.to(self.device)
                x, y = x.expand(models, *x.shape[1:]), y.expand(models, -1)
                logits = self._logits(parameters, buffers[rows], x)
                losses = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
                totals[rows, 0] += losses.reshape(models, -1).sum(1, dtype=torch.float64)
                totals[rows, 1] += (logits.argmax(2) == y).sum(1)
        samples = labels.shape[-1]
        return [Evaluation(loss / samples, right / samples, samples) for loss, right in totals.tolist()]

    @torch.no_grad()
    def logits(self, weights: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Logits (T, classes) of one model, with weights (M,) and buffers (B,), in evaluation mode for inputs (T,
        *shape).

        On a CPU they equal, bit for bit, the numbers from which :meth:`evaluate` computes the accuracy."""
        parameters, buffers = self._forward.spread(self._here(weights)[None]), self._here(buffers)[None]
        batches = torch.split(inputs, self._batch(1, len(inputs), None))
        return torch.cat([self._logits(parameters, buffers, self._here(batch)[None])[0] for batch in batches])

    def _logits(self, parameters: dict[str, Tensor], buffers: Tensor, inputs: Tensor) -> Tensor:
        with arithmetic(self.precision, self.device):
            return self._forward(parameters, buffers, inputs, False).to(self.dtype)

    def _batch(self, models: int, samples: int, asked: int | None) -> int:
        """Samples of each of ``models`` models in one evaluation pass.

        On a GPU as many as keep it busy, in passes of equal size, because cuDNN tries its algorithms anew for each
        size."""
        if asked is not None:
            return asked
        if not self._stacks:
            return 1000
        kept = self._sample_bytes  # of a training pass; an evaluation needs less, so this is on the safe side
        most = max(1, (min(_EVALUATED, self.memory_bytes // kept) if kept else 1000) // models)
        return -(-samples // -(-samples // most)) if samples else 1

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype)


def addressable(shape: Sequence[int]) -> int:
    """The number of samples (C, ...) that a kernel can address with 32 bits.

    None of our models has more than max(16, C) numbers per input pixel (residual networks have 16, LeNet-5's second
    layer 13.5 in its windows)."""
    return max(1, (2**31 - 1) // (max(16, shape[0]) * prod(shape[1:])))


def _take(batches: Tensor | Sequence[Tensor], jobs: Sequence[int], index: Tensor) -> Tensor:
    """The batches of these jobs. ``index`` holds the same job numbers as a tensor on the device, which a graph can
    read."""
    if isinstance(batches, Tensor):
        return batches if list(jobs) == list(range(len(batches))) else batches[index.to(batches.device)]
    return torch.stack([batches[job] for job in jobs])


def _default_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(0.5 * torch.cuda.mem_get_info(device)[0])
    return 256 * 2**20


def _wake_autograd(device: torch.device) -> None:
    """Run one ordinary operation so that autograd's thread gets its CUDA context; otherwise cuBLAS would print a
    warning."""
    with torch.enable_grad():  # whatever the caller is doing
        x = torch.zeros(1, device=device, requires_grad=True)
        torch.autograd.grad(x * x, x)


@torch.no_grad()
def _samples_are_independent(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a sample's logits are the same alone and in a batch, so that clients with the same mask may share a
    pass."""
    if len(inputs) < 2:
        return True
    probe = copy.deepcopy(module).cpu().double().train()
    samples = inputs[:2].cpu().double()
    try:
        together, alone = probe(samples), torch.cat([probe(samples[:1]), probe(samples[1:])])
    except (RuntimeError, ValueError):
        return False
    return together.shape == alone.shape and bool(torch.allclose(together, alone, rtol=1e-9, atol=1e-9))
