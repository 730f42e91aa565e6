"""Turn measured costs of a pruned model into the convex curve that a scenario's ``model.cost_curve`` needs."""

import highspy
import numpy as np
import numpy.typing as npt

from fedgap.arrays import Floats
from fedgap.errors import InputError


def convex_upper_fit(ratio: npt.ArrayLike, share: npt.ArrayLike) -> Floats:
    """Return the lowest convex, non-increasing curve that is nowhere below the measured shares, (J,).

    The function solves min Σ s_i subject to s_i ≥ ``share``_i, s_0 = 1, and slopes that never fall and are at most 0.
    The curve is linear between the ratios. If the cost falls in steps, give the ratios at the ends of the steps as
    well.

    >>> fedgap.convex_upper_fit([0.0, 0.25, 0.5], [1.0, 0.9, 0.5]).round(3).tolist()
    [1.0, 0.9, 0.8]

    :param ratio: λ, rising from 0, (J,); :param share: share of the full model's cost that is left, at most 1, (J,).
    """
    at, measured = np.asarray(ratio, dtype=np.float64), np.asarray(share, dtype=np.float64)
    if at.ndim != 1 or at.shape != measured.shape or len(at) < 2 or at[0] != 0.0 or (np.diff(at) <= 0.0).any():
        raise InputError("ratio: must begin with 0 and rise, with one share per ratio")
    if not ((measured > 0.0) & (measured <= 1.0)).all():
        raise InputError("share: must be above 0 and at most 1, because it is a share of the full model's cost")
    size, step = len(at), np.diff(at)
    program = highspy.HighsLp()
    rows = np.zeros((size - 1, size))
    for i in range(size - 2):  # slope_i - slope_{i+1} <= 0
        rows[i, [i, i + 1, i + 2]] = -1.0 / step[i], 1.0 / step[i] + 1.0 / step[i + 1], -1.0 / step[i + 1]
    rows[-1, [-2, -1]] = -1.0, 1.0
    filled = rows.T != 0.0
    program.num_row_, program.num_col_ = rows.shape
    program.col_cost_ = np.ones(size)
    program.col_lower_, program.col_upper_ = np.append(1.0, measured[1:]), np.ones(size)
    program.row_lower_, program.row_upper_ = np.full(size - 1, -np.inf), np.zeros(size - 1)
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(filled.sum(axis=-1))])
    program.a_matrix_.index_, program.a_matrix_.value_ = np.nonzero(filled)[1], rows.T[filled]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.passModel(program)
    highs.run()
    return np.asarray(np.clip(np.array(highs.getSolution().col_value), measured, 1.0))
