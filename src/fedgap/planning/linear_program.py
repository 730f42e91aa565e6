"""Solve linear programs with HiGHS."""

from typing import NamedTuple

import highspy  # not scipy.optimize, which has HiGHS too, but takes half a second to import
import numpy as np

from fedgap.arrays import Floats


class Optimum(NamedTuple):
    """The solution of a linear program."""

    value: float
    weights: Floats
    prices: Floats
    """By how much one more unit of each constraint's upper limit lowers the value, at least 0."""


def solve_linear(
    costs: Floats, rows: Floats, lower: Floats, upper: Floats, *, presolve: bool = True
) -> Optimum | None:
    """Minimise costs·w subject to lower ≤ rows·w ≤ upper and w ≥ 0; return None if HiGHS finds no optimum.

    :param presolve: whether HiGHS simplifies the program first, which takes longer than solving one with few rows.
    """
    height, width = rows.shape
    columns = np.ascontiguousarray(rows.T)
    column, row = np.nonzero(columns)
    starts = np.searchsorted(column, np.arange(width + 1))
    continuous = np.zeros(width, dtype=np.int32)
    for method in ("simplex", "ipm"):
        highs = highspy.Highs()  # type: ignore[no-untyped-call]
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("presolve", "on" if presolve else "off")
        highs.setOptionValue("solver", method)
        # Arrays are passed as they are; the fields of a HighsLp would be copied number by number.
        highs.passModel(width, height, len(row), int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize),
                        0.0, costs, np.zeros(width), np.full(width, np.inf), lower, upper, starts, row,
                        columns[column, row], continuous)
        highs.run()
        if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            solution = highs.getSolution()
            prices = np.maximum(-np.array(solution.row_dual), 0.0)
            return Optimum(highs.getInfo().objective_function_value, np.array(solution.col_value), prices)
    return None
