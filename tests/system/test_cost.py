"""Properties of a round's delay and energy."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.system import (
    Fleet,
    RoundCost,
    broadcast_energy,
    computation_delay,
    computation_energy,
    download_delay,
    round_cost,
    upload_delay,
    upload_energy,
)
from tests.system.strategies import EVERYDAY, EVERYDAY_SERVER, checked, decisions, fleets

PARTS = [field.name for field in fields(RoundCost)]
TOTALS = ["client_s", "client_j", "delay_s", "energy_j"]
close = {"rtol": 1e-12, "atol": 0.0}


@checked
@given(st.data(), st.floats(0.0, 0.99))
def test_computing_and_uploading_scale_with_what_is_kept(data: st.DataObject, kept: float) -> None:
    fleet = data.draw(fleets())
    _, _, power, frequency = data.draw(decisions(fleet))
    dense, ratio = np.zeros(fleet.size), np.full(fleet.size, 1.0 - kept)
    for part, knob in [
        (computation_delay, frequency),
        (computation_energy, frequency),
        (upload_delay, power),
        (upload_energy, power),
    ]:
        np.testing.assert_allclose(part(fleet, ratio, knob), (1.0 - ratio) * part(fleet, dense, knob), **close)


@checked
@given(st.data())
def test_pruning_leaves_the_downlink_alone(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    selected, ratio, power, frequency = data.draw(decisions(fleet))
    pruned = round_cost(fleet, selected, ratio, power, frequency)
    dense = round_cost(fleet, selected, np.zeros(fleet.size), power, frequency)
    np.testing.assert_array_equal(pruned.download_s, dense.download_s)
    np.testing.assert_array_equal(pruned.broadcast_j, dense.broadcast_j)


@checked
@given(st.data(), st.floats(1.001, 100.0))
def test_a_faster_clock_trades_energy_for_time(data: st.DataObject, factor: float) -> None:
    fleet = data.draw(fleets())
    _, ratio, _, frequency = data.draw(decisions(fleet))
    delay, energy = computation_delay(fleet, ratio, frequency), computation_energy(fleet, ratio, frequency)
    np.testing.assert_allclose(computation_delay(fleet, ratio, factor * frequency), delay / factor, **close)
    np.testing.assert_allclose(computation_energy(fleet, ratio, factor * frequency), energy * factor**2, **close)


@checked
@given(st.data(), st.floats(1.001, 100.0))
def test_a_louder_upload_trades_energy_for_time(data: st.DataObject, factor: float) -> None:
    fleet = data.draw(fleets())
    _, ratio, power, _ = data.draw(decisions(fleet))
    assert np.all(upload_delay(fleet, ratio, factor * power) < upload_delay(fleet, ratio, power))
    # p/r(p) rises, for r is concave with r(0) = 0
    assert np.all(upload_energy(fleet, ratio, factor * power) >= upload_energy(fleet, ratio, power) * (1 - 1e-12))


@checked
@given(st.data())
def test_the_slowest_selected_client_sets_the_pace_and_all_selected_pay(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    selected, ratio, power, frequency = data.draw(decisions(fleet))
    cost = round_cost(fleet, selected, ratio, power, frequency)
    seconds = computation_delay(fleet, ratio, frequency) + upload_delay(fleet, ratio, power) + download_delay(fleet)
    joules = computation_energy(fleet, ratio, frequency) + upload_energy(fleet, ratio, power)
    chosen = np.flatnonzero(selected)
    assert cost.delay_s.item() == pytest.approx(max([seconds[n] for n in chosen], default=0.0), rel=1e-12)
    spent = sum(joules[n] for n in chosen) + broadcast_energy(fleet).item()
    assert cost.energy_j.item() == pytest.approx(spent, rel=1e-12)
    if chosen.size:
        assert seconds[cost.straggler] == pytest.approx(cost.delay_s.item(), rel=1e-12)
        assert selected[cost.straggler]


@checked
@given(fleets(most=5))
def test_the_broadcast_reaches_the_worst_client_selected_or_not(fleet: Fleet) -> None:
    worst = int(np.argmax(download_delay(fleet)))
    selected = np.ones(fleet.size, dtype=np.bool_)
    selected[worst] = False
    cost = round_cost(fleet, selected, np.zeros(fleet.size), fleet.max_power_w, fleet.max_frequency_hz)
    assert cost.broadcast_j.item() == pytest.approx(
        fleet.server_power_w.item() * download_delay(fleet)[worst], rel=1e-12
    )
    assert cost.download_s[worst] == 0.0


@checked
@given(st.data(), st.sampled_from([0.0, np.nan, np.inf, -1.0]))
def test_what_is_written_for_unselected_clients_does_not_matter(data: st.DataObject, junk: float) -> None:
    fleet = data.draw(fleets())
    selected, *rest = data.draw(decisions(fleet))
    clean = round_cost(fleet, selected, *rest)
    dirty = round_cost(fleet, selected, *(np.where(selected, value, junk) for value in rest))
    for part in PARTS:
        np.testing.assert_array_equal(getattr(dirty, part), getattr(clean, part))


@checked
@given(fleets())
def test_a_silent_client_never_finishes_but_needs_shannons_least_energy(fleet: Fleet) -> None:
    ratio, silence = np.full(fleet.size, 0.25), np.zeros(fleet.size)
    assert np.all(np.isposinf(upload_delay(fleet, ratio, silence)))
    # U₀·ln 2/h joules a bit, and the energy at a vanishing power tends to it
    least = 0.75 * fleet.uplink_bits * fleet.uplink_noise_psd_w_hz * np.log(2.0) / fleet.uplink_gain
    np.testing.assert_allclose(upload_energy(fleet, ratio, silence), least, **close)
    whisper = 1e-13 * fleet.bandwidth_hz * fleet.uplink_noise_psd_w_hz / fleet.uplink_gain
    np.testing.assert_allclose(upload_energy(fleet, ratio, whisper), least, rtol=1e-12)


def test_a_stopped_clock_never_finishes() -> None:
    one = np.ones(1)
    fleet = Fleet(**dict.fromkeys(EVERYDAY, one) | dict.fromkeys(EVERYDAY_SERVER, np.array(1.0)))
    assert np.isposinf(computation_delay(fleet, 0.5 * one, 0.0 * one)).all()
    assert computation_energy(fleet, 0.5 * one, 0.0 * one).item() == 0.0


@checked
@given(st.data())
def test_nothing_is_nan_or_negative_anywhere_in_the_valid_range(data: st.DataObject) -> None:
    fleet = data.draw(fleets(extreme=True))
    decision = data.draw(decisions(fleet, silent=True))
    cost = round_cost(fleet, *decision)
    for name in PARTS + TOTALS:
        value = getattr(cost, name)
        assert value.dtype == np.float64
        assert not np.isnan(value).any(), name
        assert np.all(value >= 0.0), name


@checked
@given(st.data())
def test_leading_dimensions_equal_a_loop_over_scenarios(data: st.DataObject) -> None:
    batch = (2, 3)
    fleet = data.draw(fleets(batch=batch))
    decision = data.draw(decisions(fleet))
    together = round_cost(fleet, *decision)
    for index in np.ndindex(*batch):
        alone = round_cost(
            Fleet(**{f.name: getattr(fleet, f.name)[index] for f in fields(Fleet) if f.name != "cost_curve"}),
            *(value[index] for value in decision),
        )
        for name in [*PARTS, *TOTALS, "straggler"]:
            np.testing.assert_array_equal(getattr(together, name)[index], getattr(alone, name), err_msg=name)


@checked
@given(st.data())
def test_many_decisions_for_one_fleet_equal_a_loop_over_decisions(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    several = [data.draw(decisions(fleet)) for _ in range(3)]
    together = round_cost(fleet, *(np.stack(column) for column in zip(*several)))
    for index, decision in enumerate(several):
        alone = round_cost(fleet, *decision)
        np.testing.assert_array_equal(together.energy_j[index], alone.energy_j)
        np.testing.assert_array_equal(together.delay_s[index], alone.delay_s)
