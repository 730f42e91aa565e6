"""Files that fedgap 0.1.0 wrote are read as before, with the same hashes: plans, runs and sweeps carry those."""

import json
from pathlib import Path

import pytest

from fedgap.config import Experiment, Scenario
from fedgap.config.yaml_files import parse

WRITTEN = Path(__file__).parent / "written_by_0_1"
CITY = ["mode=repaired", "learning.rate=0.01", "forecast=", "learning.local_steps="]
"""What the preset was."""


@pytest.mark.parametrize(("kind", "preset", "digits"), [
    (Scenario, "paper-mnist", "00adfc160d88ff11"),
    (Scenario, "paper-cifar10", "19cb6887c8c2b0fa"),
    (Experiment, "embedded", "b8186943ef99aed1"),
    (Experiment, "mnist", "62785975feb4d412"),
    (Experiment, "cifar10", "3ab791a93cb61172"),
])  # fmt: skip
def test_the_presets_have_the_hashes_of_0_1(kind, preset, digits):
    assert kind.load(preset).hash() == digits


def test_the_city_of_0_1_had_the_papers_learner():
    assert Scenario.load("city", CITY).hash() == "bec0e01ca9453340"
    resolved = Scenario.load("city", [*CITY[:3], "learning.local_steps=1", "learning.batches=as_is"])
    assert resolved.hash() == "bec0e01ca9453340"  # a default that is written changes nothing


def test_a_scenario_and_its_plan():
    scenario = Scenario.load(WRITTEN / "scenario.yaml")
    assert json.loads((WRITTEN / "plan.json").read_text())["scenario_hash"] == scenario.hash() == "ea17dfed33f4d647"
    assert scenario == Scenario.load("city", [*CITY, "fleet.count=2", "rounds=20"])


def test_a_runs_config(tmp_path):
    """Its clients came from a CSV, whose cells 0.1 wrote as texts; the aggregator has no key there."""
    experiment = Experiment.load(WRITTEN / "config.yaml")
    assert experiment.hash() == "328ce4e3fd5a05dd"
    assert experiment.planning_scenario().hash() == "293e92c28c696d33"
    assert experiment.learning.aggregator == "mean"
    saved = experiment.save(tmp_path / "config.yaml")
    assert parse(saved.read_text(), "saved") == parse((WRITTEN / "config.yaml").read_text(), "written")
