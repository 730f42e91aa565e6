"""`exact` against brute force over all selection sequences, for a few clients and rounds."""

import os

import numpy as np
import pytest

from fedgap.planning import exact
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from tests.oracle.brute_force import brute_force
from tests.oracle.scenarios import case, random_problem

FULL = os.environ.get("FEDGAP_FULL") == "1"
COUNT, CLIENTS, ROUNDS = (60, 3, 4) if FULL else (18, 2, 3)
NAMES = tuple(SCHEMES.built_in)


def test_brute_force_finds_the_shared_case():
    problem, expected = case("n3_r1")
    found = brute_force(Task.of(problem, SCHEMES.load("proposed")))
    assert found.sequence == ((0, 1),)
    assert found.value == pytest.approx(expected["theta_upper"], rel=1e-9)


@pytest.mark.parametrize("seed", range(COUNT))
def test_exact_is_as_good_as_brute_force_and_its_bound_is_valid(seed):
    """Each scheme's objective, without its constant, to Clarabel's 1e-6."""
    rng = np.random.default_rng(seed)
    scheme = SCHEMES.load(NAMES[seed // 3 % len(NAMES)])
    aggregation = ("mean", "sum", "mixture")[seed % 3]
    clients, rounds, dense = 2 + seed % CLIENTS, 1 + seed % ROUNDS, seed % 5 == 4
    problem = random_problem(rng, clients, rounds, aggregation=aggregation, dense_first=dense)
    task = Task.of(problem, scheme)
    oracle = brute_force(task)
    solution = exact.solve(task)
    assert bool(solution.segments) == np.isfinite(oracle.value)
    if not solution.segments:
        return
    best = oracle.value - task.objective.constant
    assert problem.violation(solution.segments) <= 1e-6
    assert task.value(solution.segments) - task.objective.constant == pytest.approx(best, rel=1e-6)
    assert solution.lower_bound <= best * (1.0 + 1e-6)
