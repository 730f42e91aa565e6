"""Static selection rules: what they may answer, and the plans that follow."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning import Plan, Scheme, plan
from fedgap.planning.fixed_composition import compose_single
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task, chosen_clients
from fedgap.registry import SCHEMES
from tests.oracle.scenarios import CASES


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.load(CASES / "n10_mnist_mean_tight.json")


@pytest.mark.parametrize("form", ["truth values", "indices", "names", "set of names"])
def test_all_natural_answers_mean_the_same(scenario, form):
    names = scenario.names
    answers = {
        "truth values": [n in (1, 3, 4) for n in range(10)],
        "indices": (4, 1, 3),
        "names": [names[1], names[3], names[4]],
        "set of names": {names[1], names[3], names[4]},
    }
    assert np.flatnonzero(chosen_clients(answers[form], scenario)).tolist() == [1, 3, 4]


@pytest.mark.parametrize(("answer", "message"), [
    ([True] * 9, "must return 10 truth values"),
    ([10], "from 0 to 9"),
    ([-1], "from 0 to 9"),
    (["nobody"], "'nobody' is not one"),
    ([], "must select at least one client"),
    ([False] * 10, "must select at least one client"),
    (None, "truth values, indices or names"),
    ([0.5], "truth values, indices or names"),
])
def test_a_wrong_answer_is_an_input_error(scenario, answer, message):
    with pytest.raises(InputError, match=f"^selection: .*{message}"):
        plan(scenario, selection=lambda _: answer)


def two_and_five(scenario: Scenario) -> list[int]:
    return [2, 5]


def test_a_rule_s_plan_is_the_best_for_its_clients_and_says_whose_it_is(scenario):
    loose = scenario.with_overrides(["budget.delay_s=1000", "budget.energy_j=300"])
    answer = plan(loose, selection=two_and_five)
    assert (answer.status, answer.scheme) == ("optimal", "proposed+two_and_five")
    assert all(np.flatnonzero(segment.selected).tolist() == [2, 5] for segment in answer.segments)
    assert answer.lower_bound <= answer.theta <= answer.lower_bound * (1 + 1e-6)
    problem = Problem.of(loose)
    selected = np.isin(np.arange(10), [2, 5])
    best, _ = compose_single(Task.of(problem, SCHEMES.load("proposed")), selected[None])
    assert answer.theta == pytest.approx(problem.constants.alpha + best[0], rel=1e-9)
    again = Plan.from_dict(answer.to_dict())
    assert (again.scheme, again.objective) == ("proposed+two_and_five", "theta")


def test_a_rule_may_come_with_a_scheme_or_by_reference(scenario):
    mine = Scheme("mine", "Mine", prune=False, selection=two_and_five)
    answer = plan(scenario.with_overrides(["budget.delay_s=1000", "budget.energy_j=1000"]), scheme=mine)
    assert answer.scheme == "mine"
    assert answer.terms["pruning"] == 0.0
    by_name = plan(scenario, selection="fedgap.planning.selection.everybody:everybody")
    assert by_name.theta == plan(scenario, scheme="all_clients").theta


def test_a_rule_is_not_for_algorithm_1(scenario):
    with pytest.raises(InputError, match=r"^solver: .*must be exact"):
        plan(scenario, selection="everybody", solver="alternating")


def test_an_unknown_rule_and_an_object_that_is_no_scheme_are_named(scenario):
    with pytest.raises(InputError, match=r"^selection: must be one of everybody, fastest_half"):
        plan(scenario, selection="fastest_halve")
    with pytest.raises(InputError, match=r"^scheme: must be a fedgap\.Scheme"):
        plan(scenario, scheme=two_and_five)
    with pytest.raises(InputError, match=r"^scheme: power or frequency"):
        Scheme("slow", "Slow", power=False, frequency=False)


def test_too_many_rounds_are_refused_at_once(scenario):
    with pytest.raises(InputError, match=r"^rounds: must be at most 1,000,000"):
        plan(scenario.with_overrides(["rounds=1000000000"]))
