"""With what probability a client draws each of its samples, so that its batches have the labels that are wanted.

A client draws a label c with probability q(c) and then one of its samples of that label, all alike. ``balanced``
batches have the same q(c) for all labels that the client can show; for ``target`` batches
:func:`fedgap.theory.label_matching.match_labels` computes q for all selected clients together.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

LEAST_SAMPLES = 5
"""A balanced batch leaves out labels of which the client has fewer samples: they would be repeated too often."""


def balanced_probabilities(label_counts: ArrayLike) -> NDArray[np.float64]:
    """q (..., C) of balanced batches, from the clients' ``label_counts`` (..., C).

    q is the same for all labels with at least :data:`LEAST_SAMPLES` samples and zero for the others. A client that
    has no such label draws among all labels that it has.
    """
    counts = np.asarray(label_counts)
    frequent = counts >= LEAST_SAMPLES
    shown = np.where(frequent.any(axis=-1, keepdims=True), frequent, counts > 0).astype(np.float64)
    return np.asarray(shown / shown.sum(axis=-1, keepdims=True))


def cumulative_probabilities(labels: ArrayLike, label_probabilities: ArrayLike) -> NDArray[np.float64]:
    """Σ_{i ≤ j} q(label of sample i)/(samples of that label), shape (D̂,), of one client's samples in their order.

    ``labels`` (D̂,) are the classes of the client's samples, ``label_probabilities`` (C,) is q. The last value is 1.
    Probability on labels that the client does not have is shared out among the others in proportion.
    """
    own = np.asarray(labels)
    q = np.asarray(label_probabilities, dtype=np.float64)
    weight = q[own] / np.bincount(own, minlength=len(q))[own]
    total = np.cumsum(weight)
    if not total[-1] > 0:
        raise ValueError("none of the client's labels has a positive probability")
    return np.asarray(total / total[-1])


def count_labels(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs along the last dimension of ``labels`` (..., Z): (..., classes) int64."""
    counts = torch.zeros(*labels.shape[:-1], classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add_(-1, labels.long(), torch.ones_like(labels, dtype=torch.int64))
