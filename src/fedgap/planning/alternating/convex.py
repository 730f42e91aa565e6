"""Import CVXPY, and call its solver, for the convex subproblems of Algorithm 1."""

import importlib
import warnings
from typing import Any

from fedgap.errors import InputError


def cvxpy() -> Any:
    """Import CVXPY and return it. It is imported late, because that takes a second and only Algorithm 1 needs it."""
    try:
        return importlib.import_module("cvxpy")
    except ModuleNotFoundError:
        raise InputError('solver: alternating needs CVXPY; pip install "fedgap[all]", or use exact') from None


def solved(model: Any) -> bool:
    """Solve a CVXPY problem with Clarabel; return whether a solution was found.

    With tight budgets Clarabel may stop before it reaches its tolerance (1e-8). Such a solution is accepted without
    CVXPY's warning, because every result is checked by the formulas of P1.
    """
    cp = cvxpy()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            model.solve(solver=cp.CLARABEL)
    except cp.error.SolverError:
        return False
    return model.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
