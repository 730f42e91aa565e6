"""One round of FedSGD on pruned models, as data: what goes in, what comes out.

:mod:`fedgap.learning.reference` (a plain loop over clients) and :class:`fedgap.learning.engine.Engine` (stacked, fast)
both turn a :class:`RoundInput` into a :class:`RoundOutput`, and are tested equal.

Several runs (seeds × schemes × budgets) go through one call: each has its own weights and ranking, and the K jobs of
the call, one for each selected client of each run, name their run. With one run, R = 1::

    ranking = ranks(importance.scores(weights, s))                                   # (1, M)
    out = engine.gradients(RoundInput(weights, ranking, buffers, run=(0,) * k, ratios=λ, inputs=x, labels=y))
    importance.observe(weights, out.gradient, known(round_input, out))
    weights = weights - η * out.gradient
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedgap.learning.masks import keep_count


@dataclass(frozen=True)
class RoundInput:
    """R runs with K jobs (selected clients) in all.

    ``weights`` ω (R, M); ``ranks`` (R, M) int32, the ranking of each run (:func:`fedgap.learning.masks.ranks`);
    ``buffers`` (R, B), BatchNorm's running statistics at the server (B may be 0). For each job j: its run ``run[j]``,
    its pruning ratio ``ratios[j]`` = λ, and its mini-batch ``inputs[j]`` (Z, *shape), ``labels[j]`` (Z,) int64. Inputs
    and labels are one tensor each, (K, Z, ...), or, where clients have batch sizes of their own, lists of K tensors.
    """

    weights: Tensor
    ranks: Tensor
    buffers: Tensor
    run: Sequence[int]
    ratios: Sequence[float]
    inputs: Tensor | Sequence[Tensor]
    labels: Tensor | Sequence[Tensor]

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
    def keeps(self) -> list[int]:
        """Parameters kept by each job: round((1 − λ)·M)."""
        return [keep_count(ratio, self.weights.shape[1]) for ratio in self.ratios]


@dataclass(frozen=True)
class RoundOutput:
    """The server's side of the round.

    ``gradient`` (R, M): (1/accepted)·Σ over the run's accepted jobs of the masked gradient of the mean loss of the
    job's batch at its pruned weights; zeros count (a weight that a client pruned contributes 0), and a run without
    accepted jobs gets 0. ``losses`` (K,) and ``finite`` (K,) bool: a job whose loss or gradient is not finite is not
    accepted. ``accepted`` (R,) int64. ``buffers`` (R, B): the mean over accepted jobs of the client's buffers after
    its step, the input's where none is accepted. ``client_gradients`` (K, M), the masked gradients one by one, only
    where asked for. ``kept`` (R,) int32: the most parameters that any accepted job of the run keeps.
    """

    gradient: Tensor
    losses: Tensor
    finite: Tensor
    accepted: Tensor
    buffers: Tensor
    client_gradients: Tensor | None = None
    kept: Tensor | None = None


def known(round_input: RoundInput, output: RoundOutput) -> Tensor:
    """Where the round's gradient says something: (R, M) bool, True if at least one accepted job kept the weight."""
    if output.kept is None:
        raise ValueError("this output says nothing of what was kept")
    return round_input.ranks.to(output.kept.device) < output.kept[:, None]
