"""The probability with which a client draws each of its samples, so that its batches have the desired labels.

A client draws a label c with probability q(c), and then one of its samples of that label with equal probability.
``balanced`` batches have the same q(c) for all labels that the client has; for ``target`` batches q is computed for all
selected clients together. Both are in :mod:`fedgap.theory.drawn_labels`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def cumulative_probabilities(labels: ArrayLike, label_probabilities: ArrayLike) -> NDArray[np.float64]:
    """Cumulative probabilities Σ_{i ≤ j} q(label of sample i)/(samples of that label), shape (D̂,), of one client's
    samples in their order.

    ``labels`` (D̂,) are the classes of the client's samples, ``label_probabilities`` (C,) is q. The last value is 1:
    probability of labels that the client does not have is distributed over its own labels in proportion."""
    own = np.asarray(labels)
    q = np.asarray(label_probabilities, dtype=np.float64)
    weight = q[own] / np.bincount(own, minlength=len(q))[own]
    total = np.cumsum(weight)
    if not total[-1] > 0:
        raise ValueError("at least one of the client's labels must have a positive probability")
    return np.asarray(total / total[-1])


def count_labels(labels: Tensor, classes: int) -> Tensor:
    """Count how often each class occurs along the last dimension of ``labels`` (..., Z); returns (..., classes)
    int64."""
    counts = torch.zeros(*labels.shape[:-1], classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add_(-1, labels.long(), torch.ones_like(labels, dtype=torch.int64))
