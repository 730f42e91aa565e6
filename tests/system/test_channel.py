"""Properties of the two rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.system import Fleet, downlink_rate, uplink_rate
from tests.system.strategies import checked, fleets

growth = st.floats(1.001, 1e6)


def uplink(fleet: Fleet, power_w: np.ndarray) -> np.ndarray:
    return uplink_rate(power_w, fleet.uplink_gain, fleet.bandwidth_hz, fleet.uplink_noise_psd_w_hz)


def downlink(fleet: Fleet, power_w: np.ndarray) -> np.ndarray:
    return downlink_rate(power_w, fleet.downlink_gain, fleet.server_bandwidth_hz, fleet.downlink_noise_psd_w_hz)


@checked
@given(fleets(), growth)
def test_rates_rise_with_power(fleet: Fleet, factor: float) -> None:
    assert np.all(uplink(fleet, fleet.max_power_w * factor) > uplink(fleet, fleet.max_power_w))
    assert np.all(downlink(fleet, fleet.server_power_w * factor) > downlink(fleet, fleet.server_power_w))


@checked
@given(fleets(extreme=True), growth)
def test_rates_never_fall_with_power_anywhere_in_the_valid_range(fleet: Fleet, factor: float) -> None:
    assert np.all(uplink(fleet, fleet.max_power_w * factor) >= uplink(fleet, fleet.max_power_w))
    assert np.all(downlink(fleet, fleet.server_power_w * factor) >= downlink(fleet, fleet.server_power_w))


@checked
@given(fleets(), growth)
def test_power_has_diminishing_returns(fleet: Fleet, factor: float) -> None:
    assert np.all(uplink(fleet, fleet.max_power_w * factor) <= factor * uplink(fleet, fleet.max_power_w) * (1 + 1e-12))


@checked
@given(fleets(), growth)
def test_rates_rise_with_bandwidth_up_to_the_power_limit(fleet: Fleet, factor: float) -> None:
    power, gain, band, noise = fleet.max_power_w, fleet.uplink_gain, fleet.bandwidth_hz, fleet.uplink_noise_psd_w_hz
    wide = uplink_rate(power, gain, band * factor, noise)
    assert np.all(wide >= uplink_rate(power, gain, band, noise) * (1 - 1e-12))
    assert np.all(wide <= power * gain / (noise * np.log(2.0)) * (1 + 1e-12))


@pytest.mark.parametrize("bits", [1, 2, 10, 31, 50])
def test_a_power_of_two_gives_whole_bits_per_hertz(bits: int) -> None:
    # 1 + p·h/(c·U₀) = 2^bits with h = U₀ = 1 and c = 1000: r = bits·c exactly
    rate = uplink_rate(np.array([1000.0 * (2.0**bits - 1.0)]), np.array([1.0]), np.array([1000.0]), np.array(1.0))
    assert rate.item() == pytest.approx(1000.0 * bits, rel=1e-15)


def test_a_whisper_keeps_all_its_digits() -> None:
    # At an SNR of 10⁻²⁰, 1 + SNR rounds to 1; ln(1 + x) = x there to 20 digits, so r = p·h/(U₀·ln 2)
    rate = uplink_rate(np.array([1e-20]), np.array([1.0]), np.array([1.0]), np.array(1.0))
    assert rate.item() == pytest.approx(1e-20 / 0.693_147_180_559_945_309_4, rel=1e-15)


def test_silence_carries_nothing() -> None:
    assert uplink_rate(np.array([0.0]), np.array([1e-5]), np.array([1e5]), np.array(3.98e-21)).item() == 0.0
