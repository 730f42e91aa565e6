"""The experiment: all that training needs, checked."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy.typing as npt
from pydantic import BeforeValidator, PrivateAttr, ValidationError, WithJsonSchema

from fedgap.config import error_messages, mode_defaults
from fedgap.config.checked_fields import Number, Truth, count, wrong
from fedgap.config.document_source import PRESETS, open_source
from fedgap.config.error_messages import shown
from fedgap.config.experiment_sections import (
    BudgetChoice,
    Data,
    Engine,
    Faults,
    ModelChoice,
    Partition,
    PruningChoice,
    Scheme,
    Solver,
)
from fedgap.config.overrides import Override, apply, blame, parse_overrides
from fedgap.config.references import beside, open_scenario
from fedgap.config.scenario import Scenario
from fedgap.config.scenario_resolution import Resolved, plain, stripped, with_histograms
from fedgap.config.scenario_sections import Rounds, Section
from fedgap.config.yaml_writer import write_document
from fedgap.errors import InputError


def _reference(value: Any) -> str | dict[str, Any]:
    if isinstance(value, (str, dict)) and value:
        return value
    raise wrong(f"must be a file's name, a preset, or the scenario itself; got {shown(value)}")


Reference = Annotated[
    Any, BeforeValidator(_reference), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
Every = Annotated[int, count("it counts rounds")]


@error_messages.register
class Experiment(Section):
    """All that training needs beside the plan: scenario, data, model, readings, engine.

    Each reading is what the experiment's key says; otherwise what the experiment's mode says; otherwise what the
    scenario's key says; otherwise what the scenario's mode says; otherwise ``repaired``.
    """

    format: Annotated[int, Number(at_least=1, at_most=1, whole=True, reason="the only format there is")] = 1
    """The version of the file format."""
    scenario: Reference
    """A scenario's file, a preset, or the scenario itself."""
    data: Data = Data()
    """The data set."""
    partition: Partition = Partition()
    """Who has what."""
    model: ModelChoice = ModelChoice()
    """The model that is trained."""
    pruning: PruningChoice = PruningChoice()
    """How weights are ranked and what an upload is charged for."""
    mode: mode_defaults.Mode | None = None
    """as_printed, or repaired (the default, unless the scenario has a mode): every reading that has no key here."""
    statement: mode_defaults.Statement | None = None
    """How φ comes from label histograms."""
    aggregation: mode_defaults.Aggregation | None = None
    """How the clients' φ enter the bound."""
    constants: mode_defaults.Constants | None = None
    """Theorem 1's constants as printed or corrected."""
    sensitivity: mode_defaults.Sensitivity | None = None
    """Where γ₂·R comes from."""
    dense_first: Truth | None = None
    """Whether round 0 is unpruned and importance remembers each weight's last known gradient."""
    evaluate_pruned: Truth | None = None
    """Whether the pruned model, which is the one trained, is evaluated and shipped."""
    importance_weights: mode_defaults.ImportanceWeights | None = None
    """Which weights enter the importance: the previous round's (as printed) or the current ones."""
    scheme: Scheme = "proposed"
    """What the planner may decide: all of it, or one of the paper's five baselines."""
    solver: Solver = "exact"
    """exact (certified), or alternating (the paper's Algorithm 1)."""
    seed: Annotated[int, count("a seed is not negative", at_least=0, limit=2**53)] = 0
    """Root seed of the partition, the model, the batches and the faults. (The channels have the scenario's.)"""
    rounds: Rounds | None = None
    """Replaces the scenario's number of rounds."""
    budget: BudgetChoice = BudgetChoice()
    """Replaces the scenario's budgets."""
    evaluate_every: Every = 10
    """Rounds between two evaluations on the test set."""
    checkpoint_every: Every = 50
    """Rounds between two checkpoints."""
    interleave: Literal["even", "blocks"] = "even"
    """How the plan's segments follow each other: mixed evenly, or one block after another."""
    engine: Engine = Engine()
    """How gradients are computed."""
    faults: Faults = Faults()
    """What goes wrong."""

    _written: Any = PrivateAttr(default=None)
    _overrides: tuple[Override, ...] = PrivateAttr(default=())
    _folder: Path = PrivateAttr(default=Path())
    _base: Resolved | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, source: str | Path, overrides: Iterable[str | Override] = ()) -> Self:
        """Read an experiment from a ``.yaml`` or ``.json`` file, or by a preset's name.

        :param overrides: ``key.path=value`` texts; ``scenario.key=value`` reaches into the scenario.
        :raises InputError: one line that names the key and says what would be right.
        """
        found = open_source(source, "experiment")
        return cls._build(found.value, found.label, found.folder, parse_overrides(overrides))

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], overrides: Iterable[str | Override] = (), folder: str | Path = "."
    ) -> Self:
        """An experiment from a dict with the keys of an experiment file."""
        return cls._build(plain(document), "experiment", Path(folder), parse_overrides(overrides))

    @classmethod
    def _build(cls, written: Any, label: str, folder: Path, overrides: Sequence[Override]) -> Self:
        if not isinstance(written, Mapping):
            raise InputError(f"{label}: must be a mapping of keys such as scenario and data; got {shown(written)}")
        try:
            outer = [o for o in overrides if o.path[0] != "scenario" or len(o.path) == 1]
            inner = [Override(o.path[1:], o.value, o.text) for o in overrides if o not in outer]
            document = beside(stripped(apply(dict(written), outer)), folder)
            try:
                experiment = cls.model_validate(document)
            except ValidationError as error:
                raise error_messages.first_error(error, document) from None
            _check_partition(experiment, document, outer)
            experiment._written, experiment._overrides, experiment._folder = written, tuple(overrides), folder
            experiment._base = open_scenario(experiment.scenario, folder, inner)
            experiment._check_scenario()
        except InputError as error:
            raise blame(error, overrides) from None
        return experiment

    def _check_scenario(self) -> None:
        """A scenario without φ will get label histograms from the partition; everything else is checked now."""
        base, document = self.resolved_base(), self._scenario_document()
        clients = base.scenario["clients"]
        clients = [{"phi": 0.0, **client} if isinstance(client, dict) else client for client in clients]
        document |= {"clients": clients, "fleet": None, "labels": None}
        document["target_counts"] = base.scenario.get("target_counts")
        if isinstance(document.get("bound"), dict) and self.readings["aggregation"] == "mixture":
            document["bound"] = {**document["bound"], "aggregation": "mean"}
        try:
            Scenario.from_dict(document)
        except InputError as error:
            raise InputError(f"scenario.{base.locate(error)}") from None

    @property
    def folder(self) -> Path:
        """What the paths in it are relative to."""
        return self._folder

    def resolved_base(self) -> Resolved:
        """The scenario that it names, resolved, before this experiment's own choices."""
        assert self._base is not None, "an experiment is built by load or from_dict"
        return self._base

    @property
    def size(self) -> int:
        """N: the number of the scenario's clients."""
        return len(self.resolved_base().scenario["clients"])

    @property
    def readings(self) -> dict[str, Any]:
        """Every reading after the modes: statement, aggregation, constants, sensitivity, dense_first, evaluate_pruned,
        importance_weights, and the ``mode`` itself.
        """
        base = self.resolved_base()
        mode = self.mode or base.document.get("mode") or "repaired"
        bound = base.document.get("bound")
        secant_known = isinstance(bound, dict) and "pruning_sensitivity" in bound
        found = mode_defaults.mode_readings(mode, clients=self.size, counts_known=True, secant_known=secant_known)
        if self.mode is None:
            for name, (section, key) in mode_defaults.PLANNING_KEYS.items():
                written = base.document.get(section)
                if isinstance(written, dict) and key in written:
                    found[name] = written[key]
        found |= {name: getattr(self, name) for name in found if getattr(self, name) is not None}
        return {"mode": mode, **found}

    def _scenario_document(self) -> dict[str, Any]:
        """The scenario's document with this experiment's rounds, budgets and readings in it."""
        base = self.resolved_base()
        document = {key: value for key, value in base.document.items() if key != "mode"}
        changes: dict[str, dict[str, Any]] = {"budget": self.budget.model_dump(exclude_none=True)}
        readings = self.readings
        for name, (section, key) in mode_defaults.PLANNING_KEYS.items():
            changes.setdefault(section, {})[key] = readings[name]
        for section, keys in changes.items():
            if isinstance(document.get(section), dict):
                document[section] = {**document[section], **keys}
        if self.rounds is not None:
            document["rounds"] = self.rounds
        return document

    def planning_scenario(
        self,
        label_counts: npt.ArrayLike | None = None,
        target_counts: npt.ArrayLike | None = None,
        client_target_counts: npt.ArrayLike | None = None,
    ) -> Scenario:
        """The scenario that is planned with: the referenced one with this experiment's rounds, budgets and readings.

        :param label_counts: training histograms of the real partition, shape (N, classes), which then replace what the
            scenario has; :param target_counts: of the target set, (classes,);
        :param client_target_counts: of each client's own target set, (N, classes).
        """
        base, document = self.resolved_base(), self._scenario_document()
        if label_counts is not None:
            if target_counts is None:
                raise ValueError("label_counts come with target_counts")
            resolved = Resolved(document, base.scenario, base.table)
            document = with_histograms(resolved, label_counts, target_counts, client_target_counts)
        return Scenario.from_dict(document, folder=self._folder)

    def with_overrides(self, overrides: Iterable[str | Override]) -> Self:
        """This experiment with further ``key.path=value`` overrides: as if it had been loaded with them."""
        return self._build(
            self._written, "experiment", self._folder, [*self._overrides, *parse_overrides(overrides)]
        )

    def to_dict(self) -> dict[str, Any]:
        """The experiment as plain values, self-contained: readings resolved, and a scenario's file written out."""
        document = self.model_dump(mode="json", exclude_none=True) | self.readings
        reached_into = any(o.path[0] == "scenario" and len(o.path) > 1 for o in self._overrides)
        if reached_into or self.scenario not in PRESETS["scenario"]:
            document["scenario"] = self.resolved_base().document
        return document

    def save(self, path: str | Path) -> Path:
        """Write the experiment as YAML, or as JSON where the path ends so."""
        return write_document(self.to_dict(), Path(path))

    def hash(self) -> str:
        """16 hex digits that change with anything in the experiment."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Experiment) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.hash())


def _check_partition(experiment: Experiment, document: Mapping[str, Any], overrides: Sequence[Override]) -> None:
    """A partition's file that nobody would read is refused, unless its kind was chosen with it (as a sweep may)."""
    kind, given = experiment.partition.kind, {o.path for o in overrides}
    if experiment.partition.file is None or kind == "file":
        return
    by_file = "kind" in document["partition"] and ("partition", "file") not in given
    if not by_file and ("partition", "kind") not in given:
        raise InputError(f"partition.file: is read where partition.kind is file; it is {kind}")
