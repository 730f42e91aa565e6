"""What a person writes down: scenarios, experiments, presets, overrides."""

from fedgap.config.document_source import PRESETS, preset_text
from fedgap.config.experiment import Experiment
from fedgap.config.init_template import write_template
from fedgap.config.scenario import Scenario
from fedgap.config.scenario_sections import Bound, Budget, Client, Learning, Model, Pruning, Server
from fedgap.config.schemas import schema

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
