"""The files that people write: scenarios, experiments, presets, overrides."""

from typing import TYPE_CHECKING, Any

from fedgap.config.document import PRESETS, kind_of, preset_text
from fedgap.config.init_template import write_template
from fedgap.config.scenario import Scenario
from fedgap.config.scenario_sections import Bound, Budget, Client, Learning, Model, Pruning, Server

if TYPE_CHECKING:
    from fedgap.config.experiment import Experiment

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
    "kind_of",
    "preset_text",
    "schema",
    "write_template",
]


def __getattr__(name: str) -> Any:
    """Import ``Experiment`` when it is first used: planning does not need it, and its sections take time to build."""
    if name != "Experiment":
        raise AttributeError(f"module 'fedgap.config' has no attribute {name!r}")
    from fedgap.config.experiment import Experiment

    return Experiment


def schema() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of a ``scenario`` file and of an ``experiment`` file, by these names."""
    from fedgap.config.experiment import Experiment

    return {"scenario": Scenario.file_schema(), "experiment": Experiment.file_schema()}
