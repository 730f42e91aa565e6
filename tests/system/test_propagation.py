"""Worked by hand from TR 38.901: UMi street canyon, 3.5 GHz, h_BS = 10 m, h_UT = 1.5 m."""

import numpy as np
import pytest

from fedgap.streams import stream
from fedgap.system import propagation


def test_breakpoint_distance():
    # 4·(10 − 1)·(1.5 − 1)·3.5e9/3e8 = 18·11.6667 = 210 m
    assert propagation.breakpoint_distance_m(3.5e9, 10.0, 1.5) == pytest.approx(210.0)


def test_line_of_sight_probability():
    # 18/100 + e^(−100/36)·(1 − 0.18) = 0.18 + 0.0621765·0.82 = 0.2309847
    found = propagation.line_of_sight_probability(np.array([5.0, 18.0, 100.0]))
    np.testing.assert_allclose(found, [1.0, 1.0, 0.2309847], rtol=1e-6)


def test_path_loss_in_line_of_sight_before_the_breakpoint():
    # d_3D = √(100² + 8.5²) = 100.360600; 32.4 + 21·2.0015634 + 20·0.5440680 = 85.314192
    assert propagation.path_loss_los_db(np.array(100.0), 3.5e9) == pytest.approx(85.314192, abs=1e-5)


def test_path_loss_in_line_of_sight_beyond_the_breakpoint():
    # d_3D = √(500² + 8.5²) = 500.072245; 32.4 + 40·2.6990327 + 10.8813609 − 9.5·log10(210² + 8.5²)
    # = 32.4 + 107.961309 + 10.881361 − 9.5·4.6451495 = 107.113750
    assert propagation.path_loss_los_db(np.array(500.0), 3.5e9) == pytest.approx(107.113750, abs=1e-4)


def test_path_loss_is_continuous_at_the_breakpoint():
    below, above = propagation.path_loss_los_db(np.array([210.0 - 1e-9, 210.0 + 1e-9]), 3.5e9)
    assert below == pytest.approx(above, abs=1e-6)


def test_path_loss_without_line_of_sight():
    # 22.4 + 35.3·2.0015634 + 21.3·0.5440680 − 0 = 104.643838, above the 85.3 of line of sight
    assert propagation.path_loss_nlos_db(np.array(100.0), 3.5e9) == pytest.approx(104.643838, abs=1e-5)


def test_no_obstacle_lowers_the_loss():
    distance = np.geomspace(10, 5000, 50)
    for carrier in (0.5e9, 3.5e9, 28e9, 100e9):
        clear = propagation.path_loss_los_db(distance, carrier)
        assert np.all(propagation.path_loss_nlos_db(distance, carrier) >= clear)
        assert np.all(np.diff(clear) > 0)


@pytest.mark.parametrize("k_factor", [0.0, 1.0, 8.0])
def test_fading_has_unit_mean_and_the_variance_of_its_k_factor(k_factor):
    """|g|² of a Rician channel has variance (2K + 1)/(K + 1)²: 1 for Rayleigh."""
    power = propagation.rician_power(stream(0, "fading"), np.full(200_000, k_factor))
    assert power.mean() == pytest.approx(1.0, abs=0.01)
    assert power.var() == pytest.approx((2 * k_factor + 1) / (k_factor + 1) ** 2, abs=0.02)


def test_rayleigh_power_is_exponential():
    power = propagation.rayleigh_power(stream(1, "fading"), 200_000)
    for level in (0.1, 0.5, 1.0, 3.0):
        assert np.mean(power > level) == pytest.approx(np.exp(-level), abs=0.005)


def test_path_gain_takes_the_loss_and_the_shadowing_of_its_line_of_sight():
    # In sight: 10^(−(85.314192 + 4·0.5)/10); blocked: 10^(−(104.643838 − 7.82)/10).
    distance, in_sight, shadowing = np.array([100.0, 100.0]), np.array([True, False]), np.array([0.5, -1.0])
    gain = propagation.path_gain(distance, in_sight, shadowing, 3.5e9)
    np.testing.assert_allclose(10 * np.log10(gain), [-87.314192, -96.823838], atol=1e-5)
