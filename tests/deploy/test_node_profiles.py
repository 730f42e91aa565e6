"""Nodes that measure before planning: their figures give the measured seconds back, and the plan counts on them."""

import json

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.deploy.enrol import Profile, fleet_of
from fedgap.deploy.node_profiles import LEAST_FALL, NodeProfile, measured_curve
from fedgap.deploy.packet import Packet, PacketError
from fedgap.learning.data import load
from fedgap.running import device_profile
from fedgap.running.device_profile import Measured
from fedgap.system import computation_delay, fixed_delay, upload_delay
from tests.deploy.direct import news

DEVICE = {"uplink_gain": 8e-6, "downlink_gain": 8e-6, "bandwidth_hz": 1e5, "max_power_w": 0.5, "max_frequency_hz": 5e8,
          "flops_per_cycle": 4, "pue": 1.0, "capacitance": 8.8e-28}
ZERO = np.zeros(1)


def profile(*seconds, **changes):
    values = {"ratios": (0.0, 0.25, 0.5)[:len(seconds)], "steps_s": tuple(Measured((s,)) for s in seconds),
              "follow_s": Measured((0.25,)), "peak_bytes": 10**8, "clock_hz": 2e9, "idle_w": None, "busy_w": None,
              "exchange_s": Measured((2.0,)), "upload_s": 0.5}
    return NodeProfile(**(values | changes))


@pytest.mark.parametrize("download_gain", [8e-6, 1e-16, 1e-18])
def test_the_figures_give_the_measured_seconds_back(fleet, download_gain):
    """A radio that the file makes slower than the measured messages is made faster; one that is quicker leaves the
    rest to the latency."""
    experiment, data = fleet(1).experiment, load("embedded")

    def counts_on(device):
        return fleet_of(experiment, [Profile("a", 0, device, (5,) * 10, None, None)], data)

    measured, device = profile(0.1), DEVICE | {"downlink_gain": download_gain}
    figures = measured.figures(device, counts_on(device))
    figures |= measured.waiting(counts_on(figures), 0)
    counted = counts_on(figures)
    assert computation_delay(counted, ZERO, counted.max_frequency_hz)[0] == pytest.approx(0.1, rel=1e-3)
    assert upload_delay(counted, ZERO, counted.max_power_w)[0] == pytest.approx(0.5, rel=2e-3)
    assert fixed_delay(counted)[0] == pytest.approx(2.25, rel=2e-3)
    assert figures["min_frequency_hz"] == figures["max_frequency_hz"] == 5e8  # no joules: the file's clock and power
    assert measured.left_out == ["joules (the machine does not report them to this user)"]


def test_joules_count_where_the_machine_reports_them(fleet):
    """6 W in steps and 2 W idle at 2 GHz: (6 − 2)/8e27 F."""
    measured = profile(0.1, idle_w=Measured((2.0,)), busy_w=Measured((6.0,)), exchange_s=None, upload_s=None)
    alone = fleet_of(fleet(1).experiment, [Profile("a", 0, DEVICE, (5,) * 10, None, None)], load("embedded"))
    figures = measured.figures(DEVICE, alone)
    assert (figures["max_frequency_hz"], figures["idle_power_w"]) == (2e9, 2.0)
    assert figures["capacitance"] == pytest.approx(5e-28)
    assert figures["uplink_gain"] == DEVICE["uplink_gain"]
    assert measured.left_out == ["messages (a test message was not answered)"]


def test_no_node_is_slower_than_the_curve():
    """Shares 0.8, 0.7 and 0.9, 0.6: the line from 1 through 0.9 is convex up to 0.8, and 0.7 lies on or below it."""
    curve = measured_curve([profile(1.0, 0.8, 0.7), profile(2.0, 1.8, 1.2)], None)
    assert curve["flops"] == pytest.approx([1.0, 0.9, 0.8])
    assert curve["bits"] == pytest.approx([1.0, 0.75, 0.5])
    flat = measured_curve([profile(1.0, 1.1, 0.99)], {"ratio": [0.0, 0.5], "bits": [1.0, 0.6]})
    assert flat["flops"] == pytest.approx([1.0, 1.0 - 0.25 * LEAST_FALL, 1.0 - 0.5 * LEAST_FALL], abs=0.011)
    assert flat["bits"] == pytest.approx([1.0, 0.8, 0.6])
    assert np.diff(flat["flops"])[0] < 0.0


@pytest.mark.parametrize("fields", [
    {"seconds": [[0.1]]}, {"seconds": [[0.1], [0.0]]}, {"seconds": [[0.1], "x"]}, {"follow": None},
    {"idle_w": [float("1e300")]}, {"status": "refused", "reason": "no"}])
def test_a_profile_that_makes_no_sense_is_refused(fields):
    told = {"status": "profiled", "seconds": [[0.1], [0.2]], "follow": [0.1], "peak_bytes": 5, "clock_hz": None}
    told |= fields
    with pytest.raises(PacketError):
        NodeProfile.read(Packet(told), (0.0, 0.5))


def test_a_deployment_plans_with_what_its_nodes_measured(fleet, monkeypatch):
    monkeypatch.setattr(device_profile, "LEAST_S", 0.001)
    monkeypatch.setattr(device_profile, "IDLE_S", 0.0)
    monkeypatch.setattr(device_profile, "energy_meter", lambda device: None)
    nodes = fleet(3, "rounds=2", "pruning.structure=channels", "budget.energy_j=1e6", "budget.delay_s=1e6",
                  "scheme=all_clients")
    nodes.spoil[1] = lambda request, answer: (
        b"nonsense" if request.fields["kind"] == "profile" else answer.to_bytes())
    run = nodes.session(profile=True).run()
    written = json.loads((run.folder / "profiles.json").read_text())
    assert sorted(written) == ["client 0", "client 2"]
    said = [what for _, _, what in news(run)]
    assert any(what.startswith("client 0: a step takes ") and "not measured: joules" in what for what in said)
    assert any(what.startswith("client 1 was not profiled (") for what in said)
    scenario = Scenario.load(run.folder / "scenario.yaml")
    for name, measured in written.items():
        client = scenario.clients[scenario.names.index(name)]
        assert client.latency_s == measured["figures"]["latency_s"]
        planned = run.job.compute_s[0, scenario.names.index(name)]
        assert planned == pytest.approx(measured["steps"][0]["median"], rel=2e-3)  # one local step, nothing pruned
    assert scenario.model.cost_curve.ratio[-1] == scenario.largest_ratio
