"""Accuracy with its confidence interval, for each class and for each client."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Z95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution: two-sided intervals of 95 %."""


@dataclass(frozen=True)
class Accuracy:
    """``right`` correct predictions for ``samples`` samples (at least one)."""

    right: int
    samples: int

    @property
    def share(self) -> float:
        """The share of correct predictions."""
        return self.right / self.samples

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of a binomial share p̂ = right/n:

        (p̂ + z²/2n ± z·√(p̂(1 − p̂)/n + z²/4n²)) / (1 + z²/n),  z = 1.96.

        It covers the randomness of the test samples for this one model; the model of another seed may lie outside.
        """
        n, p, z = self.samples, self.share, _Z95
        centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        scale = 1 + z * z / n
        return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.2%} (95 % interval {low:.2%} to {high:.2%}, {self.samples:,} samples)"


def class_accuracies(predicted: NDArray[np.int64], labels: NDArray[np.int64],
                     classes: int) -> tuple[Accuracy | None, ...]:
    """The accuracy on the samples of each class; None for a class without samples.

    :param predicted: predicted classes, shape (n,); :param labels: true classes, shape (n,).
    """
    samples = np.bincount(labels, minlength=classes)
    right = np.bincount(labels[predicted == labels], minlength=classes)
    return tuple(Accuracy(int(k), int(n)) if n else None for k, n in zip(right, samples, strict=True))


def client_accuracies(by_class: tuple[Accuracy | None, ...], label_counts: NDArray[np.int64]) -> list[float | None]:
    """The accuracy to expect on data with each client's own label mix, one number per client: Σ_z p_{n,z}·accuracy_z.

    p_{n,z} is the share of class z in client n's label histogram. A class without test samples is left out; a client
    that has only such classes gets None.

    :param label_counts: samples of each client and class, shape (N, classes)."""
    tested = np.array([accuracy is not None for accuracy in by_class])
    shares = np.array([accuracy.share if accuracy else 0.0 for accuracy in by_class])
    weights = np.where(tested, label_counts, 0)
    return [float(row @ shares / row.sum()) if row.sum() else None for row in weights]
