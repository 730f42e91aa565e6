"""The keys of physical limits and cost curves: what they become, and one-line errors."""

import numpy as np
import pytest

from fedgap import Scenario
from fedgap.errors import InputError

SMALL = ["fleet.count=3"]
CURVE = "model.cost_curve={ratio: [0, 0.5], bits: [1, 0.5], flops: [1, 0.7]}"


def test_limits_reach_the_fleet():
    keys = ["clients[0].min_power_w=0.01", "clients[1].min_frequency_hz=2e8", "clients[2].idle_power_w=1.5",
            "clients[0].battery_j=40"]
    fleet = Scenario.load("paper-mnist", [*SMALL, *keys, CURVE]).fleet()
    assert fleet.min_power_w.tolist() == [0.01, 0.0, 0.0]
    assert fleet.min_frequency_hz.tolist() == [0.0, 2e8, 0.0]
    assert fleet.idle_power_w.tolist() == [0.0, 0.0, 1.5]
    assert fleet.battery_j.tolist() == [40.0, np.inf, np.inf]
    assert fleet.cost_share(np.array([0.0, 0.25, 0.5])) == pytest.approx([1.0, 0.85, 0.7])


def test_a_scenario_without_them_has_the_hash_it_had():
    plain = Scenario.load("paper-mnist", SMALL).to_dict()
    assert "cost_curve" not in plain["model"]
    assert not {"min_power_w", "min_frequency_hz", "idle_power_w", "battery_j"} & set(plain["clients"][0])


@pytest.mark.parametrize(("keys", "message"), [
    (["clients[0].min_power_w=1"], r"^clients\[0\].min_power_w: must be at most max_power_w, 0.5; got 1"),
    (["clients[1].min_frequency_hz=1e12"], r"^clients\[1\].min_frequency_hz: must be at most max_frequency_hz"),
    (["clients[0].battery_j=0"], r"^clients\[0\].battery_j: must be above 0 J"),
    (["model.cost_curve={ratio: [0, 0.3], bits: [1, 0.7], flops: [1, 0.7]}"], r"must reach the largest max_ratio"),
    (["model.cost_curve={ratio: [0.1, 0.9], bits: [1, 0.7], flops: [1, 0.7]}"], r"ratio: must begin with 0"),
    (["model.cost_curve={ratio: [0, 0.9], bits: [1, 0.7, 0.5], flops: [1, 0.7]}"],
     r"bits: must have one value per ratio, 2; got 3"),
    (["model.cost_curve={ratio: [0, 0.9], bits: [0.9, 0.7], flops: [1, 0.7]}"], r"bits: must begin with 1, never rise"),
    (["model.cost_curve={ratio: [0, 0.3, 0.9], bits: [1, 0.9, 0.2], flops: [1, 0.7, 0.5]}"],
     r"bits: must be convex .* fedgap.convex_upper_fit"),
])
def test_errors_name_the_key(keys, message):
    with pytest.raises(InputError, match=message):
        Scenario.load("paper-mnist", [*SMALL, *keys])
