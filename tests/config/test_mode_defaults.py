import pytest

from fedgap.config import Scenario
from fedgap.config.mode_defaults import PLANNING_KEYS, mode_readings
from fedgap.config.scenario_sections import SERVER_RATES
from fedgap.errors import InputError
from fedgap.learning.rate_schedules import SCHEDULES
from fedgap.learning.server_optimisers import OPTIMISERS


def readings(scenario: Scenario) -> dict[str, object]:
    return {name: getattr(getattr(scenario, section), key) for name, (section, key) in PLANNING_KEYS.items()}


AS_PRINTED = {
    "statement": "as_printed",
    "aggregation": "sum",
    "constants": "printed",
    "sensitivity": "theorem",
    "dense_first": False,
}
REPAIRED = {
    "statement": "size_normalised",
    "aggregation": "mixture",
    "constants": "corrected",
    "sensitivity": "secant",
    "dense_first": True,
}
CONTRACT = {
    "statement": "size_normalised",
    "aggregation": "mean",
    "constants": "printed",
    "sensitivity": "theorem",
    "dense_first": False,
}


@pytest.fixture
def bare(document):
    """The scenario without any reading written."""
    del document["bound"]["aggregation"], document["bound"]["constants"], document["pruning"]["dense_first"]
    return document


def test_without_a_mode_the_contracts_defaults_hold(bare):
    assert readings(Scenario.from_dict(bare)) == CONTRACT


def test_presets_are_repaired_and_can_be_as_printed():
    assert readings(Scenario.load("paper-mnist")) == REPAIRED
    assert readings(Scenario.load("paper-mnist", ["mode=as_printed"])) == AS_PRINTED


@pytest.mark.parametrize("mode", ["as_printed", "repaired"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bound.statement", "as_printed"),
        ("bound.statement", "size_normalised"),
        ("bound.aggregation", "sum"),
        ("bound.aggregation", "mean"),
        ("bound.aggregation", "mixture"),
        ("bound.constants", "printed"),
        ("bound.constants", "corrected"),
        ("bound.sensitivity", "theorem"),
        ("bound.sensitivity", "secant"),
        ("pruning.dense_first", False),
        ("pruning.dense_first", True),
    ],
)
def test_a_key_wins_over_the_mode_and_leaves_the_others(mode, key, value):
    found = readings(Scenario.load("paper-mnist", [f"mode={mode}", f"{key}={value}"]))
    expected = dict(AS_PRINTED if mode == "as_printed" else REPAIRED)
    expected[key.partition(".")[2]] = value
    assert found == expected


def test_mixture_up_to_twelve_clients_and_mean_above():
    assert Scenario.load("paper-mnist", ["fleet.count=12"]).bound.aggregation == "mixture"
    assert Scenario.load("paper-mnist", ["fleet.count=13"]).bound.aggregation == "mean"


def test_repaired_without_histograms_or_secant(bare):
    scenario = Scenario.from_dict(bare | {"mode": "repaired"})
    assert readings(scenario) == REPAIRED | {"aggregation": "mean", "sensitivity": "theorem"}


def test_the_secant_needs_its_value(bare):
    with pytest.raises(InputError, match=r"secant needs bound\.pruning_sensitivity"):
        Scenario.from_dict(bare, ["bound.sensitivity=secant"])


def test_a_resolved_scenario_has_no_mode_and_the_same_readings(tmp_path):
    scenario = Scenario.load("paper-mnist", ["mode=as_printed"])
    assert "mode" not in scenario.to_dict()
    again = Scenario.load(scenario.save(tmp_path / "s.yaml"), ["mode=repaired"])
    assert readings(again) == AS_PRINTED


def test_practical_reads_the_bound_as_repaired_does_and_has_its_own_learner(bare):
    scenario = Scenario.load("paper-mnist", ["mode=practical"])
    assert readings(scenario) == REPAIRED
    learning = scenario.learning
    assert (learning.local_steps, learning.batches, learning.upload_bits) == ("auto", "balanced", 32)
    assert learning.schedule == "warm_up_cosine"
    assert (learning.server.optimiser, learning.server.rate, learning.server.momentum) == ("momentum", 1.0, 0.9)
    assert learning.rate == 0.01  # which the preset writes
    del bare["learning"]["rate"]
    assert Scenario.from_dict(bare | {"mode": "practical"}).learning.rate == 0.03
    with pytest.raises(InputError, match=r"learning\.rate: missing"):
        Scenario.from_dict(bare | {"mode": "repaired"})


def test_keys_that_are_written_win_over_practical():
    keys = ["learning.local_steps=1", "learning.server.momentum=0.5", "learning.batches=as_is"]
    learning = Scenario.load("paper-mnist", ["mode=practical", *keys]).learning
    assert (learning.local_steps, learning.batches) == (1, "as_is")
    assert (learning.server.optimiser, learning.server.momentum) == ("momentum", 0.5)
    server = Scenario.load("paper-mnist", ["mode=practical", "learning.server.optimiser=adam"]).learning.server
    assert (server.optimiser, server.rate) == ("adam", 0.01)


def test_the_other_modes_say_nothing_about_the_learner():
    for mode in ("as_printed", "repaired"):
        scenario = Scenario.load("paper-mnist", [f"mode={mode}", "learning.local_steps=4"])
        assert scenario.learning.local_steps == 4
        assert Scenario.load("paper-mnist", [f"mode={mode}"]).learning.model_dump(exclude_defaults=True) == {
            "rate": 0.01, "batch_size": 32}


def test_each_optimisers_default_rate_is_the_learners():
    assert {name: kind.default_rate for name, kind in OPTIMISERS.items()} == SERVER_RATES
    schedules = Scenario.file_schema()["$defs"]["Learning"]["properties"]["schedule"]["enum"]
    assert schedules == list(SCHEDULES)


def test_the_modes_differ_in_every_reading():
    printed = mode_readings("as_printed", clients=10, counts_known=True, secant_known=True)
    repaired = mode_readings("repaired", clients=10, counts_known=True, secant_known=True)
    assert printed.keys() == repaired.keys()
    assert all(printed[name] != repaired[name] for name in printed)
