"""The threshold rule of the bounded search, and the grid of deadlines that searches use."""

from typing import NamedTuple

import numpy as np

from fedgap.arrays import Floats, Ints

_BISECTIONS = 24
"""Maximum number of values of z that are tried."""
_CLOSE = 1e-5
"""The search ends when z is known to this share. The bound is flat there, and every z gives a valid bound."""


def deadline_grid(need: Floats, longest_s: float, size: int) -> Floats:
    """Return a grid of deadlines from the shortest that any client can meet to the longest.

    :param need: the shortest deadline of each client, s, (N,).
    """
    grid = np.geomspace(float(need.min()), max(longest_s, float(need.min())), size)
    # A third of the grid goes where clients become able to take part, because the deadline matters most there.
    reach = np.quantile(need[need <= longest_s], np.linspace(0.0, 1.0, size // 2))
    return np.unique(np.concatenate([grid, reach]))


class Threshold(NamedTuple):
    """The result of :func:`threshold`."""

    bound: Floats
    """The lower bound of each problem, (B,)."""
    order: Ints
    """The clients of each problem, the best first, (B, N)."""


def threshold(
    worth: Floats,
    phi: Floats,
    least: Ints,
    most: Ints,
    weight: Floats,
    cap: Floats | None = None,
    goal: Floats | None = None,
) -> Threshold:
    """Return for B problems a lower bound on the minimum over selections A of C·(Σ_A φ_n)² + Σ_A v_n.

    A has between ``least`` and ``most`` clients. As S² ≥ 2zS − z² for every z, the bound is the maximum over z of −C·z²
    plus the sum of the ``least`` smallest scores v_n + 2C·z·φ_n, and of further negative scores, up to ``most``. It is
    concave in z. Its slope is 2C·(S(z) − z), where S(z), the sum of φ_n over the clients with these scores, falls with
    z. The maximum is found by bisection.

    :param worth: v_n, (B, N), ∞ for clients that may not be selected; :param weight: C, (B,);
    :param cap: the largest z, (B,); :param goal: a bound that is high enough, (B,).
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
        # S(z) is almost constant if many clients have similar scores. Its last value is then a better guess for z than
        # the middle of the interval.
        z = np.where((total > low) & (total < high), total, 0.5 * (low + high))
    return Threshold(best, kept)
