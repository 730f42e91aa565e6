"""The section ``forecast`` of a scenario: its weights, and what was written before clients could take turns."""

import numpy as np
import pytest

from fedgap import Scenario
from fedgap.errors import InputError
from fedgap.theory.built_in_forecasts import FORECASTS
from fedgap.theory.forecast import FEATURES, WEIGHTS

FIRST = {"start": 1.5, "rounds_power": 0.8, "steps_power": 0.7, "slowed_by_pruning": 0.5, "slowed_by_divergence": 1.0,
         "few_clients": 0.05, "divergence": 0.1, "coarse_uploads": 1.0, "floor": 0.005, "slow_start": 2.0}


def scenario_with(forecast: dict) -> Scenario:
    document = Scenario.load("paper-mnist").to_dict()
    return Scenario.from_dict(document | {"forecast": forecast})


def test_the_keys_are_the_weights_and_the_features():
    ranges = {name: [0.0, 1.0] for name in FEATURES}
    section = scenario_with(FIRST | {"slowed_by_few_clients": 0.3, "drift_power": 0.2, "ranges": ranges})
    fitted = section.fitted_forecast()
    assert {name: getattr(fitted.forecast, name) for name in WEIGHTS} == FIRST | {
        "slowed_by_few_clients": 0.3, "drift_power": 0.2}
    assert fitted.ranges.keys() == set(FEATURES)
    assert Scenario.from_dict(section.to_dict()).fitted_forecast() == fitted


def test_a_forecast_of_ten_weights_means_what_it_meant():
    """Its covariance has ten rows. g and q are 0, and nothing is uncertain about them."""
    old = 0.01 * np.eye(10) + 0.001
    scenario = scenario_with(FIRST | {"covariance": old.tolist()})
    fitted = scenario.fitted_forecast()
    assert (fitted.forecast.slowed_by_few_clients, fitted.forecast.drift_power) == (0.0, 0.0)
    expected = np.zeros((12, 12))
    expected[:10, :10] = old
    np.testing.assert_array_equal(fitted.covariance, expected)
    assert Scenario.from_dict(scenario.to_dict()).fitted_forecast() == fitted


def test_a_covariance_of_all_weights_is_taken_as_it_is():
    full = (0.01 * np.eye(12)).tolist()
    assert np.array_equal(scenario_with(FIRST | {"covariance": full}).fitted_forecast().covariance, full)
    like = scenario_with({"like": "lenet5-mnist", "floor": 0.02}).fitted_forecast()
    assert like.covariance == FORECASTS["lenet5-mnist"].covariance
    assert like.forecast.drift_power == FORECASTS["lenet5-mnist"].forecast.drift_power


@pytest.mark.parametrize("rows", [np.zeros((11, 11)), np.zeros((10, 12)), np.zeros((12, 10)), np.zeros((1, 1))])
def test_another_size_is_refused(rows):
    with pytest.raises(InputError, match=r"^forecast\.covariance: must have 12 rows of 12 numbers, .*\(or 10, for all"):
        scenario_with(FIRST | {"covariance": rows.tolist()})


@pytest.mark.parametrize("name", ["slowed_by_few_clients", "drift_power"])
def test_the_new_weights_are_never_negative(name):
    with pytest.raises(InputError, match=rf"^forecast\.{name}: must be at least 0"):
        scenario_with(FIRST | {name: -0.1})
