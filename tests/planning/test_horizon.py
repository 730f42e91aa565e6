"""R is chosen too: against every R; and Ctrl-C wherever a solver may be, as tests can press it."""

import os

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import plan
from fedgap.planning.problem import Problem
from tests.oracle.scenarios import CASES
from tests.planning.regimes import random_scenario

FULL = os.environ.get("FEDGAP_FULL") == "1"
CASE = Scenario.load(CASES / "n10_mnist_mean_tight.json")


@pytest.mark.parametrize("seed", range(40 if FULL else 2))
def test_no_other_number_of_rounds_is_better(seed):
    """θ over all R up to the scenario's, which the budgets may not carry."""
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, int(rng.integers(1, 4)), 6).with_overrides(["rounds=9"])
    scenario = scenario.with_overrides([f"bound.initial_gap={10.0 ** rng.uniform(-4.0, 2.0)!r}"])
    chosen = plan(scenario, horizon=True)
    fixed = [plan(scenario.with_overrides([f"rounds={r}"])) for r in range(1, 10)]
    assert chosen.theta == pytest.approx(min(answer.theta for answer in fixed), rel=1e-6)
    assert chosen.theta == pytest.approx(fixed[chosen.rounds - 1].theta, rel=1e-9)
    assert Problem.of(scenario).with_rounds(chosen.rounds).violation(chosen.segments) <= 1e-9
    assert chosen.scenario_hash == scenario.hash()


def pressed(scenario: Scenario, when: int, **options):
    """Plan, with Ctrl-C at the ``when``-th report of progress: the plan, None where there is none, and the reports."""
    calls = []

    def progress(*report):
        calls.append(report)
        if len(calls) == when:
            raise KeyboardInterrupt

    try:
        return plan(scenario, progress=progress, **options), len(calls)
    except KeyboardInterrupt:  # pytest would end
        return None, len(calls)


@pytest.mark.parametrize("when", [1, 2])
def test_ctrl_c_keeps_the_best_plan_so_far(when):
    answer, reports = pressed(CASE, when)
    assert reports == when  # it stopped there
    assert answer.reason.startswith("interrupted")
    assert Problem.of(CASE).violation(answer.segments) <= 1e-9


def test_ctrl_c_keeps_the_best_number_of_rounds_so_far():
    answer, reports = pressed(CASE, 2, horizon=True)
    assert reports == 2
    assert answer is not None
    assert answer.reason.startswith("interrupted")
    assert answer.feasible


def test_ctrl_c_ends_the_search_over_a_large_mixture(monkeypatch):
    scenario = Scenario.load("city", ["fleet.count=4", "bound.aggregation=mixture", "rounds=8", "budget.delay_s=24"])
    monkeypatch.setattr("fedgap.planning.oracles.oracle.ENUMERATED_CLIENTS", 0)
    answer, reports = pressed(scenario, 2)
    assert reports == 2
    assert answer.reason.startswith("interrupted")


def test_ctrl_c_before_the_first_point_is_no_infeasible_start(monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedgap.planning.alternating.algorithm.successive_approximation", press)
    answer, _ = pressed(CASE, 1, solver="alternating")
    assert answer is None or answer.status != "infeasible"
