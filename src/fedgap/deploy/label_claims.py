"""Check from a client's gradients whether it trains on the labels that it reports.

A client's claim is the label histogram that it reports. The gradient of the cross-entropy with respect to the last
layer's bias is, for class c, the mean over the batch of (predicted probability of c) − (1 if c is the label). Let
P[y, c] be the mean probability that the model gives to class c for samples of label y. Then a batch with label shares q
has the gradient q·P − q. The server knows the model and has samples of all labels, so it can estimate P on its own
samples, and computes the shares q ≥ 0, Σ q = 1, that best explain what a client has sent so far. They are compared with
the shares that the client should have drawn according to its claim.

With several local steps the client's model changes from step to step, and P with it. The server then does the local
steps itself, as if the claim were true: on its own samples, each label weighted by its claimed share. An update is the
sum of the steps' directions, so P is the mean over the steps, each weighted as the update weights its gradient (by
momentum and clipping). If the claim is true, the shares that best explain the update are the claimed ones. If other
shares explain it better, the steps are repeated with those, because a model that sees few labels soon predicts only
these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedgap.arrays import Floats
from fedgap.deploy.collected_updates import UpdateFacts
from fedgap.learning.contract import CLIP_MARGIN
from fedgap.learning.data import Dataset
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.models.layout import Layout
from fedgap.running.job import Job

STEPS = 10
"""Number of local steps of each client that are checked, in at least :data:`LEAST_ROUNDS` rounds. Later, when the model
is good, gradients contain little information about labels."""
LEAST_ROUNDS = 3
ROUNDS_TO_NAME = 2
"""A client is reported after this many checked rounds at the earliest."""
TOLERANCE = 0.2
"""Share of the samples that may seem to have other labels than claimed, in addition to what chance explains."""
MOST_NOISE = 0.3
"""The largest difference that the noise on a client's histogram can explain."""
MOST_CLASSES = 200
"""Models with more classes are not checked, because estimates would be too inaccurate and slow."""
SAMPLES, LEAST_SAMPLES = 512, 32
"""Number of the server's samples on which P is estimated: in a round, and at least in each local step."""
_STEPS = 300  # steps of projected gradient descent
_REPETITIONS = 3  # maximum number of repetitions of the local steps
_LEAST_REPEATED = 4  # with fewer local steps the model hardly moves, so that repeating them would only add noise


@dataclass
class _Evidence:
    """The normal equations of a client's gradients so far: Σ A·Aᵀ (C, C) and Σ A·g (C,), and the mean claimed shares
    (C,)."""

    matrix: Floats
    vector: Floats
    claimed: Floats
    rounds: int = 0


@dataclass(frozen=True)
class _Expected:
    """The update of the last layer's bias, (C,), that a client with the label shares q, (C,), would send.

    It is scale·(q·predicted − q) + offset.
    """

    predicted: Floats
    """P (C, C), the mean over the local steps."""
    scale: float = 1.0
    offset: Floats | float = 0.0
    """The part of FedProx's term."""

    def explained(self, bias: Tensor) -> tuple[Floats, Floats]:
        """The two sides, columns and gradient, of the equation q·columns = gradient, for the kept entries of an update
        (C,)."""
        kept = ~torch.isnan(bias).numpy()
        gradient = ((bias.numpy().astype(np.float64) - self.offset) / self.scale)[kept]
        length = np.linalg.norm(gradient)
        if length > 2.0:  # impossible for a mean over samples; only the direction is used
            gradient = gradient / length
        return (self.predicted - np.eye(len(self.predicted)))[:, kept], gradient


class LabelClaims:
    """Compares the claims of a deployed run's clients with their gradients."""

    def __init__(self, job: Job, dataset: Dataset, module: nn.Module, masks: Callable[[GlobalModel, int], Tensor],
                 noise: Mapping[int, float] | None = None) -> None:
        """``module`` has the model's layers; ``masks`` is a function that gives a client's mask (M,) in the current
        round; ``noise`` is the standard deviation of the noise that each client says it added to its counts."""
        self.job = job
        """The run's job; it is replaced in every round if a policy decides the rounds."""
        self._module, self._masks, self._noise = module, masks, noise or {}
        self._layout, self._classes = Layout.of(module), dataset.classes
        self._rounds = max(LEAST_ROUNDS, -(-STEPS // job.local_steps))
        steps = job.local_steps
        labels = dataset.test_y[:max(SAMPLES, LEAST_SAMPLES * steps)].numpy()
        nth = np.array([np.count_nonzero(labels[:i] == label) for i, label in enumerate(labels)])
        mixed = np.lexsort((labels, nth))  # one sample of each label after another
        self._batches = [(dataset.test_x[chosen].float(), dataset.test_y[chosen])
                         for chosen in np.array_split(np.resize(mixed, max(len(mixed), steps)), steps)]
        self._evidence: dict[int, _Evidence] = {}

    def see(self, model: GlobalModel, segment: int, facts: Mapping[int, UpdateFacts]) -> dict[int, str]:
        """Process the updates of a round, before they change the model; returns the clients to report, with a message
        for each."""
        named: dict[int, str] = {}
        by_ratio: dict[float, _Expected] = {}
        for client, fact in facts.items():
            evidence = self._evidence.get(client)
            if fact.last_bias is None or (evidence is not None and evidence.rounds >= self._rounds):
                continue
            if len(fact.last_bias) > MOST_CLASSES:
                continue
            claimed = self._claimed(segment, client)
            if self.job.learner.local.is_gradient:  # then P does not depend on the claim
                ratio = float(self.job.ratio[segment, client])
                if ratio not in by_ratio:
                    by_ratio[ratio] = self._expected(model, client, claimed)
                expected = by_ratio[ratio]
            else:
                expected = self._consistent(model, client, claimed, fact.last_bias)
            if said := self._compare(client, claimed, expected, fact.last_bias):
                named[client] = said
        return named

    def _claimed(self, segment: int, client: int) -> Floats:
        """The label shares (C,) that the client should draw according to its claim."""
        if self.job.batches != "as_is":
            return np.asarray(self.job.label_probabilities[segment, client])
        counts = self.job.label_counts[client].astype(np.float64)
        return np.asarray(counts / counts.sum())

    def _expected(self, model: GlobalModel, client: int, claimed: Floats) -> _Expected:
        """Do a client's local steps on the server's samples, weighted to the ``claimed`` shares (C,); returns the
        expected update."""
        local = self.job.learner.local
        kept, rate = self._masks(model, client), float(model.client_rates[0])
        start = weights = model.weights[0].detach().cpu().float() * kept
        probabilities, weight_of = np.zeros((self._classes, self._classes)), np.zeros(self._classes)
        scale, offset, velocity = 0.0, np.zeros(self._classes), torch.zeros_like(start)
        for step, (inputs, labels) in enumerate(self._batches):
            weights = weights.detach().requires_grad_(not local.is_gradient)
            logits = self._logits(weights, model.buffers[0], inputs)
            counts = np.bincount(labels.numpy(), minlength=self._classes)
            counted = _momentum_sum(local.momentum, local.steps - step)
            if not local.is_gradient:
                shares = torch.from_numpy((claimed / np.maximum(counts, 1))[labels.numpy()]).float()
                losses = nn.functional.cross_entropy(logits, labels, reduction="none")
                loss = (losses * shares).sum() / shares.sum().clamp(min=1e-6)
                (gradient,) = torch.autograd.grad(loss, weights)
                drift = weights.detach() - start
                gradient = gradient * kept + local.proximal * drift
                shortened = 1.0
                if local.clip_norm is not None:
                    shortened = min(1.0, local.clip_norm / (float(gradient.norm()) + CLIP_MARGIN))
                velocity = local.momentum * velocity + shortened * gradient
                weights = weights.detach() - rate * velocity
                counted *= shortened
                offset += counted * local.proximal * drift[-self._classes:].double().numpy()
            chances = torch.softmax(logits.detach().double(), dim=1).numpy()
            np.add.at(probabilities, labels.numpy(), counted * chances)
            weight_of += counted * counts
            scale += counted
        predicted = np.tile(probabilities.sum(axis=0) / weight_of.sum(), (self._classes, 1))  # no samples
        known = weight_of > 0
        predicted[known] = probabilities[known] / weight_of[known, None]
        return _Expected(predicted, scale, offset)

    def _consistent(self, model: GlobalModel, client: int, claimed: Floats, bias: Tensor) -> _Expected:
        """The expected update with the shares that best explain the client's update, or with the claimed shares if
        these explain it as well."""
        expected, steps = self._expected(model, client, claimed), self.job.local_steps
        by_chance = _chance(claimed, int(self.job.batch_size[client]) * steps)
        for _ in range(_REPETITIONS if steps >= _LEAST_REPEATED else 0):
            columns, gradient = expected.explained(bias)
            found = nearest_shares(columns @ columns.T, columns @ gradient, claimed)
            # With more steps, a true difference seems smaller at first, so the limit falls with their number.
            if 0.5 * float(np.abs(found - claimed).sum()) <= TOLERANCE / steps**0.5 + by_chance:
                break
            expected = self._expected(model, client, found)
        return expected

    def _logits(self, weights: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Logits (T, C). BatchNorm uses the statistics of the batch, as in training; dropout is off."""
        self._module.eval()
        for layer in self._module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.train()
        state = dict(self._module.named_parameters()) | {n: b.clone() for n, b in self._module.named_buffers()}
        state |= self._layout.split(weights) | self._layout.split_buffers(buffers.detach().cpu().float().clone())
        logits: Tensor = functional_call(self._module, state, (inputs,))
        return logits

    def _compare(self, client: int, claimed: Floats, expected: _Expected, bias: Tensor) -> str:
        """Process one update of a client; returns a message once its claim cannot be true, otherwise ""."""
        job, classes = self.job, self._classes
        columns, gradient = expected.explained(bias)
        evidence = self._evidence.setdefault(
            client, _Evidence(np.zeros((classes, classes)), np.zeros(classes), np.zeros(classes)))
        evidence.rounds += 1
        evidence.claimed += (claimed - evidence.claimed) / evidence.rounds
        evidence.matrix += columns @ columns.T
        evidence.vector += columns @ gradient
        if evidence.rounds < ROUNDS_TO_NAME:
            return ""
        shares = nearest_shares(evidence.matrix, evidence.vector, evidence.claimed)
        samples = evidence.rounds * int(job.batch_size[client]) * job.local_steps
        noised = min(MOST_NOISE, 0.5 * classes * self._noise.get(client, 0.0) / job.label_counts[client].sum())
        differing = 0.5 * float(np.abs(shares - evidence.claimed).sum())
        if differing <= TOLERANCE + _chance(evidence.claimed, samples) + noised:
            return ""
        evidence.rounds = self._rounds  # so that it is reported once
        missing = np.flatnonzero(evidence.claimed - shares > 0.5 * evidence.claimed)
        return (f"claims labels that its gradients do not show: about {differing:.0%} of what it trains on differs "
                f"from its histogram, such as label{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:5]))}")


def _chance(shares: Floats, samples: int) -> float:
    """The share of ``samples`` samples that has other labels than these ``shares`` (C,) on average, only because they
    are drawn at random."""
    return 0.5 * float(np.sqrt(2.0 / np.pi * shares * (1 - shares) / samples).sum())


def _momentum_sum(momentum: float, steps: int) -> float:
    """1 + β + … + β^(steps − 1): how often a step's gradient occurs in the sum of all later directions."""
    return float(sum(momentum**power for power in range(steps)))


def nearest_shares(matrix: Floats, vector: Floats, start: Floats) -> Floats:
    """The shares q ≥ 0, Σ q = 1, that minimise qᵀ·matrix·q − 2·vectorᵀ·q, found by projected gradient descent from
    ``start``."""
    shares = start.copy()
    step = 1.0 / max(float(np.linalg.eigvalsh(matrix)[-1]), 1e-12)
    for _ in range(_STEPS):
        shares = _on_simplex(shares - step * (matrix @ shares - vector))
    return shares


def _on_simplex(values: Floats) -> Floats:
    """The point of the simplex that is nearest to ``values`` (Duchi et al. 2008)."""
    descending: NDArray[np.float64] = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - 1.0) / np.arange(1, len(values) + 1)
    return np.asarray(np.maximum(values - excess[np.flatnonzero(descending > excess)[-1]], 0.0))
