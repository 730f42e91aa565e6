"""What every registered selection rule must keep."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import plan
from fedgap.planning.problem import Problem
from fedgap.planning.task import chosen_clients
from fedgap.registry import SELECTION
from tests.oracle.scenarios import CASES


@pytest.mark.parametrize("name", SELECTION.names())
def test_a_rule_selects_the_same_clients_in_every_round_and_its_plan_is_certified(name):
    scenario = Scenario.load(CASES / "n10_mnist_mean_tight.json", ["budget.energy_j=1000", "budget.delay_s=1000"])
    selected = chosen_clients(SELECTION.load(name)(scenario), scenario)
    answer = plan(scenario, selection=name)
    assert (answer.status, answer.scheme) == ("optimal", f"proposed+{name}")
    assert all((segment.selected == selected).all() for segment in answer.segments)
    assert answer.lower_bound <= answer.theta
    assert Problem.of(scenario).violation(answer.segments) <= 1e-9


@pytest.mark.parametrize("name", SELECTION.names())
def test_a_rule_names_some_client_of_the_smallest_fleet(name):
    scenario = Scenario.load(CASES / "n1_loose.json")
    assert chosen_clients(SELECTION.load(name)(scenario), scenario).tolist() == [True]


def test_the_fastest_half_is_faster_than_the_others():
    scenario = Scenario.load(CASES / "n10_mnist_mean_tight.json")
    fleet, chosen = scenario.fleet(), SELECTION.load("fastest_half")(scenario)
    assert chosen.sum() == 5
    rate = fleet.bandwidth_hz * np.log2(1.0 + fleet.max_power_w * fleet.uplink_gain / (fleet.bandwidth_hz * 3.98e-21))
    seconds = fleet.gradient_bits / rate + fleet.cycles / fleet.max_frequency_hz
    assert seconds[chosen].mean() < seconds[~chosen].mean()
