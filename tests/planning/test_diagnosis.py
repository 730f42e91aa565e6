"""Infeasible budgets: the least that would do, the most rounds that they carry, and a reason a person can act on."""

import os
import re
from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import exact, plan
from fedgap.planning.diagnosis import Cheapest, feasible, least_budget, most_rounds
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import PAPER_SCHEMES, Scheme
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from tests.oracle.brute_force import brute_force
from tests.oracle.scenarios import pencil_problem
from tests.planning.regimes import random_scenario

FULL = os.environ.get("FEDGAP_FULL") == "1"
NAMES = list(PAPER_SCHEMES)


def solved(problem: Problem, scheme: Scheme) -> bool:
    """Whether the planner itself finds a plan, and one that keeps the budgets."""
    segments = exact.solve(Task.of(problem, scheme)).segments
    assert not segments or problem.violation(segments) <= 1e-9
    return bool(segments)


@pytest.mark.parametrize("seed", range(120) if FULL else [*range(4), 17, 68, 101])
def test_the_least_budget_will_do_and_a_thousandth_less_will_not(seed):
    """For each budget alone, the other held; both by the diagnosis and by the planner, under every scheme."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, int(rng.integers(1, 5)), int(rng.choice([1, 2, 3, 20, 150])))
    problem, scheme = Problem.of(scenario), SCHEMES.load(NAMES[seed % 6])
    least = least_budget(Task.of(problem, scheme))
    if scheme.name == "proposed":
        assert None not in least.values()  # the scenario's own budgets are enough
    for key, value in least.items():
        if value is not None:
            enough, short = replace(problem, **{key: value}), replace(problem, **{key: 0.999 * value})
            assert feasible(Task.of(enough, scheme))
            assert not Cheapest(Task.of(enough, scheme)).impossible()
            assert solved(enough, scheme)
            assert not feasible(Task.of(short, scheme))
            assert not solved(short, scheme)


@pytest.mark.parametrize("seed", range(120 if FULL else 6))
def test_where_neither_budget_alone_would_do_both_are_named_and_following_is_enough(seed):
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, int(rng.integers(1, 5)), int(rng.choice([2, 3, 20, 150])))
    scheme, hopeless = NAMES[seed % 6], ["budget.energy_j=1e-12", "budget.delay_s=1e-9"]
    answer = plan(scenario.with_overrides(hopeless), scheme=scheme)
    assert answer.least_budget == {"energy_j": None, "delay_s": None}
    advice = re.findall(r"budget\.(energy_j|delay_s) to ([-+.e\d]+)", answer.reason)
    assert sorted(key for key, _ in advice) == ["delay_s", "energy_j"]
    followed = plan(scenario.with_overrides([f"budget.{key}={value.rstrip('.')}" for key, value in advice]),
                    scheme=scheme)
    assert followed.status != "infeasible"


@pytest.mark.parametrize("seed", range(20 if FULL else 4))
def test_brute_force_agrees_on_the_least_energy(seed):
    rng = np.random.default_rng(seed)
    chosen = {"spread": 10.0, "weights": "both", "loud": 1e-5, "dense_first": seed % 2 == 1}
    problem = Problem.of(random_scenario(rng, 2 + seed % 2, 2, near=1.5, **chosen))
    least = least_budget(Task.of(problem, SCHEMES.load("proposed")))["energy_j"]
    for share, enough in ((1.001, True), (0.999, False)):
        task = Task.of(replace(problem, energy_j=share * least), SCHEMES.load("proposed"))
        assert np.isfinite(brute_force(task).value) == enough


def test_least_budgets_by_hand():
    """The pencil's fastest plan: half a model of either client in 1.25 s after 2 s of download, 3.25 s a round.

    At full speed client 0 computes for 0.5·12 J and client 1 for a third of that, both send for 0.5·3 J, and the
    broadcast takes 2 J: client 1 alone is cheapest, 2 + 0.5·4 + 1.5 = 5.5 J a round.
    """
    problem = pencil_problem(100.0, 3.25 * 4, rounds=4)
    least = least_budget(Task.of(problem, SCHEMES.load("proposed")))
    assert least["delay_s"] == pytest.approx(13.0, rel=1e-6)
    assert least["energy_j"] == pytest.approx(22.0, rel=1e-6)
    everyone = least_budget(Task.of(problem, SCHEMES.load("all_clients")))
    assert everyone["energy_j"] == pytest.approx(4 * (2 + 0.5 * 12 + 1.5 + 0.5 * 4 + 1.5), rel=1e-6)
    assert Cheapest(Task.of(replace(problem, delay_s=12.9), SCHEMES.load("proposed"))).impossible()
    assert Cheapest(Task.of(replace(problem, energy_j=12.0), SCHEMES.load("proposed"))).impossible()
    assert not Cheapest(Task.of(replace(problem, energy_j=22.1), SCHEMES.load("proposed"))).impossible()
    unpruned = least_budget(Task.of(replace(problem, energy_j=1e3), SCHEMES.load("no_pruning")))
    assert unpruned["delay_s"] == pytest.approx(4 * 4.5, rel=1e-6)
    assert unpruned["energy_j"] is None  # 2.5 s after the download do not fit into 1.25 s at any power


def test_no_amount_of_time_makes_up_for_the_broadcasts():
    """4 rounds of 2 J cannot be had for 8 J: no delay would do, and the reason says what takes the energy."""
    problem = pencil_problem(7.9, 1e6, rounds=4)
    least = least_budget(Task.of(problem, SCHEMES.load("proposed")))
    assert Cheapest(Task.of(problem, SCHEMES.load("proposed"))).impossible()
    assert least["delay_s"] is None
    assert least["energy_j"] == pytest.approx(4 * (2.0 + np.log(2.0)), rel=1e-4)


@pytest.mark.parametrize("seed", range(60 if FULL else 3))
def test_most_rounds_is_the_last_number_that_fits(seed):
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, int(rng.integers(1, 5)), 30, near=float(rng.choice([1.01, 1.5, 10.0])))
    problem, scheme = Problem.of(scenario), SCHEMES.load(NAMES[seed % 6])
    problem = problem.with_rounds(90)
    most = most_rounds(Task.of(problem, scheme))
    assert 0 <= most <= 90
    if most:
        assert solved(problem.with_rounds(most), scheme)
    if most < 90:
        assert not solved(problem.with_rounds(most + 1), scheme)


def overrides(scenario: Scenario, **budget: float) -> Scenario:
    return scenario.with_overrides([f"budget.{key}={value!r}" for key, value in budget.items()])


@pytest.mark.parametrize("seed", range(40 if FULL else 4))
def test_an_infeasible_plan_tells_what_to_change(seed):
    """The budget named first is short, and raising it to the number that the sentence ends with is enough."""
    rng = np.random.default_rng(seed)
    good = random_scenario(rng, int(rng.integers(1, 5)), int(rng.choice([1, 3, 40])))
    least = least_budget(Task.of(Problem.of(good), SCHEMES.load("proposed")))
    key, share = ("delay_s", 1e-3) if seed % 2 else ("energy_j", 1e-10)
    short = overrides(good, **{key: least[key] * share})
    answer = plan(short)
    assert answer.status == "infeasible"
    assert answer.theta == np.inf
    assert not answer.segments
    assert answer.reason.startswith("budget.delay_s" if seed % 2 else "budget.energy_j")
    assert "\n" not in answer.reason
    advice = dict(re.findall(r"raise budget\.(energy_j|delay_s) to ([0-9.e+-]+[0-9])", answer.reason))
    advice |= dict(re.findall(r"or budget\.(energy_j|delay_s) to ([0-9.e+-]+[0-9])", answer.reason))
    assert set(advice) == {key for key, value in answer.least_budget.items() if value is not None}
    for key, value in advice.items():
        assert plan(overrides(short, **{key: float(value)})).status != "infeasible"


def test_the_reason_names_the_client():
    """A selecting scheme is as fast as its fastest client; a fixed selection as slow as its slowest."""
    scenario = Scenario.load("paper-mnist").with_overrides(["budget.delay_s=1", "rounds=400", "clients[3].name=attic"])
    problem = Problem.of(scenario)
    gains = problem.fleet.uplink_gain
    reason = plan(scenario).reason
    assert scenario.names[int(gains.argmax())] in reason
    reason = plan(scenario, scheme="all_clients").reason
    assert scenario.names[int(gains.argmin())] in reason
    slow = scenario.with_overrides(["clients[3].uplink_gain=1e-15", "clients[3].downlink_gain=1e-15"])
    assert "attic" in plan(slow, scheme="all_clients").reason


@pytest.mark.parametrize("name", [n for n in NAMES if n != "proposed"])
def test_a_baseline_that_cannot_finish_is_planned_shorter(name):
    """Budgets for 30 rounds of the proposed scheme, 90 asked for: θ = ∞, and as many rounds as the budgets carry."""
    scenario = random_scenario(
        np.random.default_rng(2), 3, 30, near=1.1, spread=1.5, weights="both", dense_first=False, aggregation="mean"
    ).with_overrides(["rounds=90"])
    problem, scheme = Problem.of(scenario), SCHEMES.load(name)
    answer = plan(scenario, scheme=name)
    most = most_rounds(Task.of(problem, scheme))
    assert most < 90
    assert answer.status == "infeasible"
    assert answer.theta == np.inf
    assert answer.rounds == sum(s.rounds for s in answer.segments) == most
    assert answer.least_budget is not None
    if most:
        assert f"{most} of 90 rounds" in answer.reason
        assert problem.with_rounds(most).violation(answer.segments) <= 1e-9
