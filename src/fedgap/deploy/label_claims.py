"""Does a client train on the labels that it claims to have? Its gradients tell.

The gradient of the cross-entropy with respect to the last layer's bias is, for class c, the mean over the batch of
(predicted probability of c) − (1 if c is the label). With P[y, c], the mean probability that the model gives c for
samples of label y, a batch with label shares q has the gradient q·P − q. The server knows the model and has samples of
all labels, so it knows P (roughly: for its own samples), and finds the shares q ≥ 0, Σ q = 1, that explain best what a
client has sent so far. They are compared with the shares that the client should have drawn by its claim. With several
local steps a client's update says too little about its labels, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgap.arrays import Floats
from fedgap.deploy.collected_updates import UpdateFacts
from fedgap.learning.data import Dataset
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.masks import mask
from fedgap.running.job import Job

ROUNDS = 10
"""Rounds of each client that are looked at: later gradients of a good model say little about labels."""
ROUNDS_TO_NAME = 2
"""No verdict before so many."""
TOLERANCE = 0.2
"""Share of the samples that may seem to have other labels than claimed, beside what chance explains."""
MOST_NOISE = 0.3
"""More than this a client cannot explain by the noise that it says it put on its histogram."""
MOST_CLASSES = 200
"""Models with more classes are not looked at: estimates would be too rough and take too long."""
SAMPLES = 512
"""Of the server's, on which P is measured."""
_STEPS = 300  # of projected gradient descent


@dataclass
class _Evidence:
    """Normal equations of a client's gradients: Σ A·Aᵀ (C, C) and Σ A·g (C,), and the mean claimed shares (C,)."""

    matrix: Floats
    vector: Floats
    claimed: Floats
    rounds: int = 0


@dataclass
class LabelClaims:
    """Compares claims and gradients of a deployed run's clients.

    ``logits`` gives a model's logits (T, C) for weights (M,), buffers (B,) and samples; ``noise`` is the standard
    deviation of the noise that each client says it put on its counts.
    """

    job: Job
    dataset: Dataset
    logits: Callable[[Tensor, Tensor, Tensor], Tensor]
    noise: Mapping[int, float] = field(default_factory=dict)
    _evidence: dict[int, _Evidence] = field(default_factory=dict)

    def see(self, model: GlobalModel, segment: int, facts: Mapping[int, UpdateFacts]) -> dict[int, str]:
        """Take in a round's updates, before they change the model; the clients to name, with what to say of each."""
        named: dict[int, str] = {}
        if self.job.local_steps > 1:  # the model changes from step to step, and with it what a gradient tells
            return named
        by_ratio: dict[float, Floats] = {}
        for client, fact in facts.items():
            evidence = self._evidence.get(client)
            if fact.last_bias is None or (evidence is not None and evidence.rounds >= ROUNDS):
                continue
            if len(fact.last_bias) > MOST_CLASSES:
                continue
            ratio = float(self.job.ratio[segment, client])
            if ratio not in by_ratio:
                by_ratio[ratio] = self._predicted(model, ratio)
            said = self._compare(client, segment, by_ratio[ratio], fact.last_bias)
            if said:
                named[client] = said
        return named

    def _predicted(self, model: GlobalModel, ratio: float) -> Floats:
        """P (C, C) of the model that is pruned by ``ratio``; rows of labels without samples are the mean row."""
        inputs, labels = self.dataset.test_x[:SAMPLES], self.dataset.test_y[:SAMPLES].numpy()
        weights = model.weights[0] * mask(model.ranks[0], ratio).to(model.weights)
        logits = self.logits(weights, model.buffers[0], inputs.to(model.weights))
        probabilities = torch.softmax(logits.double(), dim=1).cpu().numpy()
        rows = np.tile(probabilities.mean(axis=0), (self.dataset.classes, 1))
        for label in np.unique(labels):
            rows[label] = probabilities[labels == label].mean(axis=0)
        return rows

    def _compare(self, client: int, segment: int, predicted: Floats, bias: Tensor) -> str:
        """Take in one gradient of a client; what to say of it once its claim cannot be true."""
        job, classes = self.job, len(predicted)
        kept = ~torch.isnan(bias).numpy()
        columns = (predicted - np.eye(classes))[:, kept]  # g = q·columns
        gradient = bias.numpy()[kept].astype(np.float64)
        counts = job.label_counts[client].astype(np.float64)
        drawn = counts / counts.sum() if job.batches == "as_is" else job.label_probabilities[segment, client]
        evidence = self._evidence.setdefault(
            client, _Evidence(np.zeros((classes, classes)), np.zeros(classes), np.zeros(classes)))
        evidence.rounds += 1
        evidence.claimed += (drawn - evidence.claimed) / evidence.rounds
        length = np.linalg.norm(gradient)
        if length > 2.0:  # no gradient of a mean over samples is longer; its direction still counts
            gradient = gradient / length
        evidence.matrix += columns @ columns.T
        evidence.vector += columns @ gradient
        if evidence.rounds < ROUNDS_TO_NAME:
            return ""
        shares = nearest_shares(evidence.matrix, evidence.vector, evidence.claimed)
        samples = evidence.rounds * int(job.batch_size[client])
        chance = 0.5 * float(np.sqrt(2.0 / np.pi * evidence.claimed * (1 - evidence.claimed) / samples).sum())
        noised = min(MOST_NOISE, 0.5 * classes * self.noise.get(client, 0.0) / counts.sum())
        differing = 0.5 * float(np.abs(shares - evidence.claimed).sum())
        if differing <= TOLERANCE + chance + noised:
            return ""
        evidence.rounds = ROUNDS  # said once
        missing = np.flatnonzero(evidence.claimed - shares > 0.5 * evidence.claimed)
        return (f"claims labels that its gradients do not show: about {differing:.0%} of what it trains on differs "
                f"from its histogram, such as label{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:5]))}")


def nearest_shares(matrix: Floats, vector: Floats, start: Floats) -> Floats:
    """The shares q ≥ 0, Σ q = 1, that minimise qᵀ·matrix·q − 2·vectorᵀ·q, by projected gradient descent."""
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
