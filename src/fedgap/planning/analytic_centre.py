"""The analytic centre of a cone of vectors: a point that is well inside all its bounds."""

import numpy as np

from fedgap.arrays import Floats

_STEPS = 60
"""Maximum number of Newton steps; one or two dozen are usual."""
_CENTRED = 1e-3
"""The search ends when a step changes the distances to the bounds by at most this share."""


def analytic_centre(bounds: Floats, near: Floats) -> Floats | None:
    """Return the u > 0 with ``bounds`` @ u > 0 that maximises Σ_i ln u_i + Σ_k ln (bounds @ u)_k − Σ_i u_i/near_i.

    With u also every multiple of u is in the cone; the last term only decides how long u is. Newton's method may start
    outside the cone, because the distances to the bounds are separate variables, which the steps make equal to those
    of u.

    :param bounds: (K, I), in which every row may have any scale; :param near: (I,), the typical size of u.
    :returns: u, (I,); None if the cone is empty, or too thin for double precision.

    >>> analytic_centre(np.array([[1.0, -1.0], [-1.0, 2.0]]), np.ones(2)).round(2)  # u₁ ≥ u₂ ≥ u₁/2
    array([2.32, 1.68])
    """
    scaled = bounds * near
    rows = np.vstack([np.eye(len(near)), scaled / np.linalg.norm(scaled, axis=1, keepdims=True)])
    point = np.ones(len(near))
    distance = np.maximum(rows @ point, 1.0)
    for _ in range(_STEPS):
        missing = rows @ point - distance
        weighted = rows / distance[:, None]
        move = np.linalg.solve(weighted.T @ weighted, weighted.T @ (1.0 - missing / distance) - 1.0)
        relative = (rows @ move + missing) / distance
        largest = float(np.abs(relative).max())
        step = 1.0 / (1.0 + largest)
        point, distance = point + step * move, distance * (1.0 + step * relative)
        if largest <= _CENTRED:
            break
    return point * near if (rows @ point > 0.0).all() else None
