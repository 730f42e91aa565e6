"""One round of federated training on pruned models, as data: what goes in, what comes out.

:mod:`fedgap.learning.reference` (a plain loop over clients) and :class:`fedgap.learning.engine.Engine` (stacked, fast)
both turn a :class:`RoundInput` into a :class:`RoundOutput`, and are tested equal.

Several runs (seeds × schemes × budgets) are computed in one call: each has its own weights and ranking. The call has K
jobs, one for each selected client of each run, and each job names its run. FedSGD with one run, R = 1::

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

and its update is **the sum of its step directions**, u = Σ_t d_t, for the kept weights, so that w_0 − w_τ = η·u. The
server takes the clients' mean ū in place of the gradient, and its optimiser
(:mod:`fedgap.learning.server_optimisers`) the direction η·ū: plain SGD with server rate 1 is FedAvg. With τ = 1 and no
clipping u is the gradient (momentum and the proximal term are 0 in a first step), and it is computed as FedSGD's is,
bit for bit::

    out = engine.updates(round_input, local, rates)                                  # inputs (K, τ, Z, ...)
    covered = known(round_input, out)
    importance.observe(weights, out.gradient / local.steps, covered)
    weights, state = optimiser.step(weights, rates[:, None] * out.gradient, covered, server_rate, state)

What the rest of a round means with local steps and server state:

- **Masks.** A pruned weight is 0 throughout a client's local steps: its gradient is masked in each of them, and the
  update has 0 there. The ranking is made once a round, from the weights at its start.
- **Importance and remembered gradients** take ū/τ, the mean direction of a step, as the round's gradient, at the
  round's starting weights ω. Division by τ keeps the scale of remembered gradients comparable between rounds. Momentum
  on the server is not part of it: importance asks how the loss reacts, not how the weights moved.
- **Weights that no accepted client kept** have ū = 0, do not move, and their optimiser state is frozen in that round.
- **BatchNorm.** A client's running statistics start from the server's and are updated by each of its steps in turn;
  what it has after its last step is averaged over clients, equally even where updates are weighted by samples.
- **Losses** are the mean over a client's τ mini-batches, each at the weights of its step.
- A client is accepted if all its losses and its update are finite.
- **Uploads** carry u for the kept weights, as they carried the gradient.

With ``structure`` :class:`~fedgap.learning.structure.Channels` a client's model is really smaller, and computes what
the masked whole model would. Only BatchNorm differs: a client has no statistics of a channel that it removed, so a
channel's statistics are averaged over the clients that kept it, and stay as they were where none did.
"""

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
    """What a client does in a round; see the module docstring. The rates η come with each call.

    ``steps`` τ; ``momentum`` β in [0, 1); ``proximal`` μ ≥ 0 of FedProx; ``clip_norm`` C > 0, None for no clipping.
    """

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
        """Whether a client's update is its gradient, as in FedSGD."""
        return self.steps == 1 and self.clip_norm is None


@dataclass(frozen=True)
class RoundInput:
    """R runs with K jobs (selected clients) in all.

    ``weights`` ω (R, M); ``ranks`` (R, M) int32, the ranking of each run (:func:`fedgap.learning.masks.ranks`);
    ``buffers`` (R, B), BatchNorm's running statistics at the server (B may be 0). For each job j: its run ``run[j]``,
    its pruning ratio ``ratios[j]`` = λ, and its mini-batch ``inputs[j]`` (Z, *shape), ``labels[j]`` (Z,) int64. Inputs
    and labels are one tensor each, (K, Z, ...), or, where clients have batch sizes of their own, lists of K tensors.
    With local steps a job has τ batches of one size: ``inputs[j]`` (τ, Z, *shape), ``labels[j]`` (τ, Z).

    ``structure`` says what is pruned; without one single weights are. ``keep_counts``, if given, are the weights that
    each job keeps, whatever its ratio says. ``counted`` (K, B) bool, if given, says which of a job's buffers count in
    the mean.
    """

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
            raise ValueError(f"{jobs} jobs, but {len(self.ratios)} ratios, {len(self.inputs)} batches and "
                             f"{len(self.labels)} batches of labels")
        if self.weights.dim() != 2 or self.ranks.shape != self.weights.shape or self.buffers.shape[:1] != (runs,):
            raise ValueError("weights and ranks are (R, M) and buffers (R, B); got "
                             f"{tuple(self.weights.shape)}, {tuple(self.ranks.shape)} and {tuple(self.buffers.shape)}")
        if jobs and not 0 <= min(self.run) <= max(self.run) < runs:
            raise ValueError(f"a job's run lies in 0..{runs - 1}")

    @property
    def keeps(self) -> Sequence[int]:
        """Parameters kept by each job: round((1 − λ)·M) of single weights, a few less where channels are kept."""
        if self.keep_counts is not None:
            return self.keep_counts
        if self.structure is not None:
            return [self.structure.keep_count(ratio) for ratio in self.ratios]
        return [keep_count(ratio, self.weights.shape[1]) for ratio in self.ratios]

    def check_steps(self, local: LocalTraining, rates: Tensor) -> None:
        """Reject batches that are not those of ``local.steps`` steps, and ``rates`` that are not one for each run."""
        shapes = [self.labels.shape[1:]] if isinstance(self.labels, Tensor) else [own.shape for own in self.labels]
        if any(len(shape) != 2 or shape[0] != local.steps for shape in shapes):
            raise ValueError(f"each job needs labels of {local.steps} batches, (steps, batch)")
        if rates.shape != self.weights.shape[:1]:
            raise ValueError(f"{len(self.weights)} runs, but rates of shape {tuple(rates.shape)}")

    def first_step(self) -> "RoundInput":
        """The round of FedSGD on the jobs' first batches."""
        def first(batches: Tensor | Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
            return batches[:, 0] if isinstance(batches, Tensor) else [batch[0] for batch in batches]

        return replace(self, inputs=first(self.inputs), labels=first(self.labels))


@dataclass(frozen=True)
class RoundOutput:
    """The server's side of the round.

    ``gradient`` (R, M): (1/accepted)·Σ over the run's accepted jobs of the masked gradient of the mean loss of the
    job's batch at its pruned weights; zeros count (a weight that a client pruned contributes 0), and a run without
    accepted jobs gets 0. With local steps it is the mean ū of the jobs' updates. ``losses`` (K,) and ``finite`` (K,)
    bool: a job whose loss or gradient is not finite is not accepted. ``accepted`` (R,) int64. ``buffers`` (R, B): the
    mean over accepted jobs of the client's buffers after its last step (with channels, over those that kept the
    channel), the input's where there is none.
    ``client_gradients`` (K, M), the masked gradients, or updates, one by one, and ``client_buffers`` (K, B), each
    client's buffers after its last step (the input's where channels took a buffer from it), only where asked for.
    ``kept`` (R,) int32: the most parameters that any accepted job of the run keeps.
    """

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
        raise ValueError("this output does not record which weights were kept")
    return round_input.ranks.to(output.kept.device) < output.kept[:, None]


def mean_buffers(buffers: Tensor, counted: Tensor | None, before: Tensor) -> Tensor:
    """The mean (B,) over clients of their buffers (k, B), k ≥ 1; with ``counted`` (k, B) of those that count, and
    ``before`` (B,) where none does."""
    if counted is None:
        return buffers.sum(0) / len(buffers)
    clients = counted.sum(0)
    return torch.where(clients > 0, torch.where(counted, buffers, 0).sum(0) / clients.clamp(min=1), before)
