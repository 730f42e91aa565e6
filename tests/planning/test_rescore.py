"""Plans that a person wrote or edited are scored again."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import Plan, plan, rescore
from tests.oracle.scenarios import CASES
from tests.planning import literal


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.load(CASES / "n3_r1.json")


@pytest.fixture(scope="module")
def planned(scenario) -> Plan:
    return plan(scenario)


def reread(answer: Plan) -> Plan:
    return Plan.from_dict(json.loads(json.dumps(answer.to_dict())))


def test_a_plan_as_it_was_made_keeps_its_certificate(scenario, planned):
    answer = rescore(reread(planned), scenario)
    assert answer.to_dict() == planned.to_dict()


def test_a_shortened_plan_is_not_taken_for_an_edited_one():
    scenario = Scenario.load("paper-mnist", ["budget.delay_s=60"])
    short = plan(scenario, scheme="all_clients")
    assert short.feasible
    assert short.theta == np.inf
    assert rescore(reread(short), scenario).to_dict() == short.to_dict()


def edited(answer: Plan, **changes) -> Plan:
    document = answer.to_dict()
    for client in document["segments"][0]["clients"]:
        if client["selected"]:
            client["pruning_ratio"] = 0.5
    return Plan.from_dict(document | changes)


def test_an_edited_plan_is_scored_by_its_segments(scenario, planned):
    answer = rescore(edited(planned), scenario)
    joules, seconds = literal.energy_and_delay(scenario, answer)
    assert answer.theta == pytest.approx(literal.theta(scenario, answer), rel=1e-9)
    assert (answer.energy_j, answer.delay_s) == pytest.approx((joules, seconds), rel=1e-9)
    assert answer.theta != pytest.approx(planned.theta, rel=1e-4)
    assert (answer.lower_bound, answer.gap, answer.prices) == (None, None, None)
    assert (answer.scheme, answer.status) == ("edited", "feasible")
    assert answer.reason == "written or edited by hand"


def test_it_keeps_its_own_name_and_says_which_budget_it_breaks(scenario, planned):
    assert rescore(edited(planned, scheme="by hand"), scenario).scheme == "by hand"
    poor = scenario.with_overrides([f"budget.energy_j={0.5 * planned.energy_j!r}"])
    answer = rescore(edited(planned, scenario_hash="", scheme="by hand"), poor)
    spent = answer.energy_j
    assert (answer.status == "infeasible") == (spent > 0.5 * planned.energy_j)
    assert (" J of " in answer.reason) == (spent > 0.5 * planned.energy_j)


def test_a_plan_without_scores_is_scored(scenario, planned):
    bare = Plan.from_dict({"segments": planned.to_dict()["segments"]})
    answer = rescore(bare, scenario)
    assert answer.theta == pytest.approx(planned.theta, rel=1e-12)
    assert answer.scheme == "edited"


def test_a_plan_for_another_scenario_keeps_its_scheme_but_not_its_bound(scenario, planned):
    other = scenario.with_overrides(["bound.initial_gap=5"])
    answer = rescore(reread(planned), other)
    assert (answer.scheme, answer.lower_bound) == ("proposed", None)
    assert answer.reason.startswith("made for another scenario")
    nothing = replace(planned, segments=(), rounds=0)
    assert rescore(nothing, scenario) is nothing
