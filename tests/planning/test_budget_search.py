"""The least budgets for a target accuracy, against brute force over a fine grid of budgets."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import fedgap
from fedgap.config import Scenario
from fedgap.errors import InfeasibleError, InputError
from fedgap.planning.budget_search import BudgetSearch, rounded_up
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.problem import Problem
from fedgap.planning.solve import scheme_of

SAME_CLIENTS = replace(scheme_of("forecast"), turns=False)
CLIENT = {"downlink_gain": 2e-15, "bandwidth_hz": 1e5, "max_power_w": 0.5, "max_frequency_hz": 1e7,
          "flops_per_cycle": 1, "pue": 1.0, "capacitance": 1e-22, "phi": 1.0}
DOCUMENT = {
    "rounds": 60, "budget": {"energy_j": 20.0, "delay_s": 200.0}, "learning": {"rate": 0.1, "batch_size": 10},
    "model": {"gradient_bits": 1e5, "flops_per_sample": 1e6}, "pruning": {"max_ratio": 0.5, "dense_first": False},
    "bound": {"initial_gap": 0.2, "smoothness": 1.0, "gradient_moment": 4000.0, "parameter_moment": 8.0,
              "aggregation": "mean", "constants": "printed"},
    "server": {"power_w": 0.05, "bandwidth_hz": 1e5}, "noise_psd_w_hz": 1e-20,
    "forecast": {"start": 1.0, "rounds_power": 1.0, "steps_power": 0.7, "slowed_by_pruning": 0.6,
                 "slowed_by_divergence": 0.0, "few_clients": 0.05, "divergence": 0.0, "floor": 0.01, "spread": 0.1},
    "clients": [CLIENT | {"uplink_gain": gain} for gain in (6e-15, 3e-15, 2e-14)],
}


@pytest.fixture(scope="module")
def scenario():
    return Scenario.from_dict(DOCUMENT)


def surely(scenario, energy_j, delay_s, scheme="forecast", confidence=0.9):
    """What the certified plan of a pair of budgets reaches with the confidence."""
    changed = scenario.with_overrides([f"budget.energy_j={energy_j!r}", f"budget.delay_s={delay_s!r}"])
    plan = fedgap.plan(changed, scheme=scheme)
    if not plan.feasible:
        return 0.0
    return changed.fitted_forecast().surely(plan_features(Problem.of(changed), plan.segments), confidence)


def test_four_digits_upwards():
    assert [rounded_up(x) for x in (0.34251, 0.3425, 12345.6, 1.0, 999.91)] == [0.3426, 0.3425, 12350.0, 1.0, 1000.0]


def test_the_answers_are_those_of_a_fine_grid(scenario):
    """No budget of a grid that lies more than 3 % below the answer suffices for a plan with the same clients in all
    rounds, for which the search is made; and the answer does, with turns if they help."""
    target, budget = 0.88, scenario.budget
    answer = fedgap.budget(scenario, target, points=0)
    grid = np.exp(0.03 * np.array([-12, -8, -5, -3, -2, -1, 0]))
    for key, pair in (("least_energy", lambda x, p: (x * p.energy_j, budget.delay_s)),
                      ("least_delay", lambda x, p: (budget.energy_j, x * p.delay_s)),
                      ("both", lambda x, p: (x * p.energy_j, x * p.delay_s))):
        point = answer.answers[key].point
        assert point.surely >= target
        assert surely(scenario, point.energy_j, point.delay_s) == pytest.approx(point.surely)
        suffice = [factor for factor in grid
                   if surely(scenario, *pair(float(factor), point), SAME_CLIENTS) >= target]
        assert suffice
        assert min(suffice) >= 0.96
        assert point.plan.energy_j <= point.energy_j * (1 + 1e-9)
        assert point.plan.delay_s <= point.delay_s * (1 + 1e-9)


@pytest.mark.full
def test_more_is_asked_for_a_higher_target_and_more_confidence(scenario):
    search = {pair: BudgetSearch(scenario, *pair) for pair in
              ((0.8, 0.9), (0.86, 0.9), (0.9, 0.9), (0.86, 0.5), (0.86, 0.99))}
    least = {pair: one.least(lambda x: (x, 200.0), 20.0, close=0.003) for pair, one in search.items()}
    assert least[0.8, 0.9] < least[0.86, 0.9] < least[0.9, 0.9]
    assert least[0.86, 0.5] < least[0.86, 0.9] < least[0.86, 0.99]


@pytest.mark.full
def test_the_frontier_trades_seconds_for_joules(scenario):
    frontier = fedgap.budget(scenario, 0.86, points=4).frontier
    assert len(frontier) == 4
    assert all(a.delay_s < b.delay_s and a.energy_j > b.energy_j * 0.98
               for a, b in itertools.pairwise(frontier))
    assert all(point.surely >= 0.86 for point in frontier)


def test_a_target_out_of_reach_says_why(scenario):
    """60 rounds of three clients: 1/60 + 0.05/3 + 0.01 = 0.0433, times exp(1.2816·0.1) = 0.0493."""
    with pytest.raises(InfeasibleError, match=r"the forecast is 0\.9507 after the scenario's 60 rounds; raise rounds"):
        fedgap.budget(scenario, 0.96)
    with pytest.raises(InfeasibleError, match=r"at most .* with more rounds"):
        fedgap.budget(scenario, 0.99)


def test_without_a_spread_nothing_is_known_with_confidence(scenario):
    unknown = {key: value for key, value in DOCUMENT["forecast"].items() if key != "spread"}
    with pytest.raises(InputError, match=r"^forecast\.spread: missing"):
        fedgap.budget(Scenario.from_dict(DOCUMENT | {"forecast": unknown}), 0.8)


@pytest.mark.parametrize("values", [(0.0, 0.9), (1.0, 0.9), (0.9, 0.0), (0.9, 1.0), (float("nan"), 0.9)])
def test_shares_of_one(scenario, values):
    with pytest.raises(InputError, match=r"^(accuracy|confidence): must be above 0 and below 1"):
        fedgap.budget(scenario, values[0], confidence=values[1])
