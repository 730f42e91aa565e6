"""The probability with which each client of a plan draws each label: ``as_is``, ``balanced`` or ``target``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgap.theory.drawn_labels import balanced_probabilities
from fedgap.theory.label_matching import label_divergence, match_labels

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
MOVED = 0.1
"""The total variation between two targets above which the server's momentum, which points to the first, misleads."""


def target_changes(targets: Sequence[Array]) -> list[int]:
    """The rounds in which a target, one label distribution a round, has moved by more than :data:`MOVED` since the
    round of the change before, or since the first round."""
    changes = [0]
    for number, target in enumerate(targets):
        if 0.5 * np.abs(target - targets[changes[-1]]).sum() > MOVED:
            changes.append(number)
    return changes[1:]


@dataclass(frozen=True, eq=False)
class LabelSampling:
    """The label probabilities of a plan: ``probabilities`` (G, N, C), 0 for clients that are not selected. Empty for
    ``as_is``.

    ``summary`` has the mean over the plan's rounds of KL(m‖t) in nats, where t is the target distribution and m the
    mean label distribution of the selected clients: in their data (``label_divergence``) and as they draw it
    (``drawn_label_divergence``)."""

    probabilities: Array = field(default_factory=lambda: np.empty((0, 0, 0)))
    summary: dict[str, Any] = field(default_factory=dict)


def label_sampling(batches: str, selected: NDArray[np.bool_], schedule: Counts, label_counts: Counts, target: Array, *,
                   samples_per_round: Array, max_repeat: float) -> LabelSampling:
    """Compute the probability with which each client draws each label.

    :param batches: ``as_is``, ``balanced`` or ``target``;
    :param selected: the clients of each segment, (G, N); :param schedule: the segment of each round, (R,);
    :param label_counts: samples of each client and class, (N, C); :param target: the target distribution, (C,),
    positive;
    :param samples_per_round: τ·Z_n, (N,);
    :param max_repeat: see :func:`fedgap.theory.label_matching.largest_probabilities`."""
    if batches == "as_is":
        return LabelSampling()
    rounds = np.bincount(schedule, minlength=len(selected))
    draws = (rounds @ selected) * samples_per_round
    probabilities = np.zeros((len(selected), *label_counts.shape))
    divergences = np.zeros((len(selected), 2))
    for segment, chosen in enumerate(selected):
        counts = label_counts[chosen]
        drawn = (balanced_probabilities(counts) if batches == "balanced" else
                 match_labels(counts, target, max_repeat=max_repeat, draws=draws[chosen]).probabilities)
        probabilities[segment, chosen] = drawn
        natural = counts / counts.sum(axis=1, keepdims=True)
        divergences[segment] = [float(label_divergence(labels.mean(axis=0), target)) for labels in (natural, drawn)]
    before, after = rounds @ divergences / rounds.sum()
    return LabelSampling(probabilities, {"label_divergence": float(before), "drawn_label_divergence": float(after)})
