"""The structured fixed-selection solver against CVXPY and Clarabel on the same convex problem."""

import os

import numpy as np
import pytest

from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.problem import Problem
from fedgap.planning.resources import allocate
from fedgap.planning.schemes import Scheme
from fedgap.registry import SCHEMES
from fedgap.system import round_cost
from tests.oracle.convex_model import FixedSelectionModel, solve_fixed_selection
from tests.oracle.scenarios import FEASIBLE_CASES, case, pencil_problem, random_problem

COUNT = 200 if os.environ.get("FEDGAP_FULL") == "1" else 30
FREE = [scheme for scheme in map(SCHEMES.load, SCHEMES.built_in) if scheme.objective == "theta" and scheme.select]


def structured(problem: Problem, selected: np.ndarray, energy_j: float, delay_s: float, scheme: Scheme):
    units = ClientCurves.of(
        problem.fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency
    ).take(np.flatnonzero(selected))
    shape = (1, int(selected.sum()))
    time = np.broadcast_to(delay_s - units.overhead, shape)
    share = np.full(shape, 1.0 / shape[1])
    return allocate(units, time, share, np.ones(shape), np.ones(shape, dtype=bool), np.array([energy_j]))


@pytest.mark.parametrize("scheme", FREE, ids=lambda scheme: scheme.name)
def test_the_model_is_convex_and_parametrised(scheme):
    model = FixedSelectionModel(4, scheme).problem
    assert model.is_dcp()
    assert model.is_dcp(dpp=True)


@pytest.mark.parametrize("seed", range(COUNT))
def test_structured_solver_agrees_with_clarabel(seed):
    """Value to 1e-6, duals to 5e-4 (Clarabel's own are no better), and the same verdict on feasibility."""
    rng = np.random.default_rng(seed)
    scheme = FREE[seed % len(FREE)]
    problem = random_problem(rng, int(rng.integers(1, 9)), 5)
    selected = rng.random(problem.size) < 0.7
    selected[rng.integers(problem.size)] = True
    energy_j, delay_s = problem.energy_j / 5 - problem.broadcast_j, problem.delay_s / 5
    oracle = solve_fixed_selection(problem, selected, energy_j, delay_s, scheme)
    ours = structured(problem, selected, energy_j, delay_s, scheme)
    assert bool(ours.feasible[0]) == oracle.feasible
    if oracle.feasible:
        assert ours.value[0] == pytest.approx(oracle.kept, rel=1e-6)
        assert 1.0 / ours.worth[0] == pytest.approx(oracle.energy_price, rel=5e-4, abs=1e-6)


@pytest.mark.parametrize("name", FEASIBLE_CASES)
def test_oracle_spends_within_the_budgets_of_the_shared_cases(name):
    """The oracle's m, f, p put through the literal formulas: they must not spend more than they may."""
    problem, expected = case(name)
    selected = np.array(expected["plan"][-1]["a"], dtype=bool)
    energy_j = problem.energy_j / problem.rounds - problem.broadcast_j
    delay_s = problem.delay_s / problem.rounds
    oracle = solve_fixed_selection(problem, selected, energy_j, delay_s)
    fleet = problem.fleet.take(np.flatnonzero(selected))
    everybody = np.ones(fleet.size, dtype=bool)
    cost = round_cost(fleet, everybody, 1.0 - oracle.keep, oracle.power_w, oracle.frequency_hz)
    assert float(cost.client_j.sum()) <= energy_j * (1.0 + 1e-6)
    assert float(cost.delay_s) <= delay_s * (1.0 + 1e-6)


def test_by_hand():
    """One of the pencil's clients with 5 s to spare beyond the download and energy no object keeps everything.

    At f = 2 Hz and p = 3 W the whole model takes 1.5 s + 1 s. With 2 s beyond the download it keeps 2/2.5 = 0.8, and a
    second more would let it keep 1/2.5 = 0.4 more.
    """
    problem, first = pencil_problem(1e3, 9.0), np.array([True, False])
    assert solve_fixed_selection(problem, first, 1e3, 7.0).kept == pytest.approx(1.0, abs=1e-7)
    tight = solve_fixed_selection(problem, first, 1e3, 4.0)
    assert tight.kept == pytest.approx(0.8, abs=1e-7)
    assert tight.delay_price == pytest.approx(0.4, rel=1e-5)
    assert not solve_fixed_selection(problem, first, 1e3, 3.2).feasible
