"""The built-in forecasts are those of the committed runs, and the table in the module is what the tool writes."""

import ast
import json
import os

import numpy as np
import pytest

from fedgap.evidence.forecast_results import features_of
from fedgap.theory.built_in_forecasts import FORECASTS
from fedgap.theory.fitted_forecast import FittedForecast
from tools.built_in_forecasts import MODULE, NAMES, RESULTS, forecast, table

FULL = os.environ.get("FEDGAP_FULL") == "1"


@pytest.fixture(scope="module")
def results():
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def rows_of(results, name):
    """The rows to which a forecast is fitted, found by their titles again."""
    _, data, fleets = NAMES[name]
    starts = tuple(f"{data}, {fleet.removeprefix('the ')}" for fleet in fleets)
    return [row for panel in results["panels"] if panel["title"].startswith(starts) for row in panel.get("rows", [])]


def test_every_forecast_of_the_module_has_a_name_in_the_tool():
    assert set(NAMES) <= set(FORECASTS)
    assert {forecast.origin.partition(":")[0] for forecast in FORECASTS.values()} == {"built in"}


@pytest.mark.parametrize("name", NAMES if FULL else ["resnet20-cifar10"])
def test_a_forecast_is_a_fit_to_the_committed_runs(results, name):
    """To one percent of the error, because the last digits of a fit depend on the processor."""
    fresh, built_in = FittedForecast.from_dict(forecast(results, name)), FORECASTS[name]
    rows = rows_of(results, name)
    assert built_in.runs == fresh.runs == len(rows)
    assert built_in.origin == fresh.origin
    assert built_in.spread == pytest.approx(fresh.spread, rel=0.02)
    assert built_in.ranges.keys() == fresh.ranges.keys()
    for feature, ends in fresh.ranges.items():
        assert built_in.ranges[feature] == pytest.approx(ends, rel=2e-3)
    plans = [features_of(row) for row in rows[:: max(1, len(rows) // 40)]]
    assert all(built_in.outside(plan) == () for plan in plans)
    for plan in plans:
        assert built_in.forecast.error(plan) == pytest.approx(fresh.forecast.error(plan), rel=0.01)
        assert built_in.deviation(plan) == pytest.approx(fresh.deviation(plan), rel=0.03)
    # The forecast is about these runs: the errors deviate by no more than it says.
    apart = [np.log((1.0 - row["accuracy"]) / built_in.forecast.error(features_of(row))) / built_in.deviation(
        features_of(row)) for row in rows]
    assert 0.8 < np.mean(np.abs(apart) < 1.645) < 0.97


def test_the_table_is_python_that_means_the_same():
    section = FORECASTS["resnet20-cifar10"].to_dict()
    text = table({"resnet20-cifar10": section, "another": section})
    assert max(map(len, text.splitlines())) <= 120
    read = ast.literal_eval(text.partition(" = ")[2])
    assert list(read) == ["resnet20-cifar10", "another"]
    assert all(found == section for found in read.values())


def test_the_module_has_what_the_tool_would_write_from_its_own_numbers():
    """Nobody has written a number by hand, or in another form."""
    written = MODULE.read_text(encoding="utf-8")
    assert table({name: FORECASTS[name].to_dict() for name in NAMES}) in written
