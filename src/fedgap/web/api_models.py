"""Requests and responses of the page, as in the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from fedgap.registry import AGGREGATORS, DATA, MODELS, OBJECTIVES, POLICIES, SCHEMES, SELECTION, Registry

ScenarioPreset = Literal["paper-mnist", "paper-cifar10", "city"]
Override = Annotated[str, Field(max_length=10_000, examples=["budget.delay_s=120"])]


def _known(registry: Registry) -> AfterValidator:
    """Accept only registered names: a page must not choose files or ``package.module:NAME`` of this machine."""
    def check(name: str) -> str:
        if name not in registry.names():
            raise ValueError(f"must be one of {', '.join(registry.names())}")
        return name

    return AfterValidator(check)


def _enum(registry: Registry) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": registry.names()})


SchemeName = Annotated[str, _known(SCHEMES), _enum(SCHEMES)]
ObjectiveName = Annotated[str, _known(OBJECTIVES), _enum(OBJECTIVES)]
SelectionName = Annotated[str, _known(SELECTION), _enum(SELECTION)]
AggregatorName = Annotated[str, _known(AGGREGATORS), _enum(AGGREGATORS)]
PolicyName = Annotated[str, _known(POLICIES), _enum(POLICIES)]
DataName = Annotated[str, _known(DATA), _enum(DATA)]
ModelName = Annotated[str, _known(MODELS), _enum(MODELS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScenarioSource(_Strict):
    """A scenario: a preset or a document, and what was changed in it."""

    preset: ScenarioPreset | None = None
    """A preset's name."""
    document: dict[str, Any] | None = None
    """The scenario itself, in place of a preset."""
    overrides: Annotated[list[Override], Field(max_length=5000)] = []
    """``key.path=value`` texts."""


class PlanRequest(ScenarioSource):
    """What to plan."""

    scheme: SchemeName | None = None
    """What may be decided; by default forecast where the scenario has auto, else proposed."""
    objective: ObjectiveName | None = None
    """What is minimised, in place of the scheme's objective."""
    selection: SelectionName | None = None
    """A rule that selects the clients."""


class BudgetRequest(ScenarioSource):
    """A request for the least budgets of a target accuracy."""

    accuracy: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """On the test set, a share of one."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """The probability with which a run is to reach it."""


class UploadRequest(ScenarioSource):
    """A file that a person chose."""

    kind: Literal["yaml", "csv"]
    """A whole scenario (YAML or JSON), or a fleet for the scenario there is (CSV)."""
    text: str
    """The file's text."""


class ScenarioReply(BaseModel):
    """A scenario, checked and resolved."""

    document: dict[str, Any]
    """As written, without the overrides."""
    listed: dict[str, Any]
    """The same with the overrides in it and its clients listed."""
    scenario: dict[str, Any]
    """Resolved: every client, every reading."""
    names: list[str]
    phi: list[float | None]
    hash: str
    recipe: bool
    """Whether the clients' labels are drawn from σ."""
    usual_scheme: str
    """The scheme that plans it where nobody chooses one."""


class OpenedReply(BaseModel):
    """What the command line named."""

    kind: Literal["nothing", "preset", "scenario", "experiment", "runs"]
    name: str
    """A preset's name or a path, as it was typed."""
    document: dict[str, Any] | None
    """The scenario of a file."""
    run: str | None
    """The run to show, where one was named."""
    training: dict[str, Any] | None
    """The opened experiment's choices; null in it where the page cannot name them."""


class TextReply(BaseModel):
    """A file to save."""

    name: str
    text: str


class RunRequest(PlanRequest):
    """A training run on the scenario's fleet and budgets. Only registered data sets and models, or those of the
    experiment that the command line named."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """The folder's name; by default made of data, scheme and seed."""
    opened: bool = False
    """Train the opened experiment: data, model, partition and whatever else it says are its own."""
    data: DataName = "embedded"
    model: ModelName = "lenet5"
    aggregator: AggregatorName = "mean"
    policy: PolicyName | None = None
    """Who decides the rounds; without one the plan is trained as it is."""
    seed: Annotated[int, Field(ge=0, le=2**53)] = 0
    concentration: Annotated[float, Field(gt=0, le=1e9)] = 5.0
    """σ of the partition."""
    evaluate_every: Annotated[int, Field(ge=1, le=10**6)] = 10


class RunName(BaseModel):
    """A run that was started, stopped or resumed."""

    name: str


class Refusal(BaseModel):
    """What is wrong, and where."""

    key: str
    """The key path, or empty."""
    message: str
