"""Fleets as arrays: stacking scenarios, taking clients."""

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgap.system import Fleet
from tests.system.strategies import EVERYDAY, EVERYDAY_SERVER, checked, fleets

LIMITS = {"min_frequency_hz", "min_power_w", "idle_power_w", "battery_j", "latency_s"}
CLIENT_FIELDS, SERVER_FIELDS = set(EVERYDAY) | LIMITS, set(EVERYDAY_SERVER)


def test_every_field_is_a_clients_or_the_servers() -> None:
    assert {f.name for f in fields(Fleet)} == CLIENT_FIELDS | SERVER_FIELDS | {"cost_curve"}


@checked
@given(st.lists(fleets(most=1), min_size=1, max_size=4))
def test_a_stack_holds_each_fleet_at_its_index(several: list[Fleet]) -> None:
    stack = Fleet.stack(several)
    assert stack.size == 1
    assert stack.uplink_gain.shape == (len(several), 1)
    assert stack.server_power_w.shape == (len(several),)
    for index, fleet in enumerate(several):
        for name in CLIENT_FIELDS | SERVER_FIELDS:
            np.testing.assert_array_equal(getattr(stack, name)[index], getattr(fleet, name))


@checked
@given(st.data())
def test_taking_clients_keeps_theirs_and_the_servers_values(data: st.DataObject) -> None:
    fleet = data.draw(fleets(batch=(2,), most=5))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=fleet.size, max_size=fleet.size)))
    for chosen in (mask, np.flatnonzero(mask), np.flatnonzero(mask)[::-1]):
        taken = fleet.take(chosen)
        assert taken.size == mask.sum()
        for name in CLIENT_FIELDS:
            np.testing.assert_array_equal(getattr(taken, name), getattr(fleet, name)[:, chosen])
        for name in SERVER_FIELDS:
            np.testing.assert_array_equal(getattr(taken, name), getattr(fleet, name))


@checked
@given(fleets())
def test_cycles_are_steps_times_batch_times_operations_over_operations_a_cycle(fleet: Fleet) -> None:
    expected = [
        steps * batch * flops / width
        for steps, batch, flops, width in zip(
            fleet.local_steps, fleet.batch_size, fleet.flops_per_sample, fleet.flops_per_cycle
        )
    ]
    np.testing.assert_allclose(fleet.cycles, expected, rtol=1e-14)
