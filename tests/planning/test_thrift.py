"""Energy that nothing asks for is not spent."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import exact, plan
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from tests.oracle.scenarios import CASES

SLACK = ["pruning.dense_first=true", "budget.energy_j=1e6", "budget.delay_s=1e4"]


@pytest.fixture(scope="module")
def slack() -> Scenario:
    return Scenario.load(CASES / "n10_mnist_mean_tight.json", SLACK)


def test_a_dense_first_round_costs_what_the_others_do_where_budgets_are_slack(slack):
    problem, answer = Problem.of(slack), plan(slack)
    first, rest = (float(problem.cost(segment).energy_j) for segment in answer.segments)
    assert answer.terms["pruning"] == pytest.approx(0.0, abs=1e-9)
    assert first == pytest.approx(rest, rel=1e-6)
    assert problem.violation(answer.segments) <= 1e-9


def test_it_changes_nothing_but_powers_and_clocks(slack, monkeypatch):
    task = Task.of(Problem.of(slack), SCHEMES.load("proposed"))
    thrifty = exact.solve(task)
    monkeypatch.setattr(exact, "thriftier", lambda task, solved: solved.segments)
    careless = exact.solve(task)
    broadcasts = task.problem.rounds * task.problem.broadcast_j
    spent = [task.problem.energy(solution.segments) - broadcasts for solution in (thrifty, careless)]
    assert spent[0] < 0.01 * spent[1]
    assert thrifty.cost == careless.cost
    for after, before in zip(thrifty.segments, careless.segments, strict=True):
        assert after.rounds == before.rounds
        assert (after.selected == before.selected).all()
        assert (after.pruning_ratio == before.pruning_ratio).all()


def test_no_other_deadlines_need_less_energy(slack):
    """The first round's deadline moved by up to a half, the others' with what is left: never cheaper."""
    problem, answer = Problem.of(slack), plan(slack)
    task = Task.of(problem, SCHEMES.load("proposed"))
    seconds = [float(problem.cost(segment).delay_s) for segment in answer.segments]
    rounds = [segment.rounds for segment in answer.segments]
    total = np.dot(rounds, seconds)
    for share in (0.5, 0.9, 0.99, 1.01, 1.1, 1.5):
        first = share * seconds[0]
        deadlines = first, (total - rounds[0] * first) / rounds[1]
        energy = sum(
            count * float(kind.curves.dense().within(segment.selected[None], np.array([deadline]))[0][0])
            for count, kind, segment, deadline in zip(rounds, task.kinds, answer.segments, deadlines, strict=True)
        )
        assert energy + problem.rounds * problem.broadcast_j >= answer.energy_j * (1 - 1e-9)


def test_scarce_energy_is_left_as_it_is():
    scenario = Scenario.load(CASES / "n10_mnist_mean_tight.json", ["pruning.dense_first=true", "budget.energy_j=120"])
    answer = plan(scenario)
    assert answer.prices["energy"] < 0.0
    assert answer.energy_j == pytest.approx(120.0, rel=1e-9)
