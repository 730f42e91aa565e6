"""The labels that selected clients draw, and how far their mean is from the target: KL(A) of the forecast.

A client draws labels with probabilities q_n, and m = Σ_{n∈A} w_n·q_n / Σ_{n∈A} w_n is the mean of a selection A.
KL(A) is the divergence KL(m‖t) from the target t, in nats.

- ``as_is``: q_n is the client's own label distribution, its histogram normalised.
- ``balanced``: q_n is uniform over the labels that it has enough samples of.
- ``target``: the selected clients choose q_n together so that KL(m‖t) is least, within the limits l_n ≤ q_n ≤ u_n that
  their data set (:mod:`fedgap.theory.label_matching`).

Clients count equally, w_n = 1. With ``weighting: samples`` they count by their numbers of samples, except with
``target`` batches, which are chosen for equal weights.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedgap.arrays import Bools, Floats
from fedgap.theory.generalization import smoothed
from fedgap.theory.label_matching import label_divergence, largest_probabilities, match_labels

LEAST_SAMPLES = 5
"""A balanced batch leaves out labels of which the client has fewer samples: they would be repeated too often."""


def balanced_probabilities(label_counts: npt.ArrayLike) -> Floats:
    """q (..., C) of balanced batches, from the clients' ``label_counts`` (..., C).

    q is the same for all labels with at least :data:`LEAST_SAMPLES` samples and zero for the others. A client that
    has no such label draws among all labels that it has.
    """
    counts = np.asarray(label_counts)
    frequent = counts >= LEAST_SAMPLES
    shown = np.where(frequent.any(axis=-1, keepdims=True), frequent, counts > 0).astype(np.float64)
    return np.asarray(shown / shown.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class DrawnLabels:
    """What the clients of a fleet draw."""

    counts: Floats
    """Label histograms, (N, C)."""
    target: Floats
    """t, (C,), positive."""
    batches: Literal["as_is", "balanced", "target"] = "as_is"
    by_samples: bool = False
    """Whether clients count by their numbers of samples."""
    max_repeat: float = 10.0
    """With ``target`` batches, ρ of :func:`~fedgap.theory.label_matching.largest_probabilities`."""
    draws: Floats | None = None
    """With ``target`` batches, the samples that each client draws in all if it takes part in every round, (N,)."""

    @classmethod
    def of(cls, label_counts: npt.ArrayLike, target_counts: npt.ArrayLike, **how: object) -> "DrawnLabels":
        """From histograms; the target's is smoothed by one sample of each label."""
        return cls(np.asarray(label_counts, dtype=np.float64), smoothed(target_counts), **how)  # type: ignore[arg-type]

    @cached_property
    def table(self) -> Floats:
        """One row per client, of which a selection's sum gives its divergence: w_n·q_n, (N, C), or (u_n, l_n), (N, 2C).
        """
        if self.batches == "target":
            most = largest_probabilities(self.counts, self.max_repeat, self.draws)
            least = np.maximum(0.0, 1.0 - (most.sum(axis=-1, keepdims=True) - most))
            return np.concatenate([most, least], axis=-1)
        size = self.counts.sum(axis=-1, keepdims=True)
        shares = balanced_probabilities(self.counts) if self.batches == "balanced" else self.counts / size
        return np.asarray(shares * size / size.mean()) if self.by_samples else shares

    @property
    def convex(self) -> bool:
        """Whether KL(A) is convex in the relaxed selection for a given number of clients, which needs equal weights."""
        return self.batches == "target" or not self.by_samples

    def _least_drawn(self, vectors: Floats) -> Floats:
        """With ``target`` batches, the q_n with the least Σ_c g_c·q_nc for several g, (B, C) → (B, N, C).

        A client draws the labels of least g, each up to its limit.
        """
        order = np.argsort(vectors, axis=-1, kind="stable")
        most = np.moveaxis(self.table[:, order], 0, 1)
        before = np.cumsum(most, axis=-1) - most
        drawn = np.empty_like(most)
        np.put_along_axis(drawn, np.broadcast_to(order[:, None], most.shape), np.clip(1.0 - before, 0.0, most), axis=-1)
        return drawn

    def scores(self, vectors: Floats) -> Floats:
        """min over q_n of Σ_c g_c·q_nc for several g: (B, C) → (B, N)."""
        if self.batches != "target":
            return np.asarray(vectors @ self.table.T)
        return np.asarray((self._least_drawn(vectors) * vectors[:, None]).sum(axis=-1))

    def total_drawn(self, vectors: Floats, chosen: Bools) -> Floats:
        """The sum over chosen clients, (B, N), of the q_n that reach the scores: (B, C)."""
        picked = chosen.astype(np.float64)
        if self.batches != "target":
            return np.asarray(picked @ self.table)
        return np.asarray((picked[:, :, None] * self._least_drawn(vectors)).sum(axis=1))

    def divergence_of(self, total: Floats, count: npt.ArrayLike) -> Floats:
        """KL(A) from the sum of a selection's rows of ``table``, (..., columns), and its number of clients, (...).

        With ``target`` batches it is a lower bound, which respects the limits of each label but not that the
        probabilities of each client sum to one.
        """
        if self.batches != "target":
            return label_divergence(total, self.target)
        mean = total / np.asarray(count, dtype=np.float64)[..., None]
        classes = len(self.target)
        return label_divergence(_nearest(mean[..., classes:], mean[..., :classes], self.target), self.target)

    def divergence(self, selected: Bools) -> Floats:
        """KL(A) of each selection, (..., N) → (...), by :meth:`divergence_of`; 0 if nobody is selected."""
        count = np.maximum(selected.sum(axis=-1), 1)
        someone = np.asarray(selected.any(axis=-1))
        total = np.where(someone[..., None], selected.astype(np.float64) @ self.table, self.table[0])
        return np.where(someone, self.divergence_of(total, count), 0.0)

    def drawn(self, selected: Bools) -> tuple[Floats, float]:
        """The mean m, (C,), of the labels that one selection, (N,), really draws, and their KL(A)."""
        if self.batches != "target":
            total = selected.astype(np.float64) @ self.table
            return total / total.sum(), float(self.divergence(selected))
        draws = None if self.draws is None else self.draws[selected]
        match = match_labels(self.counts[selected], self.target, max_repeat=self.max_repeat, draws=draws)
        return match.probabilities.mean(axis=0), match.divergence

    def exact_divergence(self, selected: Bools) -> float:
        """KL(A) of one selection, (N,), with the labels that it really draws."""
        return self.drawn(selected)[1]


def _nearest(least: Floats, most: Floats, target: Floats) -> Floats:
    """The distribution in the box [least, most], (..., C), that is nearest to the target: clip(α·t, least, most).

    Σ clip(α·t, least, most) is piecewise linear in α and bends where α·t meets a limit.
    """
    bends = np.sort(np.concatenate([least / target, most / target], axis=-1), axis=-1)
    sums = np.clip(bends[..., None] * target, least[..., None, :], most[..., None, :]).sum(axis=-1)
    after = np.clip((sums < 1.0).sum(axis=-1), 1, bends.shape[-1] - 1)[..., None]
    low, high = (np.take_along_axis(bends, after - step, axis=-1) for step in (1, 0))
    at_low, at_high = (np.take_along_axis(sums, after - step, axis=-1) for step in (1, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(at_high > at_low, (1.0 - at_low) / (at_high - at_low), 1.0)
    return np.asarray(np.clip((low + np.clip(part, 0.0, 1.0) * (high - low)) * target, least, most))
