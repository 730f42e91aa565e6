"""What every scheme keeps: a new file in ``planning/schemes`` is tested here as soon as it is listed.

That one which cannot finish is planned shorter is in ``tests/planning/test_diagnosis.py``.
"""

import importlib
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import plan
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from tests.oracle.scenarios import CASES
from tests.planning import literal
from tests.planning.test_plan import CONTRACT

PAPER = ("proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency")
"""The contract's names, in its order."""
RANDOM_PLANS = 4000 if os.environ.get("FEDGAP_FULL") == "1" else 1000


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """A fleet in which every scheme finds a plan, and both budgets bind."""
    return Scenario.load(CASES / "n10_mnist_mean_tight.json", ["budget.delay_s=200", "rounds=120"])


@pytest.fixture(scope="module")
def plans(scenario):
    return {name: plan(scenario, scheme=name) for name in SCHEMES.built_in}


def cost(answer) -> float:
    """θ − α, by terms."""
    return answer.terms["clients"] + answer.terms["generalization"] + answer.terms["pruning"]


def test_the_contract_s_names_are_there_and_come_first():
    assert tuple(SCHEMES.built_in)[: len(PAPER)] == PAPER


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_a_file_of_its_own(name):
    module = importlib.import_module(SCHEMES.built_in[name].partition(":")[0])
    assert module.SCHEME is SCHEMES.load(name)
    assert module.SCHEME.name == name
    assert module.__doc__
    assert sum(scheme.title == module.SCHEME.title for scheme in map(SCHEMES.load, SCHEMES.built_in)) == 1


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_a_plan_keeps_the_budgets_and_the_restriction(name, scenario, plans):
    scheme, answer = SCHEMES.load(name), plans[name]
    problem = Problem.of(scenario).with_rounds(answer.rounds)
    assert answer.status in ("optimal", "feasible")
    assert (answer.scheme, answer.solver, answer.reason) == (name, "exact", "")
    assert problem.violation(answer.segments) <= 1e-9
    for segment in answer.segments:
        chosen = segment.selected
        assert chosen.any()
        assert scheme.select or chosen.all()
        assert scheme.prune or not segment.pruning_ratio.any()
        assert scheme.power or (segment.power_w[chosen] == problem.fleet.max_power_w[chosen]).all()
        assert scheme.frequency or (segment.frequency_hz[chosen] == problem.fleet.max_frequency_hz[chosen]).all()


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_it_is_scored_by_the_full_theta(name, scenario, plans):
    """By the paper's formulas in plain loops, for the plan's own number of rounds."""
    answer = plans[name]
    joules, seconds = literal.energy_and_delay(scenario, answer)
    assert answer.theta == pytest.approx(literal.theta(scenario, answer), rel=1e-9)
    assert answer.energy_j == pytest.approx(joules, rel=1e-9)
    assert answer.delay_s == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_its_json_is_the_contract_s(name, scenario, plans):
    document = json.loads(json.dumps(plans[name].to_dict(), allow_nan=False))
    assert set(document) >= CONTRACT
    assert document["scheme"] == name
    assert document["scenario_hash"] == scenario.hash()
    assert sum(segment["rounds"] for segment in document["segments"]) == document["rounds"]
    assert {len(segment["clients"]) for segment in document["segments"]} == {scenario.size}


@pytest.mark.parametrize("name", PAPER)
def test_the_restriction_costs_something_or_nothing(name, plans):
    assert cost(plans[name]) >= cost(plans["proposed"]) * (1 - 1e-9)
    assert plans[name].theta >= plans["proposed"].lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_the_same_again(name, scenario, plans):
    """Nothing is drawn at random."""
    again = plan(scenario, scheme=name)
    assert replace(again, solve_s=0.0).to_dict() == replace(plans[name], solve_s=0.0).to_dict()


IRRELEVANT = {
    "no_pruning": ["pruning.max_ratio=0"],
    "no_generalization": [f"clients[{n}].phi=0" for n in range(10)],
    "fixed_power": ["budget.energy_j=1e9"],
    "fixed_frequency": ["budget.energy_j=1e9"],
}
"""Scenarios in which what a scheme may not decide does not matter."""


@pytest.mark.parametrize("name", IRRELEVANT)
def test_a_restriction_that_does_not_matter_costs_nothing(name, scenario):
    """Solved as well as its restriction allows: where that is no restriction, as well as the proposed scheme."""
    free = scenario.with_overrides(IRRELEVANT[name])
    assert cost(plan(free, scheme=name)) == pytest.approx(cost(plan(free)), rel=1e-6)


def test_a_fixed_selection_of_one_client_is_no_restriction():
    alone = Scenario.load(CASES / "n1_loose.json")
    assert cost(plan(alone, scheme="all_clients")) == pytest.approx(cost(plan(alone)), rel=1e-6)


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_no_random_plan_within_the_restriction_is_cheaper(name, scenario, plans):
    """In the scheme's own objective, over plans of one selection that keep the budgets."""
    scheme, rounds = SCHEMES.load(name), plans[name].rounds
    problem = Problem.of(scenario).with_rounds(rounds)
    task = Task.of(problem, scheme)
    best = task.value(plans[name].segments)
    fleet, rng, kept = problem.fleet, np.random.default_rng(3), 0
    for _ in range(RANDOM_PLANS):
        chosen = rng.random(10) < rng.random() if scheme.select else np.ones(10, dtype=np.bool_)
        if not chosen.any():
            continue
        whole = np.where(chosen, fleet.max_power_w, 0.0), np.where(chosen, fleet.max_frequency_hz, 0.0)
        power = whole[0] * (rng.uniform(0.001, 1.0) if scheme.power else 1.0)
        frequency = whole[1] * (rng.uniform(0.5, 1.0) if scheme.frequency else 1.0)
        ratio = np.where(chosen, fleet.max_ratio * rng.random() * (1.0 if scheme.prune else 0.0), 0.0)
        segment = replace(
            plans[name].segments[0], rounds=rounds, selected=chosen, pruning_ratio=ratio, power_w=power,
            frequency_hz=frequency,
        )
        if problem.violation([segment]) == 0.0:
            kept += 1
            assert task.value([segment]) >= best * (1 - 1e-9)
    assert kept >= RANDOM_PLANS // 200


@pytest.mark.parametrize("name", SCHEMES.built_in)
def test_budgets_that_carry_nothing_are_infeasible_in_words(name, scenario):
    answer = plan(scenario.with_overrides(["budget.energy_j=1e-6"]), scheme=name)
    assert (answer.status, answer.segments, answer.rounds) == ("infeasible", (), 0)
    assert answer.theta == np.inf
    assert answer.reason.startswith("budget.energy_j: ")
    assert answer.least_budget["delay_s"] is None
    enough = answer.least_budget["energy_j"]
    assert plan(scenario.with_overrides([f"budget.energy_j={enough!r}"]), scheme=name).feasible
