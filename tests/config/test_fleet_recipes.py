import sys

import numpy as np
import pytest
from scipy import stats

from fedgap.config import Scenario
from fedgap.config.fleet_recipes import Labels, draw_fleet, draw_histograms
from fedgap.errors import InputError
from fedgap.streams import stream

RAYLEIGH = {
    "kind": "rayleigh",
    "count": 4000,
    "mean_gain": 1e-5,
    "bandwidth_hz": 1e5,
    "max_power_w": [0.1, 0.2, 0.3],
    "max_frequency_hz": 5e8,
    "flops_per_cycle": 4,
    "capacitance": 1e-27,
}
CITY = {
    "kind": "city",
    "count": 4000,
    "cell_radius_m": 200,
    "carrier_hz": 3.5e9,
    "bandwidth_hz": 1e6,
    "max_power_w": 0.2,
    "tiers": [
        {"share": 1, "max_frequency_hz": 1e9, "flops_per_cycle": 2, "capacitance": 4e-28},
        {"share": 3, "max_frequency_hz": 2e9, "flops_per_cycle": 8, "capacitance": 2e-28},
    ],
    "tier_spread": 0.2,
}
LABELS = {"classes": 10, "concentration": 5, "train_samples": 6000, "target_samples": 1000}


def column(clients, key):
    return np.array([client[key] for client in clients])


def test_rayleigh_gains_are_exponential_with_the_mean_asked_for():
    gains = column(draw_fleet(RAYLEIGH, 0), "uplink_gain")
    assert stats.kstest(gains / 1e-5, "expon").pvalue > 0.01
    assert gains.mean() == pytest.approx(1e-5, rel=0.05)


def test_lists_are_cycled_and_the_downlink_is_the_uplink():
    clients = draw_fleet(RAYLEIGH | {"count": 5}, 0)
    assert [client["max_power_w"] for client in clients] == [0.1, 0.2, 0.3, 0.1, 0.2]
    assert all(client["downlink_gain"] == client["uplink_gain"] for client in clients)


def test_a_larger_fleet_begins_with_the_same_clients():
    for recipe in (RAYLEIGH, CITY):
        few, many = (draw_fleet(recipe | {"count": count}, 3) for count in (7, 50))
        assert many[:7] == few
    few, many = (draw_histograms(Labels(**LABELS), 3, size) for size in (7, 50))
    assert all(np.array_equal(long[:7], short) for long, short in zip(many, few))


def test_seeds_give_the_same_fleet_again_and_another_for_another():
    first, again, other = (draw_fleet(CITY | {"count": 10}, seed) for seed in (1, 1, 2))
    assert first == again
    assert all(a["uplink_gain"] != b["uplink_gain"] for a, b in zip(first, other))


def test_a_seed_means_this_fleet_on_every_machine():
    """The numbers themselves: a change of these changes every published scenario."""
    scenario = Scenario.load("paper-mnist")
    assert [client.uplink_gain for client in scenario.clients[:3]] == EXPECTED_GAINS
    assert scenario.clients[0].label_counts == EXPECTED_COUNTS
    assert [client.uplink_gain for client in Scenario.load("city").clients[:3]] == EXPECTED_CITY


EXPECTED_GAINS = [2.52405913e-05, 5.33728647e-06, 6.53181702e-06]
EXPECTED_COUNTS = (439, 1250, 380, 506, 405, 611, 1095, 387, 366, 561)
EXPECTED_CITY = [1.45183029e-11, 2.22352523e-11, 6.14331524e-11]


def test_streams_are_independent():
    """Changing one ingredient leaves what comes from the other streams as it was."""
    base = Scenario.load("city")
    labels = base.with_overrides(["labels.concentration=0.5"])
    assert [c.uplink_gain for c in labels.clients] == [c.uplink_gain for c in base.clients]
    assert [c.target_counts for c in labels.clients] == [c.target_counts for c in base.clients]
    assert [c.label_counts for c in labels.clients] != [c.label_counts for c in base.clients]
    tiers = base.with_overrides(["fleet.tier_spread=0.5"])
    assert [c.uplink_gain for c in tiers.clients] == [c.uplink_gain for c in base.clients]
    assert [c.label_counts for c in tiers.clients] == [c.label_counts for c in base.clients]
    assert [c.max_frequency_hz for c in tiers.clients] != [c.max_frequency_hz for c in base.clients]


def test_city_processors():
    clients = draw_fleet(CITY, 0)
    per_cycle, frequency = column(clients, "flops_per_cycle"), column(clients, "max_frequency_hz")
    assert np.mean(per_cycle == 2) == pytest.approx(0.25, abs=0.03)
    assert np.median(frequency[per_cycle == 8]) == pytest.approx(2e9, rel=0.03)
    assert np.log(frequency[per_cycle == 8]).std() == pytest.approx(0.2, rel=0.05)
    assert set(column(clients, "capacitance")[per_cycle == 2]) == {4e-28}


def test_the_city_presets_processors_spread_sixtyfold():
    fleet = Scenario.load("city", ["fleet.count=10000"]).fleet()
    low, high = np.percentile(fleet.max_frequency_hz * fleet.flops_per_cycle, [5, 95])
    assert high / low == pytest.approx(60, rel=0.1)


def test_city_gains_follow_the_path_loss():
    """Without fading's help: the median gain at the edge is that of the blocked path there, within the shadowing."""
    edge = CITY | {"cell_radius_m": 200, "min_distance_m": 199.9, "rician_k_spread_db": 0}
    gains = column(draw_fleet(edge, 0), "uplink_gain")
    # At 200 m: 8.0 % + ... = 9.3 % in line of sight; blocked: 22.4 + 35.3·log10(200.18) + 21.3·0.544068 = 115.24 dB,
    # shadowing of σ = 7.82 dB, and the exponential's log in dB: mean −2.507, σ = 5.57.
    blocked = np.sort(-10 * np.log10(gains))[int(0.1 * len(gains)) :]
    assert np.median(blocked) == pytest.approx(115.24 + 2.1, abs=1.5)
    assert (-10 * np.log10(gains)).std() > 7.82


def test_city_clients_are_spread_evenly_over_the_disc():
    near = draw_fleet(CITY | {"cell_radius_m": 18, "rician_k_db": 60, "rician_k_spread_db": 0}, 0)
    far = draw_fleet(CITY | {"cell_radius_m": 2000, "min_distance_m": 1900}, 0)
    assert np.median(column(near, "uplink_gain")) > 1e4 * np.median(column(far, "uplink_gain"))
    # In line of sight with K = 60 dB only shadowing is left: σ = 4 dB around the mean path loss of the disc.
    decibel = 10 * np.log10(column(near, "uplink_gain"))
    radius = np.sqrt(np.random.default_rng(0).uniform(10**2, 18**2, 20_000))
    loss = 32.4 + 21 * np.log10(np.hypot(radius, 8.5)) + 20 * np.log10(3.5)
    assert decibel.mean() == pytest.approx(-loss.mean(), abs=0.25)
    assert decibel.std() == pytest.approx(np.hypot(4.0, loss.std()), rel=0.05)


def test_label_histograms():
    train, target = draw_histograms(Labels(**LABELS), 0, 3000)
    assert np.all(train.sum(axis=1) == 6000)
    assert np.all(target.sum(axis=1) == 1000)
    share = train / 6000
    assert share.mean(axis=0) == pytest.approx(np.full(10, 0.1), abs=0.005)
    # Dirichlet(5) over 10 classes: variance 0.1·0.9/51, plus the multinomial's 0.09/6000.
    assert share.var(axis=0).mean() == pytest.approx(0.1 * 0.9 / 51 * (1 - 1 / 6000) + 0.09 / 6000, rel=0.05)
    assert target.var(axis=0).mean() == pytest.approx(1000 * 0.09, rel=0.05)


def test_a_tiny_concentration_gives_each_client_one_class():
    train, _ = draw_histograms(Labels(**LABELS | {"concentration": 1e-30}), 0, 20)
    assert np.all((train == 6000).sum(axis=1) == 1)


def test_labels_leave_given_phi_and_histograms_alone(document):
    document["clients"].append({**document["clients"][0], "phi": None})
    scenario = Scenario.from_dict(document | {"labels": LABELS | {"classes": 3, "target_samples": 10}})
    assert scenario.clients[0].label_counts is None
    assert sum(scenario.clients[2].label_counts) == 6000
    assert scenario.target_counts == (4, 3, 3)
    assert scenario.phi()[0] == 10.0


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"kind": "rayleih"},
            "fleet.kind: must be one of rayleigh, city, or package.module:NAME; got 'rayleih';"
            " did you mean 'rayleigh'?",
        ),
        ({}, "fleet.kind: must be one of rayleigh, city, or package.module:NAME"),
        ("rayleigh", "fleet: must be a mapping with a kind; got 'rayleigh'"),
        (RAYLEIGH | {"count": 0}, "fleet.count: must be at least 1 (a fleet has at least one client); got 0"),
        (RAYLEIGH | {"count": 1e9}, "fleet.count: must be at most 100000; got 1000000000.0"),
        (RAYLEIGH | {"max_power_w": []},
         "fleet.max_power_w: must be a number, or a list of at least one number; got an empty list"),
        (
            RAYLEIGH | {"max_power_w": [1, 0]},
            "fleet.max_power_w: must be above 0 W (a silent client never finishes its upload); got 0",
        ),
        (
            CITY | {"carrier_hz": 1e6},
            "fleet.carrier_hz: must be at least 5e+08 and at most 1e+11 Hz (TR 38.901 covers 0.5 to 100 GHz);"
            " got 1000000.0",
        ),
        (
            RAYLEIGH | {"max_frequency_hz": [5e8, 1500]},
            "fleet.max_frequency_hz: must be at least 1e+06 Hz (if MHz was meant, write 1500e6; if GHz, 1500e9);"
            " got 1500",
        ),
        (CITY | {"tiers": []}, "fleet.tiers: must have at least one tier; got none"),
        (
            CITY | {"min_distance_m": 300},
            "fleet.min_distance_m: must be below cell_radius_m (200 m); got 300",
        ),
        (
            CITY | {"tiers": [{"share": 1, "max_frequency": 1e9, "flops_per_cycle": 1, "capacitance": 1}]},
            "fleet.tiers[0].max_frequency: unknown key; did you mean 'max_frequency_hz'?",
        ),
    ],
)
def test_bad_recipes(recipe, message):
    with pytest.raises(InputError) as caught:
        draw_fleet(recipe, 0)
    assert str(caught.value) == message


RINGS = '''
"""A fleet of another package: two rings of equal clients around the server."""

import numpy as np

__fedgap__ = ["rings", "rows", "rngs", "number", "uneven", "none", "text", "misspelt", "broken"]

from fedgap.streams import stream


def rings(seed, per_ring, near=1e-5, far=1e-7):
    gain = np.repeat([near, far], per_ring) * stream(seed, "fading").exponential(size=2 * per_ring)
    return {"name": [f"n{i}" for i in range(2 * per_ring)], "phi": 10.0, "uplink_gain": gain, "bandwidth_hz": 1e5,
            "max_power_w": 0.5, "max_frequency_hz": 5e8, "flops_per_cycle": 4, "capacitance": 1e-27}


def rows(seed):
    columns = rings(seed, 1)
    return [{**columns, "name": f"n{i}", "uplink_gain": gain} for i, gain in enumerate(columns["uplink_gain"])]


def uneven(seed):
    return {"phi": [1.0, 2.0], "uplink_gain": [1e-5]}


def none(seed):
    return []


def text(seed):
    return "clients"


def misspelt(seed):
    return [{"phi": 1.0, "gain": 1e-5}]


def broken(seed):
    raise RuntimeError("no\\nroute")


number = 3
'''


@pytest.fixture
def others(tmp_path, monkeypatch, document):
    """others(fleet) → the scenario with a fleet of a module beside it."""
    (tmp_path / "my_rings.py").write_text(RINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rings", raising=False)
    del document["clients"]

    def make(kind, **arguments):
        return Scenario.from_dict(document | {"fleet": {"kind": kind, **arguments}})

    return make


def test_a_fleet_of_another_package_by_its_columns_or_its_rows(others):
    scenario = others("my_rings:rings", per_ring=3)
    assert scenario.names == ["n0", "n1", "n2", "n3", "n4", "n5"]
    gains = np.array([client.uplink_gain for client in scenario.clients])
    expected = np.repeat([1e-5, 1e-7], 3) * stream(0, "fading").exponential(size=6)
    assert gains.tolist() == [float(f"{gain:.9g}") for gain in expected]
    assert scenario.document()["fleet"] == {"kind": "my_rings:rings", "per_ring": 3}
    assert others("my_rings:rows") == others("my_rings:rings", per_ring=1)
    other_seed = scenario.with_overrides(["seed=1"])
    assert other_seed.clients[0].uplink_gain != scenario.clients[0].uplink_gain
    assert scenario.with_overrides(["fleet.per_ring=1"]).size == 2


def test_a_fleet_by_the_name_that_an_installed_package_gives_it(others, tmp_path):
    info = tmp_path / "my_rings-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedgap.fleets]\nrings = my_rings:rings\n")
    assert others("rings", per_ring=2).size == 4
    with pytest.raises(InputError, match=r"one of rayleigh, city, rings, or .*; did you mean 'rings'"):
        others("ringss")


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ({"kind": "my_rings:rings"}, "fleet.per_ring: missing (an argument of my_rings:rings)"),
        (
            {"kind": "my_rings:rings", "per_rign": 3},
            "fleet.per_rign: unknown key; did you mean 'per_ring'?",
        ),
        ({"kind": "my_rings:rngs"}, "fleet.kind: my_rings:rngs cannot be imported (AttributeError: "),
        ({"kind": "my_rings:number"}, "fleet.kind: my_rings:number must be a function; it is of type int"),
        (
            {"kind": "my_rings:uneven"},
            "fleet: my_rings:uneven must return columns of equal length, one value per client; got phi 2,"
            " uplink_gain 1",
        ),
        ({"kind": "my_rings:none"}, "fleet: my_rings:none must return 1 to 100000 clients; got 0"),
        (
            {"kind": "my_rings:text"},
            "fleet: my_rings:text must return a list with one mapping per client, or a mapping of columns; got str",
        ),
        (
            {"kind": "my_rings:misspelt"},
            "clients[0].gain: unknown key; did you mean 'uplink_gain'? (drawn by my_rings:misspelt)",
        ),
        ({"kind": "my_rings:broken"}, "fleet: my_rings:broken failed (RuntimeError: no route)"),
        (
            {"kind": "my_rings:rings", "per_ring": 1, "near": -1e-5},
            "clients[0].uplink_gain: must be above 0 (without a channel nothing arrives; -110 dB is 1e-11); got -",
        ),
    ],
)
def test_what_another_packages_fleet_gets_wrong_is_one_line(others, fleet, message):
    with pytest.raises(InputError) as caught:
        others(**fleet)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
