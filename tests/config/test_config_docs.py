"""The reference pages name every key, and what they show can be loaded."""

import re
from pathlib import Path

import pytest

from fedgap.config import Experiment, Scenario
from fedgap.config import experiment_sections as parts
from fedgap.config import fleet_recipes as recipes
from fedgap.config import scenario_sections as sections
from fedgap.config.yaml_files import parse

DOCS = Path(__file__).parents[2] / "docs"
SCENARIO, EXPERIMENT = DOCS / "reference" / "scenario.md", DOCS / "reference" / "experiment.md"
FLEET = DOCS / "how-to" / "describe-a-fleet.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def words(page: Path) -> set[str]:
    """The last part of every key in code quotes."""
    return {word.rpartition(".")[2] for word in re.findall(r"`([a-z_0-9.]+)`", page.read_text())}


@pytest.mark.parametrize(
    "model",
    [
        *(sections.Budget, sections.Learning, sections.Model, sections.Pruning, sections.Bound, sections.Server),
        *(sections.Client, sections.ServerChoice, sections.ClientChoice, sections.ForecastSection),
        sections.ForecastRanges,
        *(recipes.Rayleigh, recipes.City, recipes.Tier, recipes.Labels),
    ],
)
def test_every_key_of_a_scenario_is_documented(model):
    assert set(model.model_fields) - {"kind"} <= words(SCENARIO)


@pytest.mark.parametrize(
    "model",
    [
        *(parts.Data, parts.PartitionChoice, parts.ModelChoice, parts.LearningChoice, parts.PruningChoice),
        *(parts.BudgetChoice, parts.EngineChoice, parts.FaultsChoice, parts.Stop),
    ],
)
def test_every_key_of_an_experiment_is_documented(model):
    assert set(model.model_fields) <= words(EXPERIMENT)


def test_every_top_key_is_documented():
    documented = SCENARIO.read_text()
    assert all(f"`{key}" in documented for key in Scenario.model_fields)
    documented = EXPERIMENT.read_text()
    assert all(f"`{key}" in documented for key in Experiment.model_fields)


def test_the_examples_load(tmp_path, document, monkeypatch):
    (scenario,) = blocks(SCENARIO, "yaml")
    assert Scenario.from_dict(parse(scenario, "docs")).size == 1
    (experiment,) = blocks(EXPERIMENT, "yaml")
    assert Experiment.from_dict(parse(experiment, "docs")).size == 10
    listed, rayleigh, rings = blocks(FLEET, "yaml")
    del document["clients"]
    assert Scenario.from_dict(document | parse(listed, "docs")).names == ["kitchen", "garage"]
    assert Scenario.from_dict(document | parse(rayleigh, "docs")).size == 10
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_fleets.py").write_text(blocks(FLEET, "python")[0])
    assert Scenario.from_dict(document | parse(rings, "docs")).size == 6
    (table,) = blocks(FLEET, "csv")
    (tmp_path / "fleet.csv").write_text(table)
    target = {"target_counts": [10] * 10}
    assert Scenario.from_dict(document | target | {"clients": "fleet.csv"}, folder=tmp_path).size == 2
