"""Choose label probabilities of the selected clients so that their mean matches a target as well as their data allow.

Client k has n_{k,c} samples of label c, n_k in total, and draws labels with probabilities q_k. It can only draw labels
that it has, and it must not repeat its few samples of a rare label too often, so that 0 ≤ q_{k,c} ≤ u_{k,c}
(:func:`largest_probabilities`). With weights v_k (equal ones by default, Σ v_k = 1) the mean is m = Σ_k v_k·q_k. The
problem is

    minimise KL(m‖t) over all q_k; among the solutions take the one with the least Σ_k v_k·‖q_k − n_k,·/n_k‖².

The two steps, minimising KL and choosing among the solutions, both minimise a function of m plus a multiple δ of ½·Σ_k
v_k·‖q_k − b_k‖². Such a problem has a dual with one variable λ_c per label, which Newton's method solves in a few
iterations. The first step is the proximal point method: b is the q of the previous iteration, and δ shrinks tenfold
each time. In the second step b is the natural distribution n_k,·/n_k, and m is held at the result of the first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fedgap.errors import InputError

Array = npt.NDArray[np.float64]

_FIRST_DELTA, _LAST_DELTA = 1e-1, 1e-3
"""δ of the first proximal iteration and of the last ones. A smaller δ needs fewer iterations, and leaves fewer correct
digits of the dual variables."""
_HELD_MEAN = 1e-9
"""δ of the second step: m may move by this much times a dual variable, which is of order one."""
_TOLERANCE = 1e-10
"""An iteration ends when the error of m is at most this, far below the 1e-6 that is promised."""
_SLOPE_LEFT = 0.1
"""A line search ends where the slope is at most this share of the initial one; with a larger share Newton's method may
cycle."""
_STEPS = 100
"""Maximum number of steps of any iteration; usually fewer than 20 are taken."""
_LARGEST_EXPONENT = 300.0
"""Keeps exponentials finite while a line search tries long steps."""


@dataclass(frozen=True)
class LabelMatch:
    """Label probabilities of K clients, and the divergence of their mean from the target, in nats."""

    probabilities: Array
    """q_{k,c}, shape (K, C); each row sums to one."""
    divergence: float
    """KL(m‖t) with these probabilities."""
    natural_divergence: float
    """KL(m‖t) if every client draws each of its samples equally often."""


def label_divergence(labels: npt.ArrayLike, target: npt.ArrayLike) -> Array:
    """Return KL(p‖t) = Σ_c p_c·ln(p_c/t_c) ≥ 0, in nats, over the last axis.

    p and t are ``labels`` (..., C) and ``target``, each divided by its sum, so that both may be counts.
    """
    p, t = (values / values.sum(axis=-1, keepdims=True) for values in
            (np.asarray(labels, dtype=np.float64), np.asarray(target, dtype=np.float64)))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0.0, p * np.log(p / t) - p + t, t)  # no negative terms; −p + t sums to zero
    return np.asarray(np.maximum(terms, 0.0).sum(axis=-1))


def largest_probabilities(label_counts: npt.ArrayLike, max_repeat: float, draws: npt.ArrayLike | None = None) -> Array:
    """Return the largest label probabilities, u_{k,c} = min(1, ρ·n_{k,c}/min(n_k, T_k)), shape (K, C).

    A client that draws T_k samples in all its rounds and local steps draws each of its samples of label c on average
    T_k·q_{k,c}/n_{k,c} times. This number is limited to ρ times the average over all its samples, T_k/n_k, or to ρ
    where that is larger.

    :param max_repeat: ρ ≥ 1.
    :param draws: T_k, one number or one per client; if None, the limit is ρ times the average.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    size = counts.sum(axis=-1)
    if not (size.size and (counts >= 0.0).all() and (size > 0.0).all() and np.isfinite(size).all()):
        raise InputError("label_counts: must have one row per client, with numbers of at least 0; each client needs "
                         "at least one sample")
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
    """Solve the problem of the module docstring.

    :param label_counts: n_{k,c} of the K selected clients, shape (K, C).
    :param target: t_c > 0, shape (C,), such as :func:`~fedgap.theory.generalization.smoothed` target counts.
    :param max_repeat: how often a sample may be repeated, and :param draws: how many samples each client draws; see
        :func:`largest_probabilities`.
    :param weights: v_k, the weights of the clients in the mean, shape (K,); equal by default.
    """
    limits = largest_probabilities(label_counts, max_repeat, draws)
    counts, t = np.asarray(label_counts, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if t.shape != counts.shape[1:] or not (np.isfinite(t).all() and (t > 0.0).all()):
        raise InputError("target: must have one positive number per label; add one to counts that contain a zero")
    t = t / t.sum()
    v = np.ones(len(counts)) if weights is None else np.asarray(weights, dtype=np.float64)
    if v.shape != counts.shape[:1] or not (np.isfinite(v).all() and (v > 0.0).all()):
        raise InputError("weights: must have one positive number per client")
    v = v / v.sum()
    natural = counts / counts.sum(axis=1, keepdims=True)
    probabilities = np.zeros_like(natural)
    present = counts.any(axis=0)
    probabilities[:, present] = _solve(natural[:, present], t[present], v, limits[:, present])
    return LabelMatch(probabilities, *(float(label_divergence(v @ q, t)) for q in (probabilities, natural)))


def _solve(natural: Array, t: Array, v: Array, limits: Array) -> Array:
    """Return the best q (K, C). Each label must have samples at some client."""
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
    for _ in range(2):  # the first solution has the mean a − δ·λ; the second time the anchor a makes up for δ·λ
        q, dual = _Dual(natural, v, limits, partial(_held_mean, anchor)).minimised(dual)
        anchor = mean + _HELD_MEAN * dual
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def _divergence_mean(t: Array, delta: float, dual: Array) -> tuple[Array, Array]:
    """Return the m at which KL(m‖t)/δ has the gradient −λ (``dual``), and −dm/dλ, which is diagonal.

    m = t·exp(−δ·λ), where a constant is absorbed into λ.
    """
    mean = t * np.exp(np.clip(-delta * dual, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    return mean, delta * mean


def _held_mean(anchor: Array, dual: Array) -> tuple[Array, Array]:
    """Return the m at which Σ_c (m_c − a_c)²/(2·δ) has the gradient −λ (``dual``), and −dm/dλ, which is diagonal.

    m = a − δ·λ with a = ``anchor``.
    """
    return anchor - _HELD_MEAN * dual, np.full_like(anchor, _HELD_MEAN)


@dataclass(frozen=True)
class _Dual:
    """The dual of: minimise g(m) + ½·Σ_k v_k·‖q_k − b_k‖² over distributions q_k ≤ u_k, where m = Σ_k v_k·q_k.

    For dual variables λ (C,) the best q_k is the projection of b_k + λ, and the best m is where g has the gradient −λ.
    The dual is convex, and its gradient is Σ_k v_k·q_k − m. The fields are b (K, C), v (K,) and u (K, C).
    """

    base: Array
    weights: Array
    limits: Array
    best_mean: Callable[[Array], tuple[Array, Array]]
    """Function from λ to the m at which g has the gradient −λ, and to the diagonal of −dm/dλ."""

    def at(self, dual: Array) -> tuple[Array, Array, Array]:
        """Return the probabilities q (K, C), 1.0 where they are strictly between their limits (K, C), and the gradient
        of the dual (C,)."""
        q, free = _projected(self.base + dual, self.limits)
        return q, free, self.weights @ q - self.best_mean(dual)[0]

    def minimised(self, dual: Array) -> tuple[Array, Array]:
        """Minimise by Newton's method from ``dual``; return the probabilities (K, C) and the dual variables (C,)."""
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
        """Return a point along ``step`` where the slope is at most a tenth of the initial one, and :meth:`at` of it.

        :param descent: absolute value of the initial slope.
        """
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
    """Return the distributions q_k ≤ u_k that are nearest to the rows of ``points``, and 1.0 where 0 < q < u, else 0.0.

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
