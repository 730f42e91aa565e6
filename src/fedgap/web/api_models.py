"""What the page sends and gets, as the OpenAPI description has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from fedgap.registry import SCHEMES

ScenarioPreset = Literal["paper-mnist", "paper-cifar10", "city"]
Override = Annotated[str, Field(max_length=10_000, examples=["budget.delay_s=120"])]


def _known_scheme(name: str) -> str:
    """Refuse ``package.module:NAME``: a page must not choose which code runs on this machine."""
    if name not in SCHEMES.names():
        raise ValueError(f"must be one of {', '.join(SCHEMES.names())}")
    return name


SchemeName = Annotated[str, AfterValidator(_known_scheme), WithJsonSchema({"type": "string", "enum": SCHEMES.names()})]


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

    scheme: SchemeName = "proposed"
    """What may be decided."""


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


class TextReply(BaseModel):
    """A file to save."""

    name: str
    text: str


class RunRequest(ScenarioSource):
    """A training run on the scenario's fleet and budgets. Only data sets and models that ship or are known by name."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """The folder's name; by default made of data, scheme and seed."""
    data: Literal["embedded", "mnist", "fashion-mnist", "cifar10"] = "embedded"
    model: Literal["lenet5", "mlp", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110"] = "lenet5"
    scheme: SchemeName = "proposed"
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
