"""Data types of one round of federated training on pruned models: :class:`RoundInput` goes in, :class:`RoundOutput`
comes out.

:mod:`fedgap.learning.reference` (a plain loop over clients) and :class:`fedgap.learning.engine.Engine` (stacked, fast)
both turn a :class:`RoundInput` into a :class:`RoundOutput`; tests check that they agree.

Several runs (seeds × schemes × budgets) are computed in one call; each run has its own weights and ranking. The call
has K jobs. A job is the work of one selected client of one run in this round, and ``run[j]`` is the run of job j.
FedSGD with one run, R = 1::

    ranking = ranks(importance.scores(weights, s))                                   # (1, M)
    out = engine.gradients(RoundInput(weights, ranking, buffers, run=(0,) * k, ratios=λ, inputs=x, labels=y))
    importance.observe(weights, out.gradient, known(round_input, out))
    weights = weights - η * out.gradient

With local steps (:class:`LocalTraining`) a client takes τ mini-batch steps of rate η on its pruned model::

    w_0 = mask·ω                                              the round's starting weights
    g_t = mask·(∇L(w_t; batch t) + μ·(w_t − w_0))             μ: FedProx
    g_t ← g_t·min(1, C / (‖g_t‖ + 10⁻⁶))                      C: clipping, as torch.nn.utils.clip_grad_norm_ does it
    d_t = β·d_{t−1} + g_t,  d_{−1} = 0                        β: momentum, which starts anew in each round
    w_{t+1} = w_t − η·d_t

The client's update is **the sum of its step directions** over the kept weights, u = Σ_t d_t, so that w_0 − w_τ = η·u.
The server uses the clients' mean update ū in place of the gradient, and passes the direction η·ū to its optimiser
(:mod:`fedgap.learning.server_optimisers`): plain SGD with server rate 1 is FedAvg. With τ = 1 and no clipping, u is the
gradient (momentum and the proximal term are 0 in a first step), and it equals FedSGD's bit for bit::

    out = engine.updates(round_input, local, rates)                                  # inputs (K, τ, Z, ...)
    covered = known(round_input, out)
    importance.observe(weights, out.gradient / local.steps, covered)
    weights, state = optimiser.step(weights, rates[:, None] * out.gradient, covered, server_rate, state)

What the rest of a round means with local steps and server state:

- **Masks.** A pruned weight is 0 throughout a client's local steps: its gradient is masked in each of them, and the
  update is 0 there. The ranking is computed once per round, from the weights at its start.
- **Importance and remembered gradients** use ū/τ, the mean direction of a step, as the round's gradient at the round's
  starting weights ω. Dividing by τ keeps remembered gradients of different rounds comparable. The server's momentum is
  left out: importance asks how the loss reacts, not how the weights moved.
- **Weights that no accepted client kept** have ū = 0 and do not move, and their optimiser state does not change in that
  round.
- **BatchNorm.** A client's running statistics start from the server's, and each of its steps updates them. The server
  averages the statistics after the last step over clients, with equal weights even where updates are weighted by
  samples.
- **Losses** are the mean over a client's τ mini-batches, each at the weights of its step.
- A client is accepted if all its losses and its update are finite.
- **Uploads** contain u for the kept weights, as FedSGD's contain the gradient.

With ``structure`` :class:`~fedgap.learning.structure.Channels` a client's model is really smaller, and computes what
the masked whole model would. Only BatchNorm differs: a client has no statistics of a channel that it removed, so a
channel's statistics are averaged over the clients that kept it, and do not change if no client did."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgap.learning.masks import keep_count
from fedgap.learning.structure import Structure

CLIP_MARGIN = 1e-6
"""Added to a gradient's norm before the limit is divided by it, as in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True)
class LocalTraining:
    """The settings of a client's local training in a round; the module docstring has the formulas.

    ``steps`` is τ; ``momentum`` β is in [0, 1); ``proximal`` μ ≥ 0 is FedProx's weight; ``clip_norm`` C > 0, or None
    for no clipping. The learning rates η are arguments of each call."""

    steps: int = 1
    momentum: float = 0.0
    proximal: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a client takes at least one local step, not {self.steps}")
        if not (0.0 <= self.momentum < 1.0 and self.proximal >= 0.0):
            raise ValueError(f"momentum must be in [0, 1) and the proximal weight at least 0; got {self.momentum} and "
                             f"{self.proximal}")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"the clipping norm must be above 0; got {self.clip_norm}")

    @property
    def is_gradient(self) -> bool:
        """Whether a client's update equals its gradient, as in FedSGD (one step, no clipping)."""
        return self.steps == 1 and self.clip_norm is None


@dataclass(frozen=True)
class RoundInput:
    """The input of a round: R runs with K jobs (selected clients) in all.

    ``weights`` ω (R, M); ``ranks`` (R, M) int32, the ranking of each run (:func:`fedgap.learning.masks.ranks`);
    ``buffers`` (R, B), BatchNorm's running statistics at the server (B may be 0). Job j has its run ``run[j]``, its
    pruning ratio ``ratios[j]`` = λ, and its mini-batch ``inputs[j]`` (Z, *shape), ``labels[j]`` (Z,) int64. Inputs and
    labels are one tensor each, (K, Z, ...), or lists of K tensors if batch sizes differ between clients. With local
    steps a job has τ batches of one size: ``inputs[j]`` (τ, Z, *shape), ``labels[j]`` (τ, Z).

    ``structure`` says what is pruned (single weights if None). ``keep_counts``, if given, is the number of weights that
    each job keeps, and overrides the ratios. ``counted`` (K, B) bool, if given, says which buffer entries of a job
    enter the mean."""

    weights: Tensor
    ranks: Tensor
    buffers: Tensor
    run: Sequence[int]
    ratios: Sequence[float]
    inputs: Tensor | Sequence[Tensor]
    labels: Tensor | Sequence[Tensor]
    structure: Structure | None = None
    keep_counts: Sequence[int] | None = None
    counted: Tensor | None = None

    def __post_init__(self) -> None:
        jobs, runs = len(self.run), self.weights.shape[0]
        if not len(self.ratios) == len(self.inputs) == len(self.labels) == jobs:
            raise ValueError(f"ratios, inputs and labels must have one entry for each of the {jobs} jobs; got "
                             f"{len(self.ratios)}, {len(self.inputs)} and {len(self.labels)}")
        if self.weights.dim() != 2 or self.ranks.shape != self.weights.shape or self.buffers.shape[:1] != (runs,):
            raise ValueError("weights and ranks must have shape (R, M), and buffers (R, B); got "
                             f"{tuple(self.weights.shape)}, {tuple(self.ranks.shape)} and {tuple(self.buffers.shape)}")
        if jobs and not 0 <= min(self.run) <= max(self.run) < runs:
            raise ValueError(f"run[j] must be in 0..{runs - 1} for every job; got {min(self.run)} to {max(self.run)}")

    @property
    def keeps(self) -> Sequence[int]:
        """Number of parameters that each job keeps: round((1 − λ)·M) if single weights are pruned, slightly fewer if
        whole channels are."""
        if self.keep_counts is not None:
            return self.keep_counts
        if self.structure is not None:
            return [self.structure.keep_count(ratio) for ratio in self.ratios]
        return [keep_count(ratio, self.weights.shape[1]) for ratio in self.ratios]

    def check_steps(self, local: LocalTraining, rates: Tensor) -> None:
        """Raise ValueError unless each job has ``local.steps`` batches and ``rates`` has one rate for each run."""
        shapes = [self.labels.shape[1:]] if isinstance(self.labels, Tensor) else [own.shape for own in self.labels]
        if any(len(shape) != 2 or shape[0] != local.steps for shape in shapes):
            raise ValueError(f"each job's labels must have shape (steps, batch) with {local.steps} steps")
        if rates.shape != self.weights.shape[:1]:
            raise ValueError(f"rates must have shape ({len(self.weights)},), one per run; got {tuple(rates.shape)}")

    def first_step(self) -> "RoundInput":
        """The same round with only the first batch of each job, as FedSGD needs it."""
        def first(batches: Tensor | Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
            return batches[:, 0] if isinstance(batches, Tensor) else [batch[0] for batch in batches]

        return replace(self, inputs=first(self.inputs), labels=first(self.labels))


@dataclass(frozen=True)
class RoundOutput:
    """The result of a round for the server.

    ``gradient`` (R, M): (1/accepted)·Σ over the run's accepted jobs of the masked gradient of the mean loss of the
    job's batch at its pruned weights. A weight that a client pruned contributes 0 and the client still counts; a run
    without accepted jobs gets 0. With local steps it is the mean ū of the jobs' updates. ``losses`` (K,). ``finite``
    (K,) bool: a job whose loss or gradient is not finite is not accepted. ``accepted`` (R,) int64: the number of
    accepted jobs. ``buffers`` (R, B): the mean over accepted jobs of the client's buffers after its last step (with
    channels, over those that kept the channel); the input's buffers where there is none. ``kept`` (R,) int32: the
    largest number of parameters that any accepted job of the run keeps.

    Only on request: ``client_gradients`` (K, M), the masked gradient or update of each job, and ``client_buffers`` (K,
    B), each client's buffers after its last step (the input's value where the client removed the buffer's channel)."""

    gradient: Tensor
    losses: Tensor
    finite: Tensor
    accepted: Tensor
    buffers: Tensor
    client_gradients: Tensor | None = None
    kept: Tensor | None = None
    client_buffers: Tensor | None = None


def known(round_input: RoundInput, output: RoundOutput) -> Tensor:
    """Where the round's gradient is known: (R, M) bool, True if at least one accepted job kept the weight."""
    if output.kept is None:
        raise ValueError("RoundOutput.kept must be set; this output does not say how many weights were kept")
    return round_input.ranks.to(output.kept.device) < output.kept[:, None]


def mean_buffers(buffers: Tensor, counted: Tensor | None, before: Tensor) -> Tensor:
    """The mean (B,) over clients of their buffers (k, B), k ≥ 1.

    With ``counted`` (k, B) bool, only the True entries enter the mean; an entry that no client counts keeps its value
    ``before`` (B,)."""
    if counted is None:
        return buffers.sum(0) / len(buffers)
    clients = counted.sum(0)
    return torch.where(clients > 0, torch.where(counted, buffers, 0).sum(0) / clients.clamp(min=1), before)
