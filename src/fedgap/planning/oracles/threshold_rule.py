"""The threshold rule of the bounded search, and the grid of deadlines that searches use."""

from typing import NamedTuple

import numpy as np

from fedgap.arrays import Floats, Ints

_BISECTIONS = 24
_CLOSE = 1e-5
"""Relative width of the bracket of z at which the rule stops: the bound is flat there, and any z is valid."""


def deadline_grid(need: Floats, longest_s: float, size: int) -> Floats:
    """A grid of deadlines from the least that anybody needs to the longest."""
    grid = np.geomspace(float(need.min()), max(longest_s, float(need.min())), size)
    # Where most clients can take part the deadlines matter most: a third of the grid goes there.
    reach = np.quantile(need[need <= longest_s], np.linspace(0.0, 1.0, size // 2))
    return np.unique(np.concatenate([grid, reach]))


class Threshold(NamedTuple):
    """The answer of :func:`threshold`."""

    bound: Floats
    """(B,)"""
    order: Ints
    """The clients in order of preference at the best z, (B, N)."""


def threshold(
    worth: Floats,
    phi: Floats,
    least: Ints,
    most: Ints,
    weight: Floats,
    cap: Floats | None = None,
    goal: Floats | None = None,
) -> Threshold:
    """max_z −C·z² + Σ of the ``least`` smallest of v + 2C·z·φ (and up to ``most`` if negative), one row per problem.

    Concave in z with slope 2C·(S(z) − z), S(z) the sum of φ picked, which falls with z: bisection.

    :param worth: v, (B, N), ∞ for those who may not be picked; :param weight: C, (B,); :param cap: the largest z, (B,).
    :param goal: a bound at which a row needs no better one, (B,).
    """
    rows = np.arange(len(worth))[:, None]
    place = np.arange(worth.shape[-1])
    low, high = np.zeros(len(worth)), np.full(len(worth), np.inf)
    best = np.full(len(worth), -np.inf)
    kept = np.zeros(worth.shape, dtype=np.intp)
    z = np.zeros(len(worth))
    for _ in range(_BISECTIONS):
        score = worth + 2.0 * (weight * z)[:, None] * phi
        order = np.argsort(score, axis=-1)
        ranked = score[rows, order]
        picked = (place < least[:, None]) | ((place < most[:, None]) & (ranked < 0.0))
        value = np.where(picked, ranked, 0.0).sum(axis=-1) - weight * z * z
        better = value > best
        best, kept = np.where(better, value, best), np.where(better[:, None], order, kept)
        total = np.where(picked, phi[order], 0.0).sum(axis=-1)
        low, high = np.where(total > z, z, low), np.where(total > z, np.minimum(high, total), z)
        if cap is not None:
            high = np.minimum(high, cap)
        enough = high - low <= _CLOSE * high
        if np.all(enough if goal is None else enough | (best >= goal)) or not weight.any():
            break
        # S(z) is nearly flat where many clients score alike: its last value is a better guess than the middle.
        z = np.where((total > low) & (total < high), total, 0.5 * (low + high))
    return Threshold(best, kept)
