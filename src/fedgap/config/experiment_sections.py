"""The experiment's parts, key by key."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedgap.config.checked_fields import Concentration, File, Named, Number, Probability, Truth, Word, count, wrong
from fedgap.config.document import Section
from fedgap.config.scenario_sections import DelayBudget, EnergyBudget, LearnerKeys, Rate
from fedgap.registry import AGGREGATORS, DATA, IMPORTANCE, MODELS

Samples = Annotated[int, count("a data set needs samples")]


def _share_or_count(value: float) -> float:
    if value > 1.0 and value != int(value):
        raise wrong(f"must be a share below 1 or a whole number of samples; got {value:g}")
    return value


class Data(Section):
    """The data set."""

    name: Annotated[str, Named(DATA)] = "embedded"
    """embedded, mnist, fashion-mnist, cifar10, a .npz file, or package.module:NAME."""
    folder: Word | None = None
    """Where its files are; by default the usual places are searched."""
    download: Truth = False
    """Whether to download missing files."""
    train_samples: Samples | None = None
    """Take only this many training samples."""
    test_samples: Samples | None = None
    """Take only this many test samples."""
    validation: Annotated[float, Number(at_least=0, limit=1e9), AfterValidator(_share_or_count)] = 0.0
    """Training samples to hold out, for choosing rates and for stopping: a share below 1, or a number."""


class PartitionChoice(Section):
    """How the data are divided among the scenario's clients."""

    kind: Literal["dirichlet", "dirichlet_by_class", "iid", "shards", "quantity", "file"] = "dirichlet"
    """dirichlet (the paper's: label proportions of each client), dirichlet_by_class, iid, shards, quantity, file."""
    concentration: Concentration = 5.0
    """σ: small for clients that differ, large for clients that are alike."""
    sizes: Literal["equal", "natural"] | None = None
    """Whether all clients have equally many samples; by default what the kind implies."""
    shards: Annotated[int, count("a client needs data")] = 2
    """Shards of each client, for the kind shards."""
    file: Word | None = None
    """Each client's sample indices (.json or .npz), for the kind file."""
    target: Literal["global", "own"] = "global"
    """Where a client's target set comes from: sampled from the global test set, or held out of its own data."""
    target_size: Samples | None = None
    """Samples in each client's target set; by default the test set divided by the number of clients."""


class ModelChoice(Section):
    """The model that is trained."""

    name: Annotated[str, Named(MODELS)] = "lenet5"
    """lenet5, mlp, resnet20, 32, 44, 56, 110, or package.module:NAME."""
    initialisation: Literal["he", "own"] = "he"
    """he (normal, by fan-in), or the module's own."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the factory."""
    weights: File | None = None
    """Start from the weights in this .safetensors file."""


class LearningChoice(LearnerKeys):
    """How clients and server learn. These keys replace those of the scenario one by one; ``planning_scenario`` has
    the result.
    """

    rate: Rate | None = None
    """η, in place of the scenario's."""
    aggregator: Annotated[str, Named(AGGREGATORS)] = "mean"
    """mean (the paper's: the average of the gradients), or package.module:NAME."""


class PruningChoice(Section):
    """What is pruned, how it is ranked, and what an upload is charged for."""

    structure: Literal["weights", "channels"] = "weights"
    """What is removed: single weights, or whole neurons and channels, so that the client's model is really smaller."""
    importance: Annotated[str, Named(IMPORTANCE)] = "taylor"
    """taylor (the paper's: gradient times weight), magnitude, random, or package.module:NAME."""
    remember: Truth | None = None
    """Whether a weight that no client trained keeps the importance of its last known gradient; by default as
    ``dense_first``."""
    accounting: Literal["as_printed", "measured"] = "as_printed"
    """What an upload costs: (1 − λ)·H bits as printed, or the bits really encoded."""


class BudgetChoice(Section):
    """Budgets that replace the scenario's."""

    energy_j: EnergyBudget | None = None
    """E₀, in joule."""
    delay_s: DelayBudget | None = None
    """T₀, in seconds."""


class Stop(Section):
    """When to end the training early, judged on the validation samples."""

    accuracy: Annotated[float, Number(above=0, at_most=1, reason="it is a share, such as 0.95")] | None = None
    """The validation accuracy to stop at, leaving the rest of the budgets unspent."""
    patience: Annotated[int, count("it counts evaluations")] | None = None
    """Evaluations without a new best validation accuracy after which to stop."""


class EngineChoice(Section):
    """How gradients are computed."""

    kind: Literal["stacked", "loop"] = "stacked"
    """All clients in one computation, or one after another."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto uses a GPU if there is one."""
    precision: Literal["float32", "tf32", "bfloat16", "float64"] = "float32"
    """Number format of the gradients."""
    threads: Annotated[int, count("computing takes a thread", limit=4096)] | None = None
    """CPU threads; by default torch's choice."""


class FaultsChoice(Section):
    """Simulated faults, independent for each client and round."""

    dropout_probability: Probability = 0.0
    """Probability that a selected client drops out during a round."""
    straggler_probability: Probability = 0.0
    """Probability that a selected client is slow in a round."""
    straggler_slowdown: Annotated[float, Number(at_least=1, reason="a straggler is not faster than planned")] = 1.0
    """How many times slower a straggler is."""
