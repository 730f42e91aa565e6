"""JSON Schemas of the files a person writes, for editors and other programs."""

from typing import Any

from fedgap.config.experiment import Experiment
from fedgap.config.fleet_recipes import City, Rayleigh
from fedgap.config.scenario import Scenario
from fedgap.config.scenario_resolution import Shorthand

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of a ``scenario`` file and an ``experiment`` file."""
    return {"scenario": _scenario(), "experiment": {"$schema": _DIALECT, **Experiment.model_json_schema()}}


def _scenario() -> dict[str, Any]:
    """The scenario *file*: the resolved model's keys, and those that are resolved away."""
    result: dict[str, Any] = {"$schema": _DIALECT, **Scenario.model_json_schema()}
    definitions, properties = result["$defs"], result["properties"]
    shorthand = Shorthand.model_json_schema()
    recipes = [model.model_json_schema() for model in (Rayleigh, City)]
    for extra in (shorthand, *recipes):
        definitions |= extra.pop("$defs", {})
    properties |= shorthand["properties"]
    properties["fleet"] = {"anyOf": recipes, "description": "A recipe for the clients, instead of clients."}
    properties["clients"] = {**properties["clients"], "minItems": 1}
    properties["clients"] = {"anyOf": [properties["clients"], {"type": "string", "pattern": r".+"}]}
    result["required"] = [key for key in result["required"] if key != "clients"]
    result["oneOf"] = [{"required": ["clients"]}, {"required": ["fleet"]}]
    for model, optional in (("Client", "downlink_gain"), ("Server", "bandwidth_hz")):
        definitions[model]["required"].remove(optional)
    return result
