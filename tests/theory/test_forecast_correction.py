"""Validation accuracies correct the forecast of a run that is under way."""

from dataclasses import replace

import numpy as np
import pytest

from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import Forecast, PlanFeatures
from fedgap.theory.forecast_correction import EXCESS, NOISE, SHARES, SeenAccuracy, corrected

PLAN = PlanFeatures(rounds=120, local_steps=4, few_clients=0.1, pruning=0.0, divergence=0.0)
FITTED = FittedForecast(Forecast(start=2.0, rounds_power=0.8, steps_power=0.5, slowed_by_pruning=0.5,
                                 slowed_by_divergence=1.0, few_clients=0.1, divergence=0.1, coarse_uploads=0.0,
                                 floor=0.01), "a test", spread=0.2)
MANY = 10**9
"""Validation samples without sampling noise."""


def test_nothing_seen_is_the_plain_forecast():
    assert corrected(FITTED, PLAN, [], 100) == FITTED.predict(PLAN)


def test_half_way_by_hand():
    """At half the rounds g and s are those of the table; the error is twice what was expected there."""
    middle = SHARES.index(0.5)
    half = FITTED.forecast.error(replace(PLAN, rounds=60))
    error = 2.0 * half * np.exp(0.2 * EXCESS[middle])
    found = corrected(FITTED, PLAN, [SeenAccuracy(60, 1.0 - error)], MANY)
    gain = 1.0 / (1.0 + NOISE[middle] ** 2)
    final = FITTED.forecast.error(PLAN) * 2.0**gain
    assert found.accuracy == pytest.approx(1.0 - final, abs=1e-6)
    assert found.low == pytest.approx(1.0 - final * np.exp(1.6448536 * 0.2 * np.sqrt(1.0 - gain)), abs=1e-6)


def test_at_the_end_the_measurement_wins():
    found = corrected(FITTED, PLAN, [SeenAccuracy(60, 0.5), SeenAccuracy(120, 0.9)], MANY)
    assert found.accuracy == pytest.approx(0.9, abs=1e-4)
    assert found.high - found.low < 1e-3


def test_few_validation_samples_count_little():
    seen = [SeenAccuracy(120, 0.8)]
    shifts = [FITTED.predict(PLAN).accuracy - corrected(FITTED, PLAN, seen, samples).accuracy
              for samples in (10, 100, 10_000)]
    assert 0.0 < shifts[0] < shifts[1] < shifts[2]


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 0.95])
def test_the_interval_never_widens(share):
    for accuracy in (0.0, 0.5, 0.9, 1.0):
        found = corrected(FITTED, PLAN, [SeenAccuracy(round(share * 120), accuracy)], 1000)
        assert np.log((1 - found.low) / (1 - found.high)) <= 2 * 1.6449 * 0.2 + 1e-9
        assert 0.0 <= found.low <= found.accuracy <= found.high <= 1.0
