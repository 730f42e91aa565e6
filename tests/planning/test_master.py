"""The linear program over rounds, where a solver's rounding has once misled it."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from fedgap.config import Scenario
from fedgap.planning import plan
from fedgap.planning.linear_program import solve_linear
from fedgap.planning.problem import Problem


def test_a_shortfall_a_hair_below_zero_takes_no_room_away() -> None:
    """ResNet-44 on CIFAR-10, all clients, T₀ = 4320 s: HiGHS finds the budgets kept with −1.2·10⁻⁸ to spare.

    Taken at its word, the program that follows has no solution, though the budgets are loose.
    """
    scenario = Scenario.load(Path(__file__).parent / "full_room.yaml")
    answer = plan(scenario, scheme="all_clients")
    assert (answer.status, answer.rounds) == ("optimal", scenario.rounds)
    assert Problem.of(scenario).violation(answer.segments) <= 1e-9
    assert answer.lower_bound == pytest.approx(answer.theta, rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_a_linear_program_is_solved_as_by_scipy(seed: int) -> None:
    random = np.random.default_rng(seed)
    limits = random.uniform(0.2, 3.0, (2, 40))
    costs = random.uniform(0.5, 1.5, 40) / limits.prod(axis=0)
    kinds, shares = np.repeat(np.eye(2), (10, 30), axis=1), np.array([0.1, 0.9])
    theirs = linprog(costs, A_ub=limits, b_ub=np.ones(2), A_eq=kinds, b_eq=shares, method="highs-ds")
    rows, lower = np.vstack([limits, kinds]), np.concatenate([np.full(2, -np.inf), shares])
    ours = solve_linear(costs, rows, lower, np.concatenate([np.ones(2), shares]), presolve=seed % 2 == 0)
    assert theirs.success
    assert ours is not None
    assert ours.value == pytest.approx(theirs.fun, rel=1e-12)
    np.testing.assert_allclose(ours.weights, theirs.x, atol=1e-12)
    np.testing.assert_allclose(ours.prices[:2], -theirs.ineqlin.marginals, atol=1e-9)


def test_a_program_without_a_solution_has_no_answer() -> None:
    rows = np.array([[2.0, 2.0], [1.0, 1.0]])
    assert solve_linear(np.ones(2), rows, np.array([-np.inf, 1.0]), np.ones(2)) is None
