"""Label probabilities of the selected clients whose mean matches a target distribution as well as their data allow.

Client k has n_{k,c} samples of label c, n_k in all, and draws labels with probabilities q_k. It can only draw labels
that it has, and it must not repeat its few samples of a rare label too often, so that 0 ≤ q_{k,c} ≤ u_{k,c}
(:func:`largest_probabilities`). With weights v_k (equal ones by default, Σ v_k = 1) the mean is m = Σ_k v_k·q_k. The
problem is

    minimise KL(m‖t) over all q_k; among the solutions take the one with the least Σ_k v_k·‖q_k − n_k,·/n_k‖².

Both steps add a multiple of ½·Σ_k v_k·‖q_k − b_k‖² to a function of m. Such a problem has a dual with one variable per
label, which Newton's method solves in a few steps. The first step is the proximal point method: b is the last q, and
the multiple δ of the distance shrinks tenfold each time. In the second step b is the natural distribution, and m is
held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fedgap.errors import InputError

Array = npt.NDArray[np.float64]

_FIRST_DELTA, _LAST_DELTA = 1e-1, 1e-3
"""δ of the first proximal step and of the last ones. The smaller it is, the fewer steps and digits of the duals."""
_HELD_MEAN = 1e-9
"""δ of the second step: m may move by this much times a dual variable of order one."""
_TOLERANCE = 1e-10
"""Largest error of m that ends an iteration; far below the 1e-6 that is promised."""
_SLOPE_LEFT = 0.1
"""A line search ends where the slope has fallen to this share of the first; with a larger share Newton may cycle."""
_STEPS = 100
"""Most steps of any iteration; usually fewer than 20 are taken."""
_LARGEST_EXPONENT = 300.0
"""Keeps exponentials finite while a line search tries long steps."""


@dataclass(frozen=True)
class LabelMatch:
    """Label probabilities of K clients, and how far their mean is from the target, in nats."""

    probabilities: Array
    """q_{k,c}, shape (K, C); each row sums to one."""
    divergence: float
    """KL(m‖t) with these probabilities."""
    natural_divergence: float
    """KL(m‖t) if every client draws each of its samples equally often."""


def label_divergence(labels: npt.ArrayLike, target: npt.ArrayLike) -> Array:
    """KL(p‖t) = Σ_c p_c·ln(p_c/t_c) ≥ 0, in nats, over the last axis; p is ``labels`` divided by its sum.

    ``labels`` (..., C) are probabilities, or counts such as those of the labels that were drawn in a round.
    """
    p, t = (values / values.sum(axis=-1, keepdims=True) for values in
            (np.asarray(labels, dtype=np.float64), np.asarray(target, dtype=np.float64)))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0.0, p * np.log(p / t) - p + t, t)  # no negative terms; −p + t sums to zero
    return np.asarray(np.maximum(terms, 0.0).sum(axis=-1))


def largest_probabilities(label_counts: npt.ArrayLike, max_repeat: float, draws: npt.ArrayLike | None = None) -> Array:
    """u_{k,c} = min(1, ρ·n_{k,c}/min(n_k, T_k)), shape (K, C), where ρ ≥ 1 is ``max_repeat``.

    A client that draws T_k samples in all its rounds and local steps draws one of its samples of label c T_k·q/n_{k,c}
    times on average. The limit on this number is ρ times the average over its samples, T_k/n_k, or ρ itself where
    that is larger (few draws repeat little). Without ``draws`` (T_k, one number or one per client) the limit is ρ
    times the average.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    size = counts.sum(axis=-1)
    if not (size.size and (counts >= 0.0).all() and (size > 0.0).all() and np.isfinite(size).all()):
        raise InputError("label_counts: must be numbers of at least 0 for at least one client; each client needs a "
                         "sample")
    if not max_repeat >= 1.0:
        raise InputError(f"max_repeat: must be at least 1; got {max_repeat}")
    if draws is not None:
        size = np.minimum(size, np.maximum(np.asarray(draws, dtype=np.float64), 1.0))
    return np.asarray(np.minimum(1.0, max_repeat * counts / size[..., None]))


def match_labels(
    label_counts: npt.ArrayLike,
    target: npt.ArrayLike,
    *,
    max_repeat: float,
    draws: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
) -> LabelMatch:
    """The solution of the module's problem.

    :param label_counts: n_{k,c} of the K selected clients, shape (K, C).
    :param target: t(c) > 0, shape (C,), such as :func:`~fedgap.theory.generalization.smoothed` target counts.
    :param max_repeat: how often a sample may be repeated; see :func:`largest_probabilities`, likewise ``draws``.
    :param weights: of the clients in the mean, shape (K,); equal ones by default.
    """
    limits = largest_probabilities(label_counts, max_repeat, draws)
    counts, t = np.asarray(label_counts, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if t.shape != counts.shape[1:] or not (np.isfinite(t).all() and (t > 0.0).all()):
        raise InputError("target: must be a positive number for each label; smooth counts that have zeros")
    t = t / t.sum()
    v = np.ones(len(counts)) if weights is None else np.asarray(weights, dtype=np.float64)
    if v.shape != counts.shape[:1] or not (np.isfinite(v).all() and (v > 0.0).all()):
        raise InputError("weights: must be a positive number for each client")
    v = v / v.sum()
    natural = counts / counts.sum(axis=1, keepdims=True)
    probabilities = np.zeros_like(natural)
    present = counts.any(axis=0)
    probabilities[:, present] = _solve(natural[:, present], t[present], v, limits[:, present])
    return LabelMatch(probabilities, *(float(label_divergence(v @ q, t)) for q in (probabilities, natural)))


def _solve(natural: Array, t: Array, v: Array, limits: Array) -> Array:
    """The best q (K, C) where each label has samples at some client."""
    q, delta = natural, _FIRST_DELTA
    dual = -np.log(v @ q / t) / delta
    for _ in range(_STEPS):
        last = v @ q
        q, dual = _Dual(q, v, limits, partial(_divergence_mean, t, delta)).minimised(dual)
        if delta <= _LAST_DELTA and np.abs(v @ q - last).max() <= _TOLERANCE:
            break
        smaller = max(0.1 * delta, _LAST_DELTA)
        dual, delta = dual * (delta / smaller), smaller
    mean = anchor = v @ q
    dual = np.zeros_like(t)
    for _ in range(2):  # the second time makes up for what δ·λ moves the mean
        q, dual = _Dual(natural, v, limits, partial(_held_mean, anchor)).minimised(dual)
        anchor = mean + _HELD_MEAN * dual
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def _divergence_mean(t: Array, delta: float, dual: Array) -> tuple[Array, Array]:
    """Where KL(m‖t)/δ has the gradient −λ: m = t·exp(−δ·λ), up to a constant in λ, and minus its derivative."""
    mean = t * np.exp(np.clip(-delta * dual, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    return mean, delta * mean


def _held_mean(anchor: Array, dual: Array) -> tuple[Array, Array]:
    """Where Σ_c (m_c − a_c)²/(2·δ) has the gradient −λ: m = a − δ·λ, and minus its derivative."""
    return anchor - _HELD_MEAN * dual, np.full_like(anchor, _HELD_MEAN)


@dataclass(frozen=True)
class _Dual:
    """The dual of: minimise g(m) + ½·Σ_k v_k·‖q_k − b_k‖² over distributions q_k ≤ u_k, with m = Σ_k v_k·q_k.

    For dual variables λ (C,) the best q_k is the projection of b_k + λ, and the best m is where g has the gradient −λ.
    The dual is convex, and its gradient is the difference of the two means.
    """

    base: Array
    weights: Array
    limits: Array
    best_mean: Callable[[Array], tuple[Array, Array]]
    """From λ, the m at which g has the gradient −λ, and minus the derivative of m (a diagonal matrix)."""

    def at(self, dual: Array) -> tuple[Array, Array, Array]:
        """Probabilities (K, C), where they touch no limit (K, C), and the dual's gradient (C,)."""
        q, free = _projected(self.base + dual, self.limits)
        return q, free, self.weights @ q - self.best_mean(dual)[0]

    def minimised(self, dual: Array) -> tuple[Array, Array]:
        """The probabilities (K, C) and the dual variables (C,), by Newton's method from ``dual``."""
        q, free, gradient = self.at(dual)
        for _ in range(_STEPS):
            if np.abs(gradient).max() <= _TOLERANCE:
                break
            share = self.weights / np.maximum(free.sum(axis=1), 1.0)
            hessian = np.diag(self.best_mean(dual)[1] + self.weights @ free) - (free * share[:, None]).T @ free
            step = -np.linalg.solve(hessian, gradient)
            dual, (q, free, gradient) = self._along(dual, step, -float(gradient @ step))
        return q, dual

    def _along(self, dual: Array, step: Array, descent: float) -> tuple[Array, tuple[Array, Array, Array]]:
        """The point along the step where the slope is at most a tenth of the first one, ``descent``, in size."""
        low, high, length = 0.0, np.inf, 1.0
        for _ in range(_STEPS):
            moved = dual + length * step
            here = self.at(moved)
            slope = float(here[2] @ step)
            if abs(slope) <= _SLOPE_LEFT * descent:
                break
            low, high = (low, length) if slope > 0.0 else (length, high)
            length = 0.5 * (low + high) if np.isfinite(high) else 2.0 * length
        return moved, here


def _projected(points: Array, limits: Array) -> tuple[Array, Array]:
    """The nearest distributions q_k ≤ u_k to the rows of ``points``, and where they touch no limit (1.0 or 0.0).

    q = clip(point + μ_k, 0, u) with the shift μ_k that makes the sum one. The sum is piecewise linear in μ: it bends
    at μ = −point (an entry leaves zero) and at μ = u − point (an entry reaches its limit).
    """
    size = points.shape[1]
    bends = np.concatenate([-points, limits - points], axis=1)
    order = np.argsort(bends, axis=1)
    bends = np.take_along_axis(bends, order, axis=1)
    slopes = np.cumsum(np.where(order < size, 1.0, -1.0), axis=1)
    sums = np.cumsum(slopes[:, :-1] * np.diff(bends, axis=1), axis=1)  # at all bends but the first
    after = np.minimum((sums < 1.0).sum(axis=1), bends.shape[1] - 2)[:, None]  # the bend before the sum reaches one
    before = np.where(after > 0, np.take_along_axis(sums, np.maximum(after - 1, 0), axis=1), 0.0)
    shift = np.take_along_axis(bends, after, axis=1) + (1.0 - before) / np.maximum(
        np.take_along_axis(slopes, after, axis=1), 1.0)
    q = np.clip(points + shift, 0.0, limits)
    return q, ((q > 0.0) & (q < limits)).astype(np.float64)
