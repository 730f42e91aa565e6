"""Plans with local steps and small uploads, against oracles that know neither: problems of FedSGD that cost as much."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import PAPER_SCHEMES, exact, plan
from fedgap.planning.alternating import solve as alternate
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from fedgap.system import round_cost
from tests.oracle.brute_force import brute_force
from tests.oracle.convex_model import solve_fixed_selection
from tests.oracle.scenarios import as_fedsgd, random_problem
from tests.oracle.test_fixed_selection import structured
from tests.planning.literal import energy_and_delay

PROPOSED = PAPER_SCHEMES["proposed"]
LEARNERS = [(4, 32.0), (1, 8.125), (16, 8.125), (3, 4.125)]


def problem_of(seed, rounds, clients, learner, **further):
    steps, wire_bits = learner
    return random_problem(
        np.random.default_rng(seed), clients, rounds, local_steps=steps, wire_bits=wire_bits, **further
    )


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_equivalent_problem_costs_as_much(learner):
    problem = problem_of(0, 1, 3, learner)
    fleet, plain = problem.fleet, as_fedsgd(problem).fleet
    decision = np.array([True, False, True]), np.full(3, 0.3), 0.5 * fleet.max_power_w, 0.7 * fleet.max_frequency_hz
    ours, same = round_cost(fleet, *decision), round_cost(plain, *decision)
    assert ours.client_s == pytest.approx(same.client_s, rel=1e-12)
    assert ours.client_j == pytest.approx(same.client_j, rel=1e-12)
    left = problem.energy_j - float(ours.energy_j)
    assert left == pytest.approx(as_fedsgd(problem).energy_j - float(same.energy_j), rel=1e-12)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("seed", range(3))
def test_the_fixed_selection_solver_agrees_with_clarabel(seed, learner):
    problem = problem_of(seed, 5, 4, learner)
    plain, everybody = as_fedsgd(problem), np.ones(4, dtype=bool)
    oracle = solve_fixed_selection(plain, everybody, plain.energy_j / 5 - plain.broadcast_j, plain.delay_s / 5)
    ours = structured(problem, everybody, problem.energy_j / 5 - problem.broadcast_j, problem.delay_s / 5, PROPOSED)
    assert bool(ours.feasible[0]) == oracle.feasible
    if oracle.feasible:
        assert ours.value[0] == pytest.approx(oracle.kept, rel=1e-6)


@pytest.mark.parametrize(("learner", "aggregation"), [
    pytest.param(learner, aggregation, marks=() if learner == (16, 8.125) else pytest.mark.full)
    for learner in LEARNERS for aggregation in ("mean", "mixture")])
def test_exact_is_as_good_as_brute_force(learner, aggregation):
    problem = problem_of(7, 3, 3, learner, aggregation=aggregation, dense_first=True)
    oracle = brute_force(Task.of(as_fedsgd(problem), SCHEMES.load("proposed")))
    task = Task.of(problem, PROPOSED)
    solution = exact.solve(task)
    assert np.isfinite(oracle.value)
    assert problem.violation(solution.segments) <= 1e-6
    assert {segment.local_steps for segment in solution.segments} == {learner[0]}
    assert task.value(solution.segments) == pytest.approx(oracle.value, rel=1e-6)


@pytest.mark.parametrize("learner", LEARNERS)
def test_algorithm_1_finds_the_plan_of_the_equivalent_problem(learner):
    problem = problem_of(3, 4, 3, learner)
    ours, same = alternate(problem, PROPOSED), alternate(as_fedsgd(problem), PROPOSED)
    assert ours.feasible
    assert same.feasible
    assert problem.violation(ours.segments) <= 1e-6
    assert problem.objective(ours.segments).theta == pytest.approx(problem.objective(same.segments).theta, rel=1e-4)


@pytest.mark.parametrize("solver", ["exact", "alternating"])
def test_a_plans_totals_are_those_of_plain_loops(solver):
    learner = ["learning.local_steps=6", "learning.upload_bits=8", "rounds=200"]
    scenario = Scenario.load("paper-mnist", learner)
    answer = plan(scenario, solver=solver)
    assert answer.feasible
    assert answer.local_steps == 6
    energy_j, delay_s = energy_and_delay(scenario, answer)
    assert answer.energy_j == pytest.approx(energy_j, rel=1e-12)
    assert answer.delay_s == pytest.approx(delay_s, rel=1e-12)
    assert energy_j <= scenario.budget.energy_j * (1 + 1e-9)
    assert delay_s <= scenario.budget.delay_s * (1 + 1e-9)
