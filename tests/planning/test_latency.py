"""Seconds of a round that no decision changes: they come off the budget, and cost the server no joules."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import plan
from fedgap.system import round_cost
from tests.oracle.scenarios import CASES


@pytest.mark.parametrize("solver", ["exact", "alternating"])
def test_equal_latencies_come_off_the_delay_budget(solver):
    """R rounds of ℓ seconds more, with R·ℓ seconds more to spend: the same plan."""
    scenario = Scenario.load(CASES / "n3_r1.json")
    document, latency = scenario.to_dict(), 0.25
    document["budget"]["delay_s"] += scenario.rounds * latency
    for client in document["clients"]:
        client["latency_s"] = latency
    late = Scenario.from_dict(document)
    without, with_it = plan(scenario, solver=solver), plan(late, solver=solver)
    assert with_it.theta == pytest.approx(without.theta, rel=1e-6)
    assert with_it.delay_s == pytest.approx(without.delay_s + scenario.rounds * latency, rel=1e-6)
    segment, fleet, slow = without.segments[0], scenario.fleet(), late.fleet()
    decided = segment.selected, segment.pruning_ratio, segment.power_w, segment.frequency_hz
    quick, waiting = round_cost(fleet, *decided), round_cost(slow, *decided)
    assert float(waiting.delay_s - quick.delay_s) == pytest.approx(latency)
    assert float(waiting.energy_j) == float(quick.energy_j)
    np.testing.assert_array_equal(slow.take(np.array([1])).latency_s, [latency])
