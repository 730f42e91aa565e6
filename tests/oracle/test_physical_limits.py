"""Least clock, least power, idle power and cost curves: the structured solver against CVXPY and brute force."""

import os
from dataclasses import replace

import numpy as np
import pytest

from fedgap.planning import exact
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from fedgap.system import CostCurve
from tests.oracle.limited_model import most_unpruned
from tests.oracle.scenarios import random_problem

COUNT = 200 if os.environ.get("FEDGAP_FULL") == "1" else 24
PROPOSED = SCHEMES.load("proposed")
CURVE = CostCurve(np.array([0.0, 0.2, 0.5, 0.7]), np.array([1.0, 0.7, 0.45, 0.35]))


def limited_problem(seed: int, clients: int, rounds: int = 5) -> Problem:
    """A random problem in which some clients have limits, near enough to what they would choose that most bind."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, clients, rounds)
    fleet = problem.fleet

    def some(values: np.ndarray) -> np.ndarray:
        return np.where(rng.random(clients) < 0.6, values, 0.0)

    fleet = replace(
        fleet,
        min_frequency_hz=some(fleet.max_frequency_hz * rng.uniform(0.1, 1.0, clients)),
        min_power_w=some(fleet.max_power_w * 10.0 ** rng.uniform(-4.0, 0.0, clients)),
        idle_power_w=some(rng.uniform(0.0, 1.5, clients)) if seed % 3 else np.zeros(clients),
        cost_curve=CURVE if seed % 2 else None,
    )
    longer = rng.uniform(1.0, 3.0)
    return replace(problem, fleet=fleet, delay_s=longer * problem.delay_s)


def single(problem: Problem, selected: np.ndarray):
    return compose(Task.of(problem, PROPOSED), Composition((Part(0, selected, problem.rounds),)))


@pytest.mark.parametrize("seed", range(COUNT))
def test_fixed_selection_agrees_with_cvxpy(seed):
    """The value to 1e-6, the same verdict on feasibility, and every constraint kept by the literal formulas."""
    rng = np.random.default_rng(1000 + seed)
    problem = limited_problem(seed, int(rng.integers(1, 7)))
    selected = rng.random(problem.size) < 0.7
    selected[rng.integers(problem.size)] = True
    energy_j, delay_s = problem.energy_j / problem.rounds - problem.broadcast_j, problem.delay_s / problem.rounds
    oracle = most_unpruned(problem.fleet.take(np.flatnonzero(selected)), energy_j, delay_s)
    ours = single(problem, selected)
    assert (ours is None) == (oracle is None)
    if ours is not None:
        (segment,) = ours.segments
        assert problem.violation(ours.segments) <= 1e-9
        assert 1.0 - segment.pruning_ratio[selected].mean() == pytest.approx(oracle, rel=1e-6)
        assert ours.cost == pytest.approx(
            float(problem.selection_cost(selected)) + problem.pruning_weight * (1.0 - oracle), rel=1e-6)


@pytest.mark.parametrize("seed", range(COUNT // 4))
def test_batteries_with_a_fixed_selection_agree_with_cvxpy(seed):
    """Equal rounds, everybody selected: a client has B_n/R joules in each. The bound is below, the plan keeps all."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 5)), 4)
    problem = replace(problem, delay_s=2.0 * problem.delay_s)
    task = Task.of(problem, SCHEMES.load("all_clients"))
    free = exact.solve(task)
    assert free.segments, "each of these seeds has a plan without batteries"
    used = problem.client_energy(free.segments)
    battery_j = np.where(rng.random(problem.size) < 0.6, used * rng.uniform(0.6, 1.1, problem.size), np.inf)
    problem = replace(problem, fleet=replace(problem.fleet, battery_j=battery_j))
    ours = exact.solve(replace(task, problem=problem))
    oracle = most_unpruned(problem.fleet, problem.energy_j / 4 - problem.broadcast_j, problem.delay_s / 4, rounds=4)
    assert bool(ours.segments) == (oracle is not None)
    if oracle is not None:
        everybody = np.ones(problem.size, dtype=bool)
        value = float(problem.selection_cost(everybody)) + problem.pruning_weight * (1.0 - oracle)
        assert problem.violation(ours.segments) <= 1e-9
        assert ours.cost == pytest.approx(value, rel=1e-6)
        assert ours.lower_bound <= value * (1.0 + 1e-6)
        assert ours.lower_bound == pytest.approx(value, rel=1e-6)
