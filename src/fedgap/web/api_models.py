"""The requests and replies of the page, as described in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from fedgap.registry import AGGREGATORS, DATA, MODELS, OBJECTIVES, POLICIES, SCHEMES, SELECTION, Registry

ScenarioPreset = Literal["paper-mnist", "paper-cifar10", "city"]
Override = Annotated[str, Field(max_length=10_000, examples=["budget.delay_s=120"])]


def _known(registry: Registry) -> AfterValidator:
    """Accept only registered names, because a page must not choose files or ``package.module:NAME`` of this machine."""
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
    """A scenario: a preset or a document, and the changes to it."""

    preset: ScenarioPreset | None = None
    """A preset's name."""
    document: dict[str, Any] | None = None
    """The scenario itself, in place of a preset."""
    overrides: Annotated[list[Override], Field(max_length=5000)] = []
    """Changes to the scenario, as ``key.path=value`` texts."""


class PlanRequest(ScenarioSource):
    """A scenario, and how to plan it."""

    scheme: SchemeName | None = None
    """What the planner may decide; by default forecast if the scenario has a key auto, otherwise proposed."""
    objective: ObjectiveName | None = None
    """What is minimised, in place of the scheme's objective."""
    selection: SelectionName | None = None
    """A rule that selects the clients."""


class BudgetRequest(ScenarioSource):
    """A request for the smallest budgets with which a target accuracy is reached."""

    accuracy: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Target accuracy on the test set, between 0 and 1."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """The probability with which a run must reach the target."""


class UploadRequest(ScenarioSource):
    """A file that the user chose."""

    kind: Literal["yaml", "csv"]
    """``yaml``: a whole scenario (YAML or JSON); ``csv``: a fleet for the present scenario."""
    text: str
    """The file's text."""


class ScenarioReply(BaseModel):
    """A checked scenario, in several forms."""

    document: dict[str, Any]
    """The scenario as written, without the overrides."""
    listed: dict[str, Any]
    """The scenario with the overrides applied and its clients listed."""
    scenario: dict[str, Any]
    """The complete scenario, with every client and every default value."""
    names: list[str]
    phi: list[float | None]
    hash: str
    recipe: bool
    """Whether the clients' labels are drawn from σ."""
    usual_scheme: str
    """The scheme that is used if none is chosen."""


class OpenedReply(BaseModel):
    """What the command line asked the studio to open."""

    kind: Literal["nothing", "preset", "scenario", "experiment", "runs"]
    name: str
    """A preset's name or a path, as it was typed."""
    document: dict[str, Any] | None
    """The scenario, if a file was opened."""
    run: str | None
    """The run to show, if a single run was named."""
    training: dict[str, Any] | None
    """The choices of the opened experiment; null for a choice that the page cannot offer."""


class TextReply(BaseModel):
    """A text file for the browser to save."""

    name: str
    text: str


class RunRequest(PlanRequest):
    """A training run with the scenario's fleet and budgets.

    Only registered data sets and models can be chosen, or those of the experiment that the command line opened."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """The name of the run's folder; by default it consists of data, scheme and seed."""
    opened: bool = False
    """Train the opened experiment, with its own data, model, partition and other settings."""
    data: DataName = "embedded"
    model: ModelName = "lenet5"
    aggregator: AggregatorName = "mean"
    policy: PolicyName | None = None
    """The policy that decides the rounds; None to train the plan as it is."""
    seed: Annotated[int, Field(ge=0, le=2**53)] = 0
    concentration: Annotated[float, Field(gt=0, le=1e9)] = 5.0
    """σ of the partition: small for clients that differ, large for clients that are alike."""
    evaluate_every: Annotated[int, Field(ge=1, le=10**6)] = 10


class RunName(BaseModel):
    """The name of a run that was started, stopped or resumed."""

    name: str


class Refusal(BaseModel):
    """The answer to a request that cannot be fulfilled."""

    key: str
    """The path of the key that is wrong, or empty."""
    message: str
