import json
import math

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.config import Scenario
from fedgap.errors import InputError

positive = st.floats(min_value=1e-30, max_value=1e25)
nonnegative = st.just(0.0) | positive
histogram = st.lists(st.integers(0, 10**6), min_size=3, max_size=3).filter(any)


@st.composite
def clients(draw):
    client = {
        "uplink_gain": draw(positive),
        "downlink_gain": draw(positive),
        "bandwidth_hz": draw(positive),
        "max_power_w": draw(positive),
        "max_frequency_hz": draw(st.floats(1e6, 1e30)),
        "flops_per_cycle": draw(positive),
        "pue": draw(positive),
        "capacitance": draw(positive),
    }
    optional = {
        "phi": nonnegative,
        "label_counts": histogram,
        "target_counts": histogram,
        "gradient_bits": positive,
        "flops_per_sample": positive,
        "batch_size": st.integers(1, 10**6),
        "max_ratio": st.floats(0, 0.999),
        "noise_psd_w_hz": positive,
    }
    for key, values in optional.items():
        if draw(st.booleans()):
            client[key] = draw(values)
    if "label_counts" not in client:
        client.setdefault("phi", draw(nonnegative))
    return client


@st.composite
def scenarios(draw):
    members = draw(st.lists(clients(), min_size=1, max_size=4))
    names = draw(st.lists(st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=8), unique=True))
    for client, name in zip(members, names):
        client["name"] = name
    bound = {key: draw(nonnegative) for key in ("initial_gap", "smoothness", "gradient_moment", "parameter_moment")}
    bound["aggregation"] = draw(st.sampled_from(["sum", "mean"]))
    bound["constants"] = draw(st.sampled_from(["printed", "corrected"]))
    bound["statement"] = draw(st.sampled_from(["as_printed", "size_normalised"]))
    if draw(st.booleans()):
        bound["pruning_sensitivity"] = draw(nonnegative)
        bound["sensitivity"] = draw(st.sampled_from(["theorem", "secant"]))
    return {
        "rounds": draw(st.integers(1, 10**9)),
        "budget": {"energy_j": draw(positive), "delay_s": draw(positive)},
        "learning": {"rate": draw(positive), "batch_size": draw(st.integers(1, 10**6))},
        "model": {"gradient_bits": draw(positive), "flops_per_sample": draw(positive)},
        "pruning": {"max_ratio": draw(st.floats(0, 0.999)), "dense_first": draw(st.booleans())},
        "bound": bound,
        "server": {"power_w": draw(positive), "bandwidth_hz": draw(positive)},
        "noise_psd_w_hz": draw(positive),
        "target_counts": draw(histogram),
        "clients": members,
    }


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_any_valid_scenario_round_trips(tmp_path_factory, document):
    scenario = Scenario.from_dict(document)
    folder = tmp_path_factory.mktemp("trip")
    for name in ("scenario.yaml", "scenario.json"):
        again = Scenario.load(scenario.save(folder / name))
        assert again == scenario
        assert again.hash() == scenario.hash()
        assert again.to_dict() == scenario.to_dict()


def test_other_yaml_readers_read_the_same_numbers(document, tmp_path):
    scenario = Scenario.from_dict(document)
    assert yaml.safe_load(scenario.save(tmp_path / "s.yaml").read_text()) == {"format": 1} | scenario.to_dict()
    assert json.loads(scenario.save(tmp_path / "s.json").read_text()) == {"format": 1} | scenario.to_dict()


def test_the_hash_changes_with_every_value(document):
    seen = {Scenario.from_dict(document).hash()}
    for override in ("rounds=181", "budget.energy_j=251", "clients[1].phi=4.000000001", "bound.constants=corrected"):
        seen.add(Scenario.from_dict(document, [override]).hash())
    assert len(seen) == 5


def test_numbers_may_be_strings_as_yaml_1_1_and_csv_give_them(document):
    plain = Scenario.from_dict(document)
    document["learning"] = {"rate": "1e-2", "batch_size": "32"}
    document["clients"][0]["bandwidth_hz"] = "1e5"
    assert Scenario.from_dict(document) == plain


def test_a_whole_number_may_be_written_with_a_point(document):
    document["learning"]["batch_size"] = 32.0
    document["rounds"] = 180.0
    scenario = Scenario.from_dict(document)
    assert (scenario.learning.batch_size, scenario.rounds) == (32, 180)
    assert type(scenario.learning.batch_size) is int


def test_numpy_values_are_values(document):
    document["rounds"] = np.int64(180)
    document["learning"]["rate"] = np.float32(0.5)
    document["clients"][0] |= {"phi": None, "label_counts": np.array([3, 4])}
    document["target_counts"] = (1, 1)
    scenario = Scenario.from_dict(document)
    assert scenario.learning.rate == 0.5
    assert scenario.clients[0].label_counts == (3, 4)


def test_fleet_holds_every_value_in_its_place(document):
    document["clients"][1] |= {
        "gradient_bits": 7.0,
        "flops_per_sample": 8.0,
        "batch_size": 9,
        "max_ratio": 0.25,
        "noise_psd_w_hz": 1e-20,
        "downlink_gain": 2e-6,
    }
    fleet = Scenario.from_dict(document).fleet()
    assert fleet.size == 2
    np.testing.assert_array_equal(fleet.uplink_gain, [8e-6, 8e-6])
    np.testing.assert_array_equal(fleet.downlink_gain, [8e-6, 2e-6])
    np.testing.assert_array_equal(fleet.gradient_bits, [1421632, 7])
    np.testing.assert_array_equal(fleet.flops_per_sample, [1.8e6, 8])
    np.testing.assert_array_equal(fleet.batch_size, [32, 9])
    np.testing.assert_array_equal(fleet.max_ratio, [0.5, 0.25])
    np.testing.assert_array_equal(fleet.downlink_noise_psd_w_hz, [3.98e-21, 1e-20])
    np.testing.assert_array_equal(fleet.max_frequency_hz, [5e8, 5e8])
    np.testing.assert_array_equal(fleet.flops_per_cycle, [4, 4])
    np.testing.assert_array_equal(fleet.capacitance, [8.8e-28] * 2)
    np.testing.assert_array_equal(fleet.max_power_w, [0.5] * 2)
    np.testing.assert_array_equal(fleet.bandwidth_hz, [1e5] * 2)
    np.testing.assert_array_equal(fleet.pue, [1.0] * 2)
    assert (fleet.server_power_w, fleet.server_bandwidth_hz, fleet.uplink_noise_psd_w_hz) == (0.5, 1e5, 3.98e-21)
    assert fleet.uplink_gain.dtype == np.float64


def test_left_out_downlink_gain_and_server_bandwidth(document):
    for client in document["clients"]:
        del client["downlink_gain"]
    del document["server"]["bandwidth_hz"]
    scenario = Scenario.from_dict(document)
    assert [client.downlink_gain for client in scenario.clients] == [8e-6, 8e-6]
    assert scenario.server.bandwidth_hz == 2e5


def test_names(document):
    document["clients"][1]["name"] = "attic"
    assert Scenario.from_dict(document).names == ["client 0", "attic"]


def phi_by_hand(train, target):
    """The size-normalised statement, written out for one client."""
    train_size, target_size = sum(train), sum(target)
    p = [(count + 1) / (train_size + len(train)) for count in train]
    q = [(count + 1) / (target_size + len(target)) for count in target]
    root = math.sqrt(2 * sum(a * math.log(a / b) for a, b in zip(p, q)))
    share = target_size / (train_size + target_size)
    return 1 / min(p) * root / abs(1 - share * root)


def test_phi_from_histograms(document):
    document["target_counts"] = [10, 10, 10]
    document["clients"] = [
        {**document["clients"][0], "phi": None, "label_counts": [60, 30, 10]},
        {**document["clients"][0], "phi": None, "label_counts": [60, 30, 10], "target_counts": [5, 5, 20]},
        {**document["clients"][0], "phi": 2.5, "label_counts": [1, 2, 3]},
    ]
    scenario = Scenario.from_dict(document)
    by_hand = [phi_by_hand([60, 30, 10], [10, 10, 10]), phi_by_hand([60, 30, 10], [5, 5, 20]), 2.5]
    np.testing.assert_allclose(scenario.phi(), by_hand, rtol=1e-12)
    np.testing.assert_array_equal(scenario.label_counts(), [[60, 30, 10], [60, 30, 10], [1, 2, 3]])
    printed = Scenario.from_dict(document, ["bound.statement=as_printed"]).phi()
    assert printed[2] == 2.5
    assert abs(printed[0] - by_hand[0]) > 1


def test_label_counts_are_none_unless_everyone_has_them(document):
    document["clients"][0]["label_counts"] = [1, 2]
    assert Scenario.from_dict(document).label_counts() is None


def test_phi_at_the_singularity_names_the_client(document):
    document["target_counts"] = [1, 1000, 1000]
    document["clients"][1] |= {"phi": None, "label_counts": [9, 0, 0]}
    with pytest.raises(InputError, match=r"clients\[1\]"):
        Scenario.from_dict(document).phi()


def test_pruning_sensitivity_replaces_the_theorems_product(document):
    assert Scenario.from_dict(document).bound.pruning_weight == pytest.approx(0.4**2 * 470)
    measured = Scenario.from_dict(document, ["bound.pruning_sensitivity=10"])
    assert (measured.bound.sensitivity, measured.bound.pruning_weight) == ("secant", 10.0)
    theorem = Scenario.from_dict(document, ["bound.pruning_sensitivity=10", "bound.sensitivity=theorem"])
    assert theorem.bound.pruning_weight == pytest.approx(0.4**2 * 470)
    assert Scenario.from_dict(theorem.to_dict()).bound.sensitivity == "theorem"
    # A sensitivity measured after saving counts: what is the default is not written down.
    assert Scenario.from_dict(Scenario.from_dict(document).to_dict(), ["bound.pruning_sensitivity=10"]) == measured


def test_constants_of_the_bound(document):
    constants = Scenario.from_dict(document).constants()
    assert constants.alpha == pytest.approx(2 * 3.5 / (0.01 * 180))
    assert constants.gamma1 == pytest.approx(0.01 * 1000 / (32 * 180))
    assert constants.gamma2 == pytest.approx(0.4**2 * 470 / 180)
    assert Scenario.from_dict(document).constants(rounds=90).gamma2 == pytest.approx(2 * constants.gamma2)


def test_with_labels_takes_a_real_partition(document):
    document |= {"mode": "repaired"}
    del document["bound"]["aggregation"], document["bound"]["constants"]
    assert Scenario.from_dict(document).bound.aggregation == "mean"
    labelled = Scenario.from_dict(document).with_labels([[50, 10], [20, 40]], [5, 5], [[6, 4], [4, 6]])
    assert labelled.bound.aggregation == "mixture"
    assert labelled.target_counts == (5, 5)
    np.testing.assert_allclose(labelled.phi(), [phi_by_hand([50, 10], [6, 4]), phi_by_hand([20, 40], [4, 6])])
    with pytest.raises(InputError, match="must have one row per client, 2; got 3"):
        labelled.with_labels([[1, 1]] * 3, [5, 5])


def test_with_overrides_is_loading_with_them():
    loaded = Scenario.load("paper-mnist", ["fleet.count=4", "clients[2].phi=3"])
    assert Scenario.load("paper-mnist", ["fleet.count=4"]).with_overrides(["clients[2].phi=3"]) == loaded
    redrawn = loaded.with_overrides(["seed=5"])
    assert redrawn.clients[0].uplink_gain != loaded.clients[0].uplink_gain
    assert redrawn.clients[2].phi == 3
    assert Scenario.from_dict(loaded.document()) == loaded


def test_a_scenario_cannot_be_changed(document):
    scenario = Scenario.from_dict(document)
    with pytest.raises(ValueError, match="frozen"):
        scenario.rounds = 3
    with pytest.raises(ValueError, match="frozen"):
        scenario.clients[0].phi = 3


def test_merged_yaml_defaults(tmp_path, document):
    client = document["clients"][0]
    body = json.dumps({key: value for key, value in document.items() if key != "clients"})[1:-1]
    path = tmp_path / "s.yaml"
    path.write_text("{" + body + ', "clients": [&c ' + json.dumps(client) + ", {<<: *c, phi: 4.0}]}")
    assert Scenario.load(path) == Scenario.from_dict(document)
