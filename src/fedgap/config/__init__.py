"""The files that people write: scenarios, experiments, presets, overrides."""

from typing import Any

from fedgap.config.document import PRESETS, preset_text
from fedgap.config.experiment import Experiment
from fedgap.config.init_template import write_template
from fedgap.config.scenario import Scenario
from fedgap.config.scenario_sections import Bound, Budget, Client, Learning, Model, Pruning, Server

__all__ = [
    "PRESETS",
    "Bound",
    "Budget",
    "Client",
    "Experiment",
    "Learning",
    "Model",
    "Pruning",
    "Scenario",
    "Server",
    "preset_text",
    "schema",
    "write_template",
]


def schema() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of a ``scenario`` file and an ``experiment`` file."""
    return {"scenario": Scenario.file_schema(), "experiment": Experiment.file_schema()}
