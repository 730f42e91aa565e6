"""A node's file: what is wrong with it is said in one line that names the key; what is right becomes a profile."""

import json

import numpy as np
import pytest

from fedgap.deploy.node_data import LocalNodeData, NodeSettings
from fedgap.deploy.node_worker import NodeWorker
from fedgap.deploy.packet import Packet
from fedgap.errors import InputError

DEVICE = {"uplink_gain": 8e-6, "bandwidth_hz": 1e5, "max_power_w": 0.5, "max_frequency_hz": 5e8, "flops_per_cycle": 4,
          "capacitance": 8.8e-28}
NODE = {"name": "shop", "data": "shop.npz", "classes": 3, "device": DEVICE}
X, Y = np.arange(5 * 2 * 4 * 4, dtype=np.float32).reshape(5, 2, 4, 4), np.array([0, 2, 2, 1, 0])


@pytest.fixture
def profile(tmp_path):
    """profile(node, x, y) → what a node with this file and these data tells about itself."""

    def make(node, x=X, y=Y):
        np.savez(tmp_path / "shop.npz", train_x=x, train_y=y)
        (tmp_path / "node.json").write_text(json.dumps(node))
        source = LocalNodeData(NodeSettings.load(tmp_path / "node.json"))
        return source, source.profile()

    return make


def test_a_device_with_data_of_its_own(profile):
    source, told = profile({**NODE, "mean": [1.0, 2.0], "std": [2.0]})
    assert told["label_counts"] == [2, 1, 2]
    assert told["device"] == {**DEVICE, "downlink_gain": 8e-6, "pue": 1.0}
    inputs, labels = source.samples()
    assert labels.tolist() == Y.tolist()
    assert inputs[0, :, 0, 0].tolist() == [(0 - 1) / 2, (16 - 2) / 2]  # channel 1's first pixel is 16


@pytest.mark.parametrize(("change", "said"), [
    ({"classes": "ten"}, "classes: must be a number; got 'ten'"),
    ({"classes": 2}, "label for each sample, a whole number from 0 to 1"),
    ({"threads": 0}, "threads: must be at least 1"),
    ({"name": None}, "name: must be a text"),
    ({"epsilon": 0}, "epsilon: must be above 0"),
    ({"epsilon": True}, "epsilon: must be a number"),
    ({"mean": 3}, "mean: must be a list"),
    ({"mean": [1, 2, 3]}, "mean: must have one number, or 2 for the channels; it has 3"),
    ({"std": [0]}, r"std\[0\]: must be above 0"),
    ({"device": "fast"}, "device: must be a mapping"),
    ({"device": {**DEVICE, "uplink_gain": "high"}}, "device.uplink_gain: must be a number"),
    ({"device": {**DEVICE, "max_frequency_hz": 500}}, "device.max_frequency_hz: .*if MHz was meant, write 500e6"),
    ({"device": {**DEVICE, "phi": 1}}, "device.phi: does not describe a device"),
    ({"device": {**DEVICE, "max_powr_w": 1}}, "device.max_powr_w: unknown key; did you mean 'max_power_w'"),
    ({"device": {}}, "device.uplink_gain: missing"),
    ({"data": "none.npz"}, "data: .*none.npz cannot be read"),
    ({"dta": "x"}, "dta: unknown key; did you mean 'data'"),
    ({"client": 1}, "client: must be left out of a node without experiment; give either"),
    ({"experiment": "embedded"}, "name: must be left out of a node with experiment; give either")])
def test_what_is_wrong_with_a_file_is_named(profile, change, said):
    with pytest.raises(InputError, match=said) as error:
        profile({**NODE, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("x", "y"), [
    (X * np.nan, Y), (X[:, 0, 0, 0], Y), (X[:4], Y), (X, Y / 2), (X, Y - 1), (X[:0], Y[:0]),
    (np.full((5, 4, 4), "a"), Y), (X, Y[:, None])])
def test_data_that_make_no_sense_are_named(profile, x, y):
    with pytest.raises(InputError, match=r"data: .*shop\.npz") as error:
        profile(NODE, x, y)
    assert "\n" not in str(error.value)


def test_a_worker_that_comes_again_finds_its_file_beside_its_secret(tmp_path):
    """The noise's secret is ``node.secret``, which must not be taken for the node's file."""
    (tmp_path / "node.yaml").write_text("experiment: embedded\nclient: 1\nepsilon: 0.5\n")
    enrol = Packet({"kind": "enrol"}).to_bytes()
    first, second = (Packet.from_bytes(NodeWorker(tmp_path).answer(b"{}", enrol), 10_000).fields for _ in range(2))
    assert (tmp_path / "node.secret").is_file()
    assert first["status"] == "enrolled"
    assert first == second
