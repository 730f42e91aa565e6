"""The experiment: everything that training needs, with all values checked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy.typing as npt
from pydantic import BeforeValidator, PrivateAttr, ValidationError, WithJsonSchema

from fedgap.config import error_messages, mode_defaults
from fedgap.config.checked_fields import Format, Named, Seed, Truth, count, wrong
from fedgap.config.document import PRESETS, Document, Written, exists, open_document, stripped
from fedgap.config.error_messages import shown
from fedgap.config.experiment_sections import (
    BudgetChoice,
    Data,
    EngineChoice,
    FaultsChoice,
    LearningChoice,
    ModelChoice,
    PartitionChoice,
    PruningChoice,
    Stop,
)
from fedgap.config.overrides import Override, apply
from fedgap.config.scenario import Scenario
from fedgap.config.scenario_resolution import Resolved, resolve, with_histograms
from fedgap.config.scenario_sections import Rounds
from fedgap.errors import InputError
from fedgap.registry import OBJECTIVES, POLICIES, SCHEMES, SELECTION, TRACKERS


def _reference(value: Any) -> str | dict[str, Any]:
    if isinstance(value, (str, dict)) and value:
        return value
    raise wrong(f"must be the name of a file or a preset, or a mapping with the scenario itself; got {shown(value)}")


Reference = Annotated[
    Any, BeforeValidator(_reference), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
Every = Annotated[int, count("it counts rounds")]
Trackers = Annotated[tuple[Annotated[str, Named(TRACKERS)], ...],
                     BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""A list of names of trackers, or one name."""


@error_messages.register
class Experiment(Document):
    """Everything that training needs besides the plan: scenario, data, model, how the paper is read, and engine.

    >>> experiment = fedgap.Experiment.load("embedded", ["seed=1", "scenario.budget.delay_s=120"])
    >>> experiment.data.name, experiment.size, experiment.seed
    ('embedded', 10, 1)

    The first argument is a preset or a file; the others change keys.

    Some keys are readings: they choose between several ways to understand the paper. The value of a reading comes from
    the first of these that is given: the experiment's key, the experiment's mode, the scenario's key, the scenario's
    mode, and otherwise the mode ``repaired``.
    """

    kind: ClassVar[str] = "experiment"
    format: Format = 1
    """The version of the file format."""
    scenario: Reference
    """The name of a scenario file or a preset, or a mapping with the scenario itself."""
    data: Data = Data()
    """The data set."""
    partition: PartitionChoice = PartitionChoice()
    """How the data are divided among the clients."""
    model: ModelChoice = ModelChoice()
    """The model that is trained."""
    learning: LearningChoice = LearningChoice()
    """How clients and server learn, if different from the scenario."""
    pruning: PruningChoice = PruningChoice()
    """What is pruned, how weights are ranked, and how the size of an upload is counted."""
    mode: mode_defaults.Mode | None = None
    """Which defaults are used for keys that are left out: as_printed, repaired (the default, unless the scenario has a
    mode), or practical."""
    statement: mode_defaults.Statement | None = None
    """How φ is computed from label histograms; by default the mode's."""
    aggregation: mode_defaults.Aggregation | None = None
    """How Φ of a round follows from the φ of its clients; by default the mode's."""
    constants: mode_defaults.Constants | None = None
    """Whether Theorem 1's constants are used as printed or corrected; by default the mode's."""
    sensitivity: mode_defaults.Sensitivity | None = None
    """Where γ₂·R comes from: theorem, or secant (measured); by default the mode's."""
    dense_first: Truth | None = None
    """Whether round 0 is not pruned, so that every weight has a gradient by which it can be ranked; by default the
    mode's."""
    evaluate_pruned: Truth | None = None
    """Whether the pruned model, which is the one that is trained, is evaluated and saved; by default the mode's."""
    importance_weights: mode_defaults.ImportanceWeights | None = None
    """Which weights the importance is computed from: those of the previous round (as printed) or the current ones; by
    default the mode's."""
    scheme: Annotated[str, Named(SCHEMES)] = "proposed"
    """What the planner may decide: proposed (everything), one of the paper's five baselines, or package.module:NAME."""
    objective: Annotated[str, Named(OBJECTIVES)] | None = None
    """What the plan minimises, in place of the scheme's objective; a name or package.module:NAME."""
    selection: Annotated[str, Named(SELECTION)] | None = None
    """A rule that selects the clients; the planner decides the rest for them. A name or package.module:NAME."""
    policy: Annotated[str, Named(POLICIES)] | None = None
    """What decides each round during training: static, replan, lyapunov, random, a selection rule such as oort, or
    package.module:NAME; by default the plan is followed."""
    solver: Literal["exact", "alternating"] = "exact"
    """exact (certified), or alternating (the paper's Algorithm 1)."""
    seed: Seed = 0
    """Seed of the partition, the model, the batches and the faults. (The channels use the scenario's seed.)"""
    rounds: Rounds | None = None
    """Replaces the scenario's number of rounds."""
    budget: BudgetChoice = BudgetChoice()
    """Replaces the scenario's budgets."""
    evaluate_every: Every = 10
    """Rounds between two evaluations on the test set."""
    checkpoint_every: Every = 50
    """Rounds between two checkpoints."""
    interleave: Literal["even", "blocks"] = "even"
    """The order of the plan's segments (sets of equal rounds): mixed evenly, or one segment after another."""
    engine: EngineChoice = EngineChoice()
    """How gradients are computed."""
    faults: FaultsChoice = FaultsChoice()
    """Simulated faults."""
    stop: Stop = Stop()
    """When to end the training early."""
    trackers: Trackers = ()
    """Logs in addition to rounds.jsonl: tensorboard or package.module:NAME; one name, or a list."""

    _base: Resolved = PrivateAttr()
    """The scenario that the experiment names, without the changes that the experiment makes to it."""

    @classmethod
    def _checked(cls, written: Written, overrides: Sequence[Override]) -> Self:
        if not isinstance(written.value, Mapping):
            raise InputError(
                f"{written.label}: must be a mapping of keys such as scenario and data; got {shown(written.value)}"
            )
        outer = [o for o in overrides if o.path[0] != "scenario" or len(o.path) == 1]
        inner = [Override(o.path[1:], o.value, o.text) for o in overrides if o not in outer]
        document = _with_absolute_paths(stripped(apply(dict(written.value), outer)), written.folder)
        try:
            experiment = cls.model_validate(document)
        except ValidationError as error:
            raise error_messages.first_error(error, document) from None
        _check_partition(experiment, document, outer)
        base = _open_scenario(experiment.scenario, written.folder, inner)
        if (experiment.mode or base.document.get("mode")) == "practical":
            document = _practical(document, base, inner)
            try:
                experiment = cls.model_validate(document)
            except ValidationError as error:  # a wrong value in the scenario's section learning
                raise error_messages.first_error(error, document) from None
        experiment._base = base
        experiment._checked_scenario()
        return experiment

    def _checked_scenario(self) -> Scenario:
        """Check the scenario and return it with this experiment's changes.

        φ and the sizes of the model may be missing, because they can be computed from data and model later. They are
        replaced by placeholders here.
        """
        base, document = self._base, with_model_sizes(self._scenario_document(), dict.fromkeys(MODEL_SIZES, 1.0))
        clients = base.scenario["clients"]
        clients = [{"phi": 0.0, **client} if isinstance(client, dict) else client for client in clients]
        document |= {"clients": clients, "fleet": None, "labels": None}
        document["target_counts"] = base.scenario.get("target_counts")
        if isinstance(document.get("bound"), dict) and self.readings["aggregation"] == "mixture":
            document["bound"] = {**document["bound"], "aggregation": "mean"}
        try:
            return Scenario.from_dict(document)
        except InputError as error:
            raise InputError(f"scenario.{base.locate(error)}") from None

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return len(self._base.scenario["clients"])

    @property
    def outline(self) -> str:
        """One line with data, model, number of clients, scheme, mode and seed."""
        return (f"{self.data.name}, {self.model.name}, {self.size} clients, scheme {self.scheme}, mode "
                f"{self.readings['mode']}, seed {self.seed}")

    @property
    def run_name(self) -> str:
        """The default name of a run's folder: data, scheme (with objective, selection and policy, if given), seed."""
        data = Path(self.data.name.replace(":", "-")).stem
        scheme = "+".join(name for name in (self.scheme, self.objective, self.selection, self.policy) if name)
        return f"{data}-{scheme.replace(':', '-')}-seed{self.seed}"

    @property
    def readings(self) -> dict[str, Any]:
        """The value of every reading by its key, and the ``mode``, from the keys and modes of experiment and
        scenario."""
        document = self._base.document
        mode = self.mode or document.get("mode") or "repaired"
        bound = document.get("bound")
        secant_known = isinstance(bound, dict) and "pruning_sensitivity" in bound
        readings = mode_defaults.mode_readings(mode, clients=self.size, counts_known=True, secant_known=secant_known)
        if self.mode is None:
            for name, (section, key) in mode_defaults.PLANNING_KEYS.items():
                written = document.get(section)
                if isinstance(written, dict) and key in written:
                    readings[name] = written[key]
        readings |= {name: getattr(self, name) for name in readings if getattr(self, name) is not None}
        return {"mode": mode, **readings}

    @property
    def step_limits(self) -> tuple[int, float]:
        """The batch size of a step, and the largest ratio that any client may prune."""
        scenario = self._checked_scenario()
        return scenario.learning.batch_size, scenario.largest_ratio

    @property
    def usual_local_steps(self) -> int:
        """τ, the local steps per round; for ``auto``, the value that is used before a plan decides it."""
        return self._checked_scenario().learning.usual_local_steps

    @property
    def radio(self) -> tuple[float, float, float]:
        """Noise density in W/Hz, and transmit power in W and bandwidth in Hz of the scenario's first client."""
        scenario = self._checked_scenario()
        first = scenario.clients[0]
        return scenario.noise_psd_w_hz, first.max_power_w, first.bandwidth_hz

    @property
    def leaves_sizes_out(self) -> bool:
        """Whether the scenario leaves out one of :data:`MODEL_SIZES`, which is then computed from the model."""
        document = self._base.document
        return with_model_sizes(document, dict.fromkeys(MODEL_SIZES, 1.0)) is not document

    def _scenario_document(self) -> dict[str, Any]:
        """Return the scenario's document with this experiment's rounds, budgets, learner and readings, without a
        mode."""
        document = {key: value for key, value in self._base.document.items() if key != "mode"}
        return self._with_choices(document, self.readings)

    def _with_choices(self, document: dict[str, Any], readings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a scenario's document with this experiment's rounds, budgets and learner, and with these readings."""
        changes: dict[str, dict[str, Any]] = {"budget": self.budget.model_dump(exclude_none=True)}
        if isinstance(document.get("learning"), dict):
            learner = self.learning.model_dump(mode="json", exclude_unset=True, exclude={"aggregator"})
            changes["learning"] = mode_defaults.merged(document["learning"], learner)
        for name, (section, key) in mode_defaults.PLANNING_KEYS.items():
            if readings[name] is not None:
                changes.setdefault(section, {})[key] = readings[name]
        if self.rounds is not None:
            document = document | {"rounds": self.rounds}
        return _changed(document, changes)

    def planning_scenario(
        self,
        label_counts: npt.ArrayLike | None = None,
        target_counts: npt.ArrayLike | None = None,
        client_target_counts: npt.ArrayLike | None = None,
        model_sizes: Mapping[str, Any] | None = None,
    ) -> Scenario:
        """Return the scenario that is used for planning, with this experiment's rounds, budgets, learner and readings.

        :param label_counts: label histograms of the clients' training data, shape (N, classes), which replace those of
            the scenario; :param target_counts: histogram of the target set, (classes,);
        :param client_target_counts: histogram of each client's own target set, (N, classes);
        :param model_sizes: ``gradient_bits``, ``flops_per_sample`` and, with channels, ``cost_curve`` of the
            experiment's model, for a scenario that leaves them out.
        """
        document = with_model_sizes(self._scenario_document(), model_sizes or {})
        if label_counts is not None:
            if target_counts is None:
                raise ValueError("label_counts and target_counts must be given together")
            resolved = replace(self._base, document=document)
            document = with_histograms(resolved, label_counts, target_counts, client_target_counts)
        return Scenario.from_dict(document, folder=self.folder)

    def measured_scenario(
        self, histograms: Sequence[npt.ArrayLike | None], constants: Mapping[str, Mapping[str, float]],
        forecast: Mapping[str, Any] | None = None,
    ) -> Scenario:
        """Return the scenario as it was written, but with this experiment's changes and with measured values.

        Its mode and its comments are kept.

        :param histograms: the first three arguments of :meth:`planning_scenario`;
        :param constants: measured values by section and key, such as ``{"bound": {"smoothness": 170.0}}``;
        :param forecast: the section ``forecast``, if one was fitted; otherwise the old one stays.
        """
        document = with_histograms(self._base, *histograms)  # type: ignore[arg-type]
        if self.mode is not None:  # the experiment's mode has priority over the keys of its scenario
            document["mode"] = self.mode
            for section, key in mode_defaults.PLANNING_KEYS.values():
                document[section] = {name: value for name, value in document[section].items() if name != key}
        readings = {name: getattr(self, name) for name in mode_defaults.PLANNING_KEYS}
        document = _changed(self._with_choices(document, readings), constants)
        if forecast is not None:
            document["forecast"] = dict(forecast)
        document["clients"] = Scenario.from_dict(document).to_dict()["clients"]  # strings from a CSV become numbers
        return Scenario._build(replace(self._base.written, value=document), ())

    def devices(self) -> list[dict[str, Any]]:
        """Return the name, radio and processor of every client, as in a scenario's ``clients`` but without its data."""
        data_keys = ("phi", "label_counts", "target_counts")
        return [{"name": f"client {n}", **{key: value for key, value in client.items() if key not in data_keys}}
                for n, client in enumerate(self._base.scenario["clients"])]

    def with_clients(self, clients: Sequence[Mapping[str, Any]]) -> Self:
        """Return the experiment with other clients, given as entries of a scenario's ``clients``."""
        replaced = ("fleet", "labels", "clients", "target_counts")
        scenario = {key: value for key, value in self._base.document.items() if key not in replaced}
        document = self.to_dict() | {"scenario": {**scenario, "clients": list(clients)}}
        return self.from_dict(document, folder=self.folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as plain values, with all readings and the whole scenario, so that no file is
        needed."""
        document = self.model_dump(mode="json", exclude_none=True) | self.readings
        # Keys that fedgap 0.1 did not have are left out if they have their defaults: hashes of its files stay the same.
        learner = self.learning.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        document["learning"] = {key: value for key, value in learner.items() if (key, value) != ("aggregator", "mean")}
        if not self.data.validation:
            del document["data"]["validation"]
        if self.pruning.structure == "weights":
            del document["pruning"]["structure"]
        for section in ("learning", "stop", "trackers"):
            if not document[section]:
                del document[section]
        reached_into = any(o.path[0] == "scenario" and len(o.path) > 1 for o in self._overrides)
        if reached_into or self.scenario not in PRESETS["scenario"]:
            document["scenario"] = self._base.document
        return document


def _practical(document: dict[str, Any], base: Resolved, overrides: Sequence[Override]) -> dict[str, Any]:
    """Return the experiment's document, with the defaults of the mode ``practical`` for the keys that it leaves out.

    The experiment's mode has priority over the scenario's keys, as for all readings, but not over keys that an override
    ``scenario.learning.KEY=VALUE`` has set.
    """
    written = base.document.get("learning")
    of_scenario = written if isinstance(written, dict) else {}
    if "mode" in document:
        named = {o.path[1] for o in overrides if o.path[0] == "learning" and len(o.path) > 1}
        of_scenario = {key: value for key, value in of_scenario.items() if key in named}
    learner = mode_defaults.merged(
        mode_defaults.PRACTICAL_LEARNER, {key: value for key, value in of_scenario.items() if key != "batch_size"}
    )
    learner = mode_defaults.merged(learner, document.get("learning", {}))
    importance = {"importance": mode_defaults.PRACTICAL_IMPORTANCE}
    return {"scheme": mode_defaults.PRACTICAL_SCHEME, **document, "learning": learner,
            "pruning": {**importance, **document.get("pruning", {})}}


def _changed(document: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document with these values, by section and key. Sections that it does not have are not added."""
    sections = {name: {**document[name], **keys} for name, keys in changes.items()
                if isinstance(document.get(name), dict)}
    return {**document, **sections}


MODEL_SIZES = ("gradient_bits", "flops_per_sample")
"""Keys of a scenario's ``model`` that are computed from the experiment's model if they are left out."""


def with_model_sizes(document: dict[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's document with those of the ``sizes`` added to ``model`` that it leaves out."""
    written = document.get("model")
    if written is not None and not isinstance(written, Mapping):
        return document  # the wrong value is reported when that key is checked
    missing = {key: value for key, value in sizes.items() if key not in (written or {})}
    return document | {"model": {**missing, **(written or {})}} if missing else document


def _open_scenario(reference: str | dict[str, Any], folder: Path, overrides: Sequence[Override]) -> Resolved:
    """Read the scenario that an experiment's key ``scenario`` refers to, and apply overrides."""
    if isinstance(reference, dict):
        written = Written(reference, "scenario", folder)
    else:
        beside = folder / reference
        is_beside = reference not in PRESETS["scenario"] and exists(beside)
        try:
            written = open_document(beside if is_beside else reference, "scenario")
        except InputError as error:
            raise InputError(f"scenario: {error}") from None
    try:
        return resolve(written, overrides)
    except InputError as error:
        raise error if str(error).startswith("override ") else InputError(f"scenario.{error}") from None


def _with_absolute_paths(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the document with paths of existing files, which are relative to ``folder``, made absolute."""
    for section, key in (("data", "folder"), ("data", "name"), ("partition", "file"), ("model", "weights")):
        written = document.get(section)
        path = written.get(key) if isinstance(written, dict) else None
        if key == "name" and not str(path).endswith(".npz"):
            continue
        if isinstance(path, str) and exists(folder / path):
            document = document | {section: {**document[section], key: str((folder / path).resolve())}}
    return document


def _check_partition(experiment: Experiment, document: Mapping[str, Any], overrides: Sequence[Override]) -> None:
    """Raise an error if ``partition.kind`` does not use the given ``partition.file``, unless a sweep varies the
    kind."""
    kind, overridden = experiment.partition.kind, {o.path for o in overrides}
    if experiment.partition.file is None or kind == "file":
        return
    both_in_file = "kind" in document["partition"] and ("partition", "file") not in overridden
    if not both_in_file and ("partition", "kind") not in overridden:
        raise InputError(f"partition.file: is used only with partition.kind=file; the kind is {kind}; leave the file "
                         "out, or change the kind")
