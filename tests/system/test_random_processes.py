"""The world's random processes against theory: means, distributions and autocorrelations."""

import numpy as np
import pytest
from scipy import special, stats

from fedgap.streams import stream
from fedgap.system.random_processes import DAY_S, moving_shadows, on_and_off, rayleigh_fading

CLIENTS = 4000
"""Independent clients over which means are taken: their error is about 1/√4000 = 0.016 standard deviations."""


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first, second)[0, 1])


def test_fading_is_exponential_with_mean_one() -> None:
    gain = rayleigh_fading(2, CLIENTS, 5.0, 0.01, stream(0, "world"))[1]
    assert abs(gain.mean() - 1.0) < 4.0 / np.sqrt(CLIENTS)
    assert stats.kstest(gain, "expon").pvalue > 1e-3


def test_fading_follows_clarkes_spectrum() -> None:
    doppler, step = 5.0, 0.02
    gain = rayleigh_fading(12, CLIENTS, doppler, step, stream(1, "world"))
    for lag in range(1, 12):
        expected = special.j0(2.0 * np.pi * doppler * lag * step) ** 2
        assert correlation(gain[0], gain[lag]) == pytest.approx(expected, abs=0.07), lag


def test_a_client_that_stands_still_does_not_fade() -> None:
    gain = rayleigh_fading(5, 3, 0.0, 1.0, stream(0, "world"))
    assert np.allclose(gain, gain[0])


def test_shadowing_is_log_normal_and_forgets_with_the_distance() -> None:
    shadows = 10.0 * np.log10(moving_shadows(20, CLIENTS, 7.82, 13.0, 1.4, 2.0, stream(2, "world")))
    assert stats.kstest(shadows[-1] / 7.82, "norm").pvalue > 1e-3
    for lag in (1, 5, 15):
        expected = np.exp(-1.4 * 2.0 * lag / 13.0)
        assert correlation(shadows[3], shadows[3 + lag]) == pytest.approx(expected, abs=0.07)


def test_clients_come_and_go_with_the_stated_stays() -> None:
    on = on_and_off(60, CLIENTS, mean_on_s=30.0, mean_off_s=10.0, step_s=2.0, random=stream(3, "world"))
    share, remembered = 0.75, np.exp(-2.0 * (1 / 30 + 1 / 10))
    assert on.mean() == pytest.approx(share, abs=0.01)
    stays = on[1:][on[:-1]].mean()
    assert stays == pytest.approx(share + (1 - share) * remembered, abs=0.01)
    assert on[1:][~on[:-1]].mean() == pytest.approx(share * (1 - remembered), abs=0.01)


def test_a_daily_pattern_moves_who_is_there() -> None:
    on = on_and_off(24, CLIENTS, 3600.0, 3600.0, DAY_S / 24, stream(4, "world"), daily=0.8)
    # At six o'clock stays on are 1.8 times as long and those off 1.8 times as short: 1.8²/(1 + 1.8²) = 0.764.
    assert on[6:9].mean() == pytest.approx(0.75, abs=0.05)
    assert on[18:21].mean() == pytest.approx(0.2**2 / (1 + 0.2**2), abs=0.05)
