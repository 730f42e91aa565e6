"""The sections of an experiment, key by key."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedgap.config.checked_fields import Concentration, File, Named, Number, Probability, Truth, Word, count, wrong
from fedgap.config.document import Section
from fedgap.config.scenario_sections import DelayBudget, EnergyBudget, LearnerKeys, Rate
from fedgap.registry import AGGREGATORS, DATA, IMPORTANCE, MODELS

Samples = Annotated[int, count("a data set needs samples")]


def _share_or_count(value: float) -> float:
    if value > 1.0 and value != int(value):
        raise wrong(f"must be a share below 1, or a whole number of samples; got {value:g}")
    return value


class Data(Section):
    """The data set."""

    name: Annotated[str, Named(DATA)] = "embedded"
    """embedded, mnist, fashion-mnist, cifar10, a .npz file, or package.module:NAME."""
    folder: Word | None = None
    """The folder that has the data set's files; by default the usual places are searched."""
    download: Truth = False
    """Whether to download missing files."""
    train_samples: Samples | None = None
    """Use only this many training samples; by default all."""
    test_samples: Samples | None = None
    """Use only this many test samples; by default all."""
    validation: Annotated[float, Number(at_least=0, limit=1e9), AfterValidator(_share_or_count)] = 0.0
    """Training samples that are held out for validation, for choosing rates and for stopping early: a share below 1, or
    a number of samples."""


class PartitionChoice(Section):
    """How the data are divided among the scenario's clients."""

    kind: Literal["dirichlet", "dirichlet_by_class", "iid", "shards", "quantity", "file"] = "dirichlet"
    """dirichlet (the paper's: each client's label proportions are random), dirichlet_by_class (each class is divided in
    random proportions), iid, shards (a few blocks of the sorted samples each), quantity (random sizes), or file."""
    concentration: Concentration = 5.0
    """σ: small for clients that differ, large for clients that are alike."""
    sizes: Literal["equal", "natural"] | None = None
    """Whether all clients get equally many samples (equal) or as many as the kind gives them (natural); the default
    depends on the kind."""
    shards: Annotated[int, count("a client needs data")] = 2
    """Number of shards per client, for the kind shards."""
    file: Word | None = None
    """A .json or .npz file with each client's sample indices, for the kind file."""
    target: Literal["global", "own"] = "global"
    """Where a client's target set comes from: sampled from the global test set, or held out of its own data."""
    target_size: Samples | None = None
    """Samples in each client's target set; by default the test set divided by the number of clients."""


class ModelChoice(Section):
    """The model that is trained."""

    name: Annotated[str, Named(MODELS)] = "lenet5"
    """lenet5, mlp, resnet20, 32, 44, 56, 110, or package.module:NAME."""
    initialisation: Literal["he", "own"] = "he"
    """he (He's normal initialisation by fan-in), or own (that of the torch module)."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function or class that makes the model."""
    weights: File | None = None
    """Start from the weights in this .safetensors file."""


class LearningChoice(LearnerKeys):
    """How clients and server learn. Each key that is given replaces the same key of the scenario.

    :meth:`fedgap.Experiment.planning_scenario` has the result.
    """

    rate: Rate | None = None
    """η: the clients' learning rate, in place of the scenario's."""
    aggregator: Annotated[str, Named(AGGREGATORS)] = "mean"
    """How the server combines the clients' updates: mean (the paper's), another registered name, or
    package.module:NAME."""


class PruningChoice(Section):
    """What is pruned, how weights are ranked, and how the size of an upload is counted."""

    structure: Literal["weights", "channels"] = "weights"
    """What is removed: single weights, or whole neurons and channels, so that the client's model is really smaller."""
    importance: Annotated[str, Named(IMPORTANCE)] = "taylor"
    """How weights are ranked: taylor (the paper's: gradient times weight), magnitude, random, or
    package.module:NAME."""
    remember: Truth | None = None
    """Whether a weight that no client trained in a round keeps the importance of its last known gradient; by default
    the value of dense_first."""
    accounting: Literal["as_printed", "measured"] = "as_printed"
    """How the bits of an upload are counted: (1 − λ)·H as printed, or as they are really encoded."""


class BudgetChoice(Section):
    """Budgets that replace the scenario's."""

    energy_j: EnergyBudget | None = None
    """E₀: energy of all clients and the server over all rounds, in joule."""
    delay_s: DelayBudget | None = None
    """T₀: time of all rounds, in seconds."""


class Stop(Section):
    """When to end the training early, judged on the validation samples."""

    accuracy: Annotated[float, Number(above=0, at_most=1, reason="it is a share, such as 0.95")] | None = None
    """Stop when the validation accuracy reaches this value; the rest of the budgets stays unspent."""
    patience: Annotated[int, count("it counts evaluations")] | None = None
    """Stop after this many evaluations without a new best validation accuracy."""


class EngineChoice(Section):
    """How gradients are computed."""

    kind: Literal["stacked", "loop"] = "stacked"
    """stacked (all clients in one computation) or loop (one client after another)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto uses a GPU if there is one."""
    precision: Literal["float32", "tf32", "bfloat16", "float64"] = "float32"
    """Number format of the gradients."""
    threads: Annotated[int, count("computing takes a thread", limit=4096)] | None = None
    """Number of CPU threads; by default torch's choice."""


class FaultsChoice(Section):
    """Simulated faults, independent for each client and round."""

    dropout_probability: Probability = 0.0
    """Probability that a selected client drops out during a round."""
    straggler_probability: Probability = 0.0
    """Probability that a selected client is slow in a round."""
    straggler_slowdown: Annotated[float, Number(at_least=1, reason="a straggler is not faster than planned")] = 1.0
    """How many times slower a straggler is."""
