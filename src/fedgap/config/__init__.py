"""What a person writes down: scenarios, experiments, presets, overrides."""

from fedgap.config.experiment import Experiment
from fedgap.config.scenario import Scenario
from fedgap.config.schemas import schema
from fedgap.config.sections import Bound, Budget, Client, Learning, Model, Pruning, Server
from fedgap.config.sources import PRESETS, preset_text
from fedgap.config.template import write_template

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
