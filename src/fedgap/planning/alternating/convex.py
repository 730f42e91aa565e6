"""What Algorithm 1's convex subproblems share: CVXPY, and the call of its solver."""

import importlib
import warnings
from typing import Any

from fedgap.errors import InputError


def cvxpy() -> Any:
    """CVXPY, imported when a model is built: it takes a second, and only Algorithm 1 needs it."""
    try:
        return importlib.import_module("cvxpy")
    except ModuleNotFoundError:
        raise InputError('solver: alternating needs CVXPY; pip install "fedgap[all]", or use exact') from None


def solved(model: Any) -> bool:
    """Solve a CVXPY problem with Clarabel; whether it found a solution.

    At tight budgets Clarabel may stop a little short of its tolerance (1e-8): that counts, without CVXPY's warning,
    because every answer is checked by the literal formulas.
    """
    cp = cvxpy()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            model.solve(solver=cp.CLARABEL)
    except cp.error.SolverError:
        return False
    return model.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
