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
    columns = np.ascontiguousarray(rows.T)
    filled = columns != 0.0
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = rows.shape
    program.col_cost_, program.col_lower_ = costs, np.zeros(len(costs))
    program.col_upper_ = np.full(len(costs), np.inf)
    program.row_lower_, program.row_upper_ = lower, upper
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(filled.sum(axis=-1))])
    program.a_matrix_.index_, program.a_matrix_.value_ = np.nonzero(filled)[1], columns[filled]
    for method in ("simplex", "ipm"):
        highs = highspy.Highs()  # type: ignore[no-untyped-call]
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("presolve", "on" if presolve else "off")
        highs.setOptionValue("solver", method)
        highs.passModel(program)
        highs.run()
        if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            solution = highs.getSolution()
            prices = np.maximum(-np.array(solution.row_dual), 0.0)
            return Optimum(highs.getInfo().objective_function_value, np.array(solution.col_value), prices)
    return None
