"""The labels in the batches of the selected clients, and how far their mean is from the target: KL(A) of the forecast.

Client n draws labels with probabilities q_n. The mean over a selection A is m = Σ_{n∈A} w_n·q_n / Σ_{n∈A} w_n, and
KL(A) is the divergence KL(m‖t) of this mean from the target t, in nats. q_n depends on the scenario's key
``learning.batches``:

- ``as_is``: q_n is the client's own label distribution, its histogram normalised.
- ``balanced``: q_n is uniform over the labels of which the client has enough samples.
- ``target``: the selected clients choose q_n together so that KL(m‖t) is least. q_n stays between the limits l_n and
  u_n, which keep rare samples from being repeated too often (:mod:`fedgap.theory.label_matching`).

Clients have equal weights, w_n = 1. With ``weighting: samples`` the weights are the numbers of samples, except with
``target`` batches, which are always chosen for equal weights.
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
"""A balanced batch leaves out labels of which the client has fewer samples, because these would be repeated too
often."""


def balanced_probabilities(label_counts: npt.ArrayLike) -> Floats:
    """Return the label probabilities q (..., C) of balanced batches, from the clients' ``label_counts`` (..., C).

    q is the same for all labels with at least :data:`LEAST_SAMPLES` samples, and zero for the others. For a client
    that has no such label, q is the same for all labels that it has.
    """
    counts = np.asarray(label_counts)
    frequent = counts >= LEAST_SAMPLES
    shown = np.where(frequent.any(axis=-1, keepdims=True), frequent, counts > 0).astype(np.float64)
    return np.asarray(shown / shown.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class DrawnLabels:
    """The labels that each client of a fleet draws, and the divergence KL(A) of any selection A of them."""

    counts: Floats
    """Label histograms, (N, C)."""
    target: Floats
    """t, the target's label distribution, (C,), positive."""
    batches: Literal["as_is", "balanced", "target"] = "as_is"
    by_samples: bool = False
    """Whether the weights w_n are the clients' numbers of samples."""
    max_repeat: float = 10.0
    """With ``target`` batches, how often a sample may be repeated: ρ of
    :func:`~fedgap.theory.label_matching.largest_probabilities`."""
    draws: Floats | None = None
    """With ``target`` batches, how many samples each client draws in total if it takes part in every round, (N,)."""

    @classmethod
    def of(cls, label_counts: npt.ArrayLike, target_counts: npt.ArrayLike, **how: object) -> "DrawnLabels":
        """Make it from label histograms (N, C) and (C,); one sample of each label is added to the target's.

        :param how: the remaining fields.
        """
        return cls(np.asarray(label_counts, dtype=np.float64), smoothed(target_counts), **how)  # type: ignore[arg-type]

    @cached_property
    def table(self) -> Floats:
        """One row per client, such that KL(A) follows from the sum of the rows of A (:meth:`divergence_of`).

        A row is w_n·q_n, shape (N, C); with ``target`` batches it is (u_n, l_n), shape (N, 2C).
        """
        if self.batches == "target":
            most = largest_probabilities(self.counts, self.max_repeat, self.draws)
            least = np.maximum(0.0, 1.0 - (most.sum(axis=-1, keepdims=True) - most))
            return np.concatenate([most, least], axis=-1)
        size = self.counts.sum(axis=-1, keepdims=True)
        shares = balanced_probabilities(self.counts) if self.batches == "balanced" else self.counts / size
        return np.asarray(shares * size / size.mean()) if self.by_samples else shares

    @cached_property
    def scarcity(self) -> Floats:
        """s_n = D̄·Σ_c q_nc²/n_nc, (N,), with n_nc samples of label c at client n, and D̄ samples at a mean client.

        q_nc²/n_nc is the probability that two draws of the client are the same sample of label c. s_n is 1 for a
        client with D̄ samples that draws all of them equally often, and larger if it has fewer samples or repeats those
        of rare labels. With ``target`` batches, where q_n depends on the selection, s_n is that of ``as_is``.
        """
        size = self.counts.sum(axis=-1, keepdims=True)
        drawn = balanced_probabilities(self.counts) if self.batches == "balanced" else self.counts / size
        return np.asarray(size.mean() * (drawn**2 / np.maximum(self.counts, 1.0)).sum(axis=-1))

    @property
    def convex(self) -> bool:
        """Whether KL(A) is convex in the selection, relaxed to shares between 0 and 1, for a given number of clients.

        This needs equal weights.
        """
        return self.batches == "target" or not self.by_samples

    def _least_drawn(self, vectors: Floats) -> Floats:
        """Return for each vector g of ``vectors`` (B, C) the q_n that minimise Σ_c g_c·q_nc, shape (B, N, C).

        This is for ``target`` batches. A client draws the labels with the smallest g, each up to its limit.
        """
        order = np.argsort(vectors, axis=-1, kind="stable")
        most = np.moveaxis(self.table[:, order], 0, 1)
        before = np.cumsum(most, axis=-1) - most
        drawn = np.empty_like(most)
        np.put_along_axis(drawn, np.broadcast_to(order[:, None], most.shape), np.clip(1.0 - before, 0.0, most), axis=-1)
        return drawn

    def scores(self, vectors: Floats) -> Floats:
        """Return the minimum over q_n of Σ_c g_c·q_nc for each vector g of ``vectors`` (B, C), shape (B, N)."""
        if self.batches != "target":
            return np.asarray(vectors @ self.table.T)
        return np.asarray((self._least_drawn(vectors) * vectors[:, None]).sum(axis=-1))

    def total_drawn(self, vectors: Floats, chosen: Bools) -> Floats:
        """Return the sum over the ``chosen`` clients (B, N) of the q_n that attain :meth:`scores`, shape (B, C)."""
        picked = chosen.astype(np.float64)
        if self.batches != "target":
            return np.asarray(picked @ self.table)
        return np.asarray((picked[:, :, None] * self._least_drawn(vectors)).sum(axis=1))

    def mean(self, total: Floats, count: npt.ArrayLike) -> Floats:
        """Return the weighted mean of the rows of :attr:`table` over A from their sum, (..., columns), and the size of
        A, (...).

        This is m or, with ``target`` batches, its limits.
        """
        weight = total.sum(axis=-1) if self.batches != "target" else np.asarray(count, dtype=np.float64)
        return np.asarray(total / weight[..., None])

    def divergence_of(self, total: Floats, count: npt.ArrayLike) -> Floats:
        """Return KL(A) from the sum of the rows of :attr:`table` over A, (..., columns), and the size of A, (...).

        With ``target`` batches the result is a lower bound: the mean m respects the limits of each label, but no q_n
        of the single clients need exist for it.
        """
        if self.batches != "target":
            return label_divergence(total, self.target)
        mean, classes = self.mean(total, count), len(self.target)
        return label_divergence(_nearest(mean[..., classes:], mean[..., :classes], self.target), self.target)

    def divergence(self, selected: Bools) -> Floats:
        """Return KL(A) of each selection (..., N) by :meth:`divergence_of`, shape (...); 0 if nobody is selected."""
        count = np.maximum(selected.sum(axis=-1), 1)
        someone = np.asarray(selected.any(axis=-1))
        total = np.where(someone[..., None], selected.astype(np.float64) @ self.table, self.table[0])
        return np.where(someone, self.divergence_of(total, count), 0.0)

    def drawn(self, selected: Bools) -> tuple[Floats, float]:
        """Return the mean label distribution m (C,) of one selection (N,), and its KL(A).

        With ``target`` batches the probabilities q_n are computed, so that KL(A) is exact.
        """
        if self.batches != "target":
            total = selected.astype(np.float64) @ self.table
            return total / total.sum(), float(self.divergence(selected))
        draws = None if self.draws is None else self.draws[selected]
        match = match_labels(self.counts[selected], self.target, max_repeat=self.max_repeat, draws=draws)
        return match.probabilities.mean(axis=0), match.divergence

    def exact_divergence(self, selected: Bools) -> float:
        """Return the exact KL(A) of one selection (N,), also with ``target`` batches."""
        return self.drawn(selected)[1]


def _nearest(least: Floats, most: Floats, target: Floats) -> Floats:
    """Return the distribution m with least ≤ m ≤ most, (..., C), that has the least KL(m‖t).

    It is clip(α·t, least, most) with the α for which it sums to one. The sum is piecewise linear in α and bends where
    α·t meets a limit.
    """
    bends = np.sort(np.concatenate([least / target, most / target], axis=-1), axis=-1)
    sums = np.clip(bends[..., None] * target, least[..., None, :], most[..., None, :]).sum(axis=-1)
    after = np.clip((sums < 1.0).sum(axis=-1), 1, bends.shape[-1] - 1)[..., None]
    low, high = (np.take_along_axis(bends, after - step, axis=-1) for step in (1, 0))
    at_low, at_high = (np.take_along_axis(sums, after - step, axis=-1) for step in (1, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(at_high > at_low, (1.0 - at_low) / (at_high - at_low), 1.0)
    return np.asarray(np.clip((low + np.clip(part, 0.0, 1.0) * (high - low)) * target, least, most))
