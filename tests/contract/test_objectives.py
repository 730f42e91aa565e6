"""What every registered objective must keep, and what one without any structure may expect."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import Objective, exact, plan
from fedgap.planning.oracles.oracle import oracles_for
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.task import Task
from fedgap.registry import OBJECTIVES
from tests.planning.regimes import random_scenario

EVERY = np.array([[(code >> n) & 1 for n in range(4)] for code in range(16)], dtype=np.bool_)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return random_scenario(np.random.default_rng(4), 4, 20, aggregation="mixture", spread=1.5, near=3.0,
                           hopeless=False, weights="both", loud=1e-5)


@pytest.fixture(params=OBJECTIVES.names())
def objective(request, scenario) -> Objective:
    return OBJECTIVES.load(request.param)(Problem.of(scenario))


def test_its_costs_are_those_of_rounds(objective):
    cost = objective.selection_cost(EVERY)
    assert cost.shape == (16,)
    assert cost[0] == np.inf
    assert np.isfinite(cost[-1])
    assert (cost >= 0.0).all()
    assert objective.pruning_weight >= 0.0
    one_by_one = [float(objective.selection_cost(selected)) for selected in EVERY]
    assert one_by_one == pytest.approx(cost.tolist(), rel=1e-12)


def test_it_can_be_asked_for_another_number_of_rounds(objective):
    other = objective.with_rounds(10)
    assert other.name == objective.name
    assert other.constant >= objective.constant
    assert other.with_rounds(20).constant == pytest.approx(objective.constant, rel=1e-12)
    assert other.with_rounds(20).selection_cost(EVERY) == pytest.approx(objective.selection_cost(EVERY), rel=1e-12)


def test_its_structure_is_that_of_its_costs(objective):
    if objective.additive is not None:
        assert objective.additive.cost(EVERY) == pytest.approx(objective.selection_cost(EVERY), rel=1e-12)
    if objective.pooled is not None:
        for selected in EVERY[1:]:
            histogram, count = selected @ objective.pooled.counts, int(selected.sum())
            expected = float(objective.selection_cost(selected))
            assert float(objective.pooled.cost(histogram, count)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) if name == "measured" else name
                                  for name in OBJECTIVES.names()])
def test_plans_say_what_they_minimise(name, scenario):
    answer = plan(scenario, objective=name)
    assert (answer.objective, answer.scheme) == (name, f"proposed+{name}")
    assert (answer.lower_bound is not None) == (name == "theta")
    assert answer.to_dict()["objective"] == name


class Pairs(Objective):
    """Clients 0 and 1 are worth having together: no sum over clients, and no pooled labels."""

    name = "pairs"

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    @property
    def constant(self) -> float:
        return 1.0 / self.rounds

    @property
    def pruning_weight(self) -> float:
        return 0.1

    def selection_cost(self, selected):
        count = selected.sum(axis=-1)
        apart = np.where(selected[..., 0] & selected[..., 1], 0.0, 1.0)
        return np.where(count > 0, apart + 1.0 / np.maximum(count, 1), np.inf)

    def with_rounds(self, rounds: int) -> "Pairs":
        return Pairs(rounds)


def test_an_objective_of_one_s_own_is_enumerated_and_above_12_clients_searched(scenario, monkeypatch):
    mine = Scheme("mine", "Mine", objective=lambda problem: Pairs(problem.rounds))
    rich = Task.of(Problem.of(scenario.with_overrides(["budget.energy_j=1e6", "budget.delay_s=1e6"])), mine)
    task = Task.of(Problem.of(scenario), mine)
    enumerated = exact.solve(task)
    assert exact.solve(rich).cost == pytest.approx(0.25, rel=1e-9)  # all four together, unpruned
    assert enumerated.lower_bound <= enumerated.cost
    monkeypatch.setattr("fedgap.planning.oracles.oracle.ENUMERATED_CLIENTS", 0)
    assert not any(oracle.proves_bound for oracle in oracles_for(task))
    searched = exact.solve(task)
    assert exact.solve(rich).cost == pytest.approx(0.25, rel=1e-9)
    assert searched.lower_bound is None
    assert task.problem.violation(searched.segments) <= 1e-9
    assert enumerated.lower_bound * (1 - 1e-9) <= searched.cost <= enumerated.cost * (1 + 5e-3)
