"""Profiles of a device: what is measured, what is left out, and the fleet that is written."""

import socket
import threading

import numpy as np
import pytest
import torch

from fedgap import Experiment
from fedgap.config.fleet_csv import read_clients, write_client
from fedgap.errors import InputError
from fedgap.learning.structure import Channels
from fedgap.running import device_profile
from fedgap.running.device_profile import DeviceProfile, Measured, clock_hz, energy_meter, receive_one, send_to
from fedgap.running.prepare import divide, other_sizes
from fedgap.system import uplink_rate

CPU = torch.device("cpu")


def measured(**changes) -> DeviceProfile:
    values = {
        "name": "shed", "device": "cpu", "batch_size": 10, "flops": 3e6,
        "steps_s": {(10, 0.0): Measured((0.03, 0.02, 0.04))},
        "peak_bytes": 1000, "clock_hz": 1e9, "idle_w": None, "busy_w": None, "upload_bit_s": None}
    return DeviceProfile(**(values | changes))


def test_a_client_has_the_measured_speed():
    """10 samples of 3e6 operations in 0.03 s at 1 GHz are one operation a cycle."""
    assert measured().client(1e-20, 0.1, 1e6) == {"name": "shed", "max_frequency_hz": 1e9, "flops_per_cycle": 1.0}
    assert len(measured().left_out) == 2


def test_power_and_upload_become_figures_of_the_model():
    """6 W in steps and 2 W idle at 1 GHz: (6 − 2)/1e27 F. The gain gives the measured rate back."""
    one = measured(idle_w=Measured((2.0,)), busy_w=Measured((6.0,)), upload_bit_s=Measured((6e6,)))
    client = one.client(2e-20, 0.1, 1e6)
    assert client["capacitance"] == pytest.approx(4e-27)
    assert client["idle_power_w"] == 2.0
    assert client["uplink_gain"] == pytest.approx(1.26e-11, rel=1e-3)  # docs/how-to/device-figures.md works it by hand
    assert float(uplink_rate(*(np.array(v) for v in (0.1, client["uplink_gain"], 1e6, 2e-20)))) == pytest.approx(
        6e6, rel=1e-3)
    assert one.left_out == []


def test_energy_is_read_where_the_system_has_a_counter(tmp_path):
    assert energy_meter(CPU, tmp_path) is None
    for name, micro in (("intel-rapl:0", "5000000"), ("intel-rapl:1", "2000000"), ("intel-rapl:0:0", "999")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(micro)
    meter = energy_meter(CPU, tmp_path)
    assert meter is not None
    assert meter() == pytest.approx(7.0)  # packages only: their parts are in them


def test_the_clock_is_the_systems(tmp_path):
    assert clock_hz(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("cpu MHz\t\t: 1500.0\ncpu MHz\t\t: 2000.5\n")
    assert clock_hz(tmp_path) == pytest.approx(2000.5e6)


def test_an_upload_is_counted_to_its_last_byte():
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: received.append(receive_one(listener)))
        thread.start()
        assert send_to(listener.getsockname()[:2], 300_000) > 0.0
        thread.join()
        port = listener.getsockname()[1]
    assert received == [300_000]
    with pytest.raises(InputError, match=r"^--server: 127\.0\.0\.1:"):
        send_to(("127.0.0.1", port), 10)


def test_the_model_is_timed_over_ratios_and_batches(monkeypatch):
    monkeypatch.setattr(device_profile, "LEAST_S", 0.0001)
    monkeypatch.setattr(device_profile, "IDLE_S", 0.0)
    one = device_profile.profile(Experiment.load("embedded", ["model.name=mlp"]), name="here", repeats=2)
    assert sorted({batch for batch, _ in one.steps_s}) == [16, 32, 64]
    assert sorted({ratio for _, ratio in one.steps_s}) == [0.0, 0.1, 0.3, 0.5]
    assert all(seconds > 0.0 for step in one.steps_s.values() for seconds in step.values)
    assert one.to_dict()["steps"][0]["least"] <= one.to_dict()["steps"][0]["median"]


def test_a_fleet_gains_a_client_and_keeps_the_others(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("# a note\n# shed: old\nname,phi,label_counts\nshed,1,\nbarn,2,3;4\n")
    write_client(path, {"name": "shed", "flops_per_cycle": 1.5}, ["shed: new"])
    assert path.read_text().splitlines()[:2] == ["# a note", "# shed: new"]
    assert read_clients(str(path), tmp_path)[0] == [
        {"name": "barn", "phi": "2", "label_counts": ["3", "4"]}, {"name": "shed", "flops_per_cycle": "1.5"}]


def test_sizes_left_out_come_from_the_model():
    """The MLP's own sizes; a scenario with others is named with both values, one without is not."""
    experiment = Experiment.load("embedded", ["scenario.model=null", "model.name=mlp"])
    dataset, _, scenario = divide(experiment)
    weights = sum(p.numel() for p in device_profile.build("mlp", input_shape=dataset.shape, classes=dataset.classes,
                                                          seed=0).parameters())
    assert scenario.model.gradient_bits == 32 * weights
    assert other_sizes(experiment, scenario, dataset) == ""
    wrong = Experiment.load("embedded", ["scenario.model.gradient_bits=7", "model.name=mlp"])
    line = other_sizes(wrong, divide(wrong, dataset)[2], dataset)
    assert line.startswith("warning: scenario.model.gradient_bits is 7, but the model's is ")
    assert "\n" not in line


def test_with_channels_the_small_model_is_timed():
    module = device_profile.build("mlp", input_shape=(1, 8, 8), classes=3, seed=0)
    channels = Channels(module, (1, 8, 8))
    asked = []
    made = channels.small_module
    channels.small_module = lambda widths: asked.append(widths) or made(widths)
    device_profile.client_round(module, channels, (torch.randn(4, 1, 8, 8), torch.arange(4) % 3), 0.5, 4, 2)()
    assert asked == [channels.widths_of(channels.keep_count(0.5))]
