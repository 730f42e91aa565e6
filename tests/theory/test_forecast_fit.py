"""The forecast's fit: it finds the weights that made the data, and its intervals hold what they promise."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.errors import InputError
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import WEIGHTS, Forecast, PlanFeatures
from fedgap.theory.forecast_fit import PRIOR, fit

TRUTH = Forecast(start=3.0, rounds_power=0.9, steps_power=0.6, slowed_by_pruning=0.8, slowed_by_divergence=1.5,
                 few_clients=0.06, divergence=0.08, coarse_uploads=2.0, floor=0.012, slow_start=5.0)


def drawn(count: int, seed: int) -> list[PlanFeatures]:
    random = np.random.default_rng(seed)
    return [PlanFeatures(rounds=float(np.exp(random.uniform(2, 6))), local_steps=float(2 ** random.integers(0, 6)),
                         few_clients=1.0 / random.integers(3, 40), pruning=random.uniform(0, 0.6),
                         divergence=random.uniform(0, 0.5) ** 2, upload_bits=int(random.choice([32, 32, 8, 4])))
            for _ in range(count)]


def errors(plans: list[PlanFeatures], noise: float, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.array([TRUTH.error(plan) for plan in plans]) * np.exp(noise * random.standard_normal(len(plans)))


def test_the_fit_finds_the_forecast_that_made_the_data():
    plans = drawn(200, 0)
    found = fit(plans, errors(plans, 0.0, 0))
    others = drawn(50, 1)
    wrong = [abs(np.log(found.forecast.error(plan) / TRUTH.error(plan))) for plan in others]
    assert max(wrong) < 0.05
    assert found.forecast.rounds_power == pytest.approx(0.9, rel=0.1)
    assert found.forecast.steps_power == pytest.approx(0.6, rel=0.1)


def in_turns(count: int, seed: int) -> list[PlanFeatures]:
    """Plans in whose rounds there are up to ten times fewer clients, and labels further from the target's, than in all
    rounds together."""
    random = np.random.default_rng(seed)
    return [replace(plan, few_at_once=min(1.0, plan.few_clients * 10 ** random.uniform(0, 1)),
                    divergence_at_once=plan.divergence + random.uniform(0, 0.8)) for plan in drawn(count, seed)]


def test_the_fit_tells_what_single_rounds_do_from_what_all_rounds_do():
    """Here the truth has g = 0.7 and q = 0.35, and the fit must not blame the lasting error of few clients for g."""
    truth = replace(TRUTH, slowed_by_few_clients=0.7, drift_power=0.35)
    plans = in_turns(300, 30)
    found = fit(plans, [truth.error(plan) for plan in plans]).forecast
    for name in WEIGHTS:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.1), name
    blind = fit([replace(plan, few_at_once=plan.few_clients, divergence_at_once=plan.divergence) for plan in plans],
                [truth.error(plan) for plan in plans]).forecast
    others = in_turns(50, 31)
    assert max(abs(np.log(found.error(plan) / truth.error(plan))) for plan in others) < 0.02
    assert max(abs(np.log(blind.error(plan) / truth.error(plan))) for plan in others) > 0.2


def test_intervals_of_single_runs_cover_what_they_promise():
    noise, plans = 0.1, drawn(60, 2)
    found = fit(plans, errors(plans, noise, 3))
    others = drawn(400, 4)
    accuracies = 1.0 - errors(others, noise, 5)
    inside = [(p := found.predict(plan)).low <= accuracy <= p.high for plan, accuracy in zip(others, accuracies,
                                                                                             strict=True)]
    assert 0.83 <= np.mean(inside) <= 0.97


def test_the_mean_over_seeds_is_more_certain_than_one_run():
    plans = drawn(40, 6) * 2
    found = fit(plans, errors(plans, 0.1, 7), plans=list(range(40)) * 2)
    assert 0.06 < found.seed_spread <= found.spread
    one, mean = found.predict(plans[0]), found.predict(plans[0], of_mean=True)
    assert one.low < mean.low < mean.accuracy < mean.high < one.high


def test_a_few_wild_runs_do_not_move_the_fit():
    plans = drawn(100, 8)
    clean = errors(plans, 0.05, 9)
    wild = clean.copy()
    wild[:5] = 0.9
    a, b = fit(plans, clean), fit(plans, wild)
    moved = [abs(np.log(a.forecast.error(plan) / b.forecast.error(plan))) for plan in drawn(50, 10)]
    assert np.median(moved) < 0.05


def test_what_the_runs_do_not_show_comes_from_the_prior():
    plans = [replace(plan, upload_bits=32) for plan in drawn(40, 11)]
    prior = replace(PRIOR, coarse_uploads=3.0)
    found = fit(plans, errors(plans, 0.05, 12), prior=prior)
    assert found.forecast.coarse_uploads == pytest.approx(3.0, rel=0.02)


def test_too_few_runs_are_refused():
    plans = drawn(5, 0)
    with pytest.raises(InputError, match="forecast: needs at least 8 runs"):
        fit(plans, errors(plans, 0.0, 0))


def test_a_plan_beyond_the_fitted_runs_is_named():
    plans = drawn(40, 13)
    found = fit(plans, errors(plans, 0.05, 14))
    assert found.outside(plans[0]) == ()
    assert found.outside(replace(plans[0], local_steps=64.0)) == ("local_steps",)
    assert found.seen("local_steps", (16, 32, 64)) == (16, 32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-3, 10.0), min_size=len(WEIGHTS), max_size=len(WEIGHTS)), st.integers(0, 1000))
def test_a_higher_confidence_has_a_wider_interval(weights, seed):
    weights = dict(zip(WEIGHTS, weights, strict=True)) | {"drift_power": weights[-1] / 10.0}  # lest 32^q be too large
    forecast = FittedForecast(Forecast(**weights), "", spread=0.2)
    (plan,) = drawn(1, seed)
    narrow, wide = (replace(forecast, confidence=confidence).predict(plan) for confidence in (0.5, 0.95))
    assert wide.low <= narrow.low <= narrow.accuracy <= narrow.high <= wide.high


def test_uncertain_weights_widen_the_interval_by_hand():
    """ln(error) = ln(floor) alone: its slope in ln(floor) is 1, so that the variances 0.3² and 0.4² add up to 0.5²."""
    floor_only = Forecast(*[0.0] * 8, floor=0.1)
    covariance = np.zeros((12, 12))
    covariance[8, 8] = 0.3**2
    found = FittedForecast(floor_only, "", spread=0.4, covariance=tuple(map(tuple, covariance)))
    (plan,) = drawn(1, 0)
    assert found.deviation(plan) == pytest.approx(0.5)
    assert found.predict(plan).low == pytest.approx(1 - 0.1 * np.exp(1.6448536 * 0.5))


def test_a_covariance_of_the_first_ten_weights_says_nothing_about_the_others():
    """The forecast was written before there were g and q: these are 0, and so are their rows and columns."""
    old = dict.fromkeys(WEIGHTS[:10], 0.1) | {"spread": 0.4, "covariance": (0.01 * np.eye(10)).tolist()}
    read = FittedForecast.from_dict(old)
    assert WEIGHTS[10:] == ("slowed_by_few_clients", "drift_power")
    assert (read.forecast.slowed_by_few_clients, read.forecast.drift_power) == (0.0, 0.0)
    expected = np.zeros((12, 12))
    expected[:10, :10] = 0.01 * np.eye(10)
    np.testing.assert_array_equal(read.covariance, expected)
    assert FittedForecast.from_dict(read.to_dict()) == read
    full = FittedForecast.from_dict(old | {"covariance": (0.01 * np.eye(12)).tolist()})
    (plan,) = drawn(1, 0)
    # The error does not depend on weights of 0, so that their variance makes no difference.
    assert full.deviation(plan) == pytest.approx(read.deviation(plan), rel=1e-12)
    assert FittedForecast.from_dict(dict.fromkeys(WEIGHTS, 0.1)).covariance == ()


def test_runs_that_still_learn_scatter_more_by_hand():
    """Half of the error is still to be learnt: the variance is 0.3² + (0.8·0.5)² = 0.5²."""
    half = Forecast(start=0.1, rounds_power=0.0, steps_power=0.0, slowed_by_pruning=0.0, slowed_by_divergence=0.0,
                    few_clients=0.0, divergence=0.0, coarse_uploads=0.0, floor=0.1)
    found = FittedForecast(half, "", spread=0.3, learning_spread=0.8)
    assert found.deviation(drawn(1, 0)[0]) == pytest.approx(0.5)


def test_the_fit_tells_the_scatter_of_learning_from_the_rest():
    random = np.random.default_rng(1)
    plans = drawn(400, 20)
    truth = FittedForecast(TRUTH, "", spread=0.05, learning_spread=0.3)
    values = [TRUTH.error(plan) * np.exp(truth.deviation(plan) * random.standard_normal()) for plan in plans]
    found = fit(plans, values)
    ratios = [found.deviation(plan) / truth.deviation(plan) for plan in plans]
    assert all(0.6 < ratio < 1.4 for ratio in np.quantile(ratios, [0.05, 0.5, 0.95]))
    assert 0.2 < found.learning_spread < 0.4


def test_the_first_rounds_count_for_little_by_hand():
    """With r₀ = 10, ten rounds are worth 10/e of rounds that count fully."""
    plan = PlanFeatures(rounds=10, local_steps=1, few_clients=0.0, pruning=0.0, divergence=0.0)
    slow = Forecast(start=1.0, rounds_power=1.0, steps_power=1.0, slowed_by_pruning=0.0, slowed_by_divergence=0.0,
                    few_clients=0.0, divergence=0.0, coarse_uploads=0.0, floor=0.0, slow_start=10.0)
    assert slow.error(plan) == pytest.approx(np.e / 10)


def test_what_is_reached_with_a_confidence():
    """An error of 2 % with a spread of 10 %: 1 − 0.02·exp(1.2816·0.1) at 0.9, and the forecast itself at 0.5."""
    weights = Forecast(start=1.0, rounds_power=1.0, steps_power=0.0, slowed_by_pruning=0.0, slowed_by_divergence=0.0,
                       few_clients=0.0, divergence=0.0, coarse_uploads=0.0, floor=0.01)
    fitted = FittedForecast(weights, "by hand", spread=0.1)
    plan = PlanFeatures(rounds=100, local_steps=1, few_clients=0.1, pruning=0.0, divergence=0.0)
    assert fitted.surely(plan, 0.5) == pytest.approx(0.98)
    assert fitted.surely(plan, 0.9) == pytest.approx(1.0 - 0.02 * 1.13673, rel=1e-6)
