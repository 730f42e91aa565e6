"""What ``fedgap studio NAME`` opens: a preset, the file of a scenario or an experiment, or a folder of runs.

The page cannot choose files of this machine; it gets only what the command line named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedgap.config import PRESETS, Experiment, Scenario
from fedgap.config.document import kind_of
from fedgap.config.mode_defaults import PLANNING_KEYS
from fedgap.errors import InputError, did_you_mean
from fedgap.registry import AGGREGATORS, DATA, MODELS, OBJECTIVES, POLICIES, SCHEMES, SELECTION, Registry
from fedgap.web.documents import open_scenario
from fedgap.web.runs import Runs, is_run

_TEMPLATE = ("experiment.yaml", "scenario.yaml")
"""The files that ``fedgap init`` writes into a folder; the first one that exists is opened."""


@dataclass(frozen=True)
class Opened:
    """What the command line asked the studio to open."""

    kind: Literal["nothing", "preset", "scenario", "experiment", "runs"] = "nothing"
    name: str = ""
    """A preset's name or a path, as it was typed."""
    document: dict[str, Any] | None = None
    """The scenario, with the clients of its CSV file, if it has one; None for presets and runs."""
    experiment: Experiment | None = None
    runs: Path | None = None
    """The folder of runs, if one was named."""
    run: str | None = None
    """The run to show first, if a single run was named."""

    def to_dict(self) -> dict[str, Any]:
        """The values that are sent to the page."""
        return {"kind": self.kind, "name": self.name, "document": self.document, "run": self.run,
                "training": None if self.experiment is None else _training(self.experiment)}

    def trained(self, scenario: Scenario, choices: dict[str, Any]) -> Experiment:
        """The opened experiment with the page's scenario and choices; its data, model, partition and engine are kept.

        The scenario on the page contains the experiment's rounds, budgets, readings and learner, possibly changed by
        the user, so they replace those of the experiment."""
        if self.experiment is None:
            raise InputError("opened: needs an experiment; start the studio with `fedgap studio EXPERIMENT.yaml`")
        kept = {key: value for key, value in self.experiment.to_dict().items() if key not in ("rounds", "budget")}
        if self.experiment.policy in POLICIES.names():
            del kept["policy"]  # the form on the page has the present choice
        resolved = scenario.to_dict()
        readings = {name: resolved[section][key] for name, (section, key) in PLANNING_KEYS.items()
                    if key in resolved.get(section, {})}
        learner = scenario.learning.model_dump(mode="json", exclude={"batch_size"})
        learner["aggregator"] = choices.pop("aggregator", None) or self.experiment.learning.aggregator
        document = kept | {"scenario": scenario.document(), "learning": learner} | readings | choices
        return Experiment.from_dict(document, folder=self.experiment.folder)


def open_named(name: str | None) -> Opened:
    """Open what the command line named. Errors are an InputError of one line."""
    if name is None:
        return Opened()
    path = Path(name)
    if name not in (*PRESETS["scenario"], *PRESETS["experiment"]):
        if path.is_dir():
            return _open_folder(name, path)
        if not path.exists() and not path.suffix:
            known = (*PRESETS["scenario"], *PRESETS["experiment"])
            hint = did_you_mean(name, known) or f"; presets: {', '.join(known)}"
            raise InputError(f"{name}: must be a file, a folder or a preset{hint}")
    return _open_file(name)


def _open_folder(name: str, folder: Path) -> Opened:
    if is_run(folder):
        folder = folder.resolve()
        return Opened("runs", name, runs=folder.parent, run=folder.name)
    if Runs(folder).names():
        return Opened("runs", name, runs=folder)
    for file in _TEMPLATE:
        if (folder / file).is_file():
            return _open_file(str(folder / file))
    raise InputError(f"{name}: must contain runs or a file {' or '.join(_TEMPLATE)}; to choose a folder for new runs, "
                     "use --runs")


def _open_file(name: str) -> Opened:
    if Path(name).suffix.lower() != ".csv" and kind_of(name) == "experiment":
        experiment = Experiment.load(name)
        document = _planned_with(experiment).document()
        open_scenario(document, [])  # raises an error if the page could not show it
        return Opened("experiment", name, document, experiment)
    scenario = Scenario.load(name)
    if name in PRESETS["scenario"]:
        return Opened("preset", name)
    document = scenario.document()
    open_scenario(document, [])
    return Opened("scenario", name, document)


def _planned_with(experiment: Experiment) -> Scenario:
    """The scenario with which the experiment is planned.

    If the experiment takes labels or the model's sizes from the data and the model, these are read, which takes a few
    seconds."""
    try:
        return experiment.planning_scenario()
    except InputError:
        from fedgap.running.prepare import divide

        return divide(experiment)[2]


def _training(experiment: Experiment) -> dict[str, Any]:
    """The defaults of the form that starts a run. A choice is None if only the experiment's file can name it."""
    chosen: dict[str, Any] = {"seed": experiment.seed, "evaluate_every": experiment.evaluate_every,
                              "concentration": experiment.partition.concentration,
                              "data_name": experiment.data.name, "model_name": experiment.model.name}
    named: tuple[tuple[str, str | None, Registry], ...] = (
        ("data", experiment.data.name, DATA), ("model", experiment.model.name, MODELS),
        ("aggregator", experiment.learning.aggregator, AGGREGATORS), ("scheme", experiment.scheme, SCHEMES),
        ("objective", experiment.objective, OBJECTIVES), ("selection", experiment.selection, SELECTION),
        ("policy", experiment.policy, POLICIES))
    # The page may use only registered names. The experiment keeps other names in its file.
    return chosen | {key: name if name in registry.names() else None for key, name, registry in named}
