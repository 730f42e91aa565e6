"""The scenario: all that planning needs, checked."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from fedgap.config import messages, modes
from fedgap.config.fields import Histogram, Number, Truth, Word, count
from fedgap.config.overrides import Override, blame, parse_overrides
from fedgap.config.resolving import DOCUMENT_KEYS, resolve
from fedgap.config.sources import open_source
from fedgap.config.writing import write_document
from fedgap.errors import InputError
from fedgap.system.fleet import Fleet
from fedgap.theory.convergence import BoundConstants, bound_constants
from fedgap.theory.generalization import statement

Array = npt.NDArray[np.float64]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Budget(_Section):
    """What all rounds together may spend."""

    energy_j: Annotated[float, Number("J", above=0, reason="without energy nothing can be computed or sent")]
    """E₀: energy of all clients and the server over all rounds, in joule."""
    delay_s: Annotated[float, Number("s", above=0, reason="without time no round can end")]
    """T₀: time of all rounds, in seconds."""


class Learning(_Section):
    """Stochastic gradient descent."""

    rate: Annotated[float, Number(above=0, reason="with a learning rate of 0 the model never moves")]
    """η: the learning rate."""
    batch_size: Annotated[int, count("a gradient needs at least one sample")]
    """Z: samples a client draws each round."""


class Model(_Section):
    """What the model costs to send and to compute."""

    gradient_bits: Annotated[float, Number("bit", above=0, reason="a gradient of no bits carries nothing")]
    """H: bits of the unpruned gradient (parameters × 32 for float32)."""
    flops_per_sample: Annotated[float, Number("FLOP", above=0, reason="a gradient takes some operations")]
    """e: floating-point operations for one sample's full gradient."""


class Pruning(_Section):
    """How much may be pruned."""

    max_ratio: Annotated[float, Number(at_least=0, below=1, reason="a ratio of 1 would remove the whole model")]
    """λ^max: the largest fraction of the parameters that a client may remove."""
    dense_first: Truth = False
    """Whether round 0 is left unpruned, so that every weight has a gradient to be ranked by."""


class Bound(_Section):
    """Theorem 1's constants, and how they are read."""

    initial_gap: Annotated[float, Number(at_least=0, reason="the loss cannot start below its minimum")]
    """L(ω⁰) − L(ω*): how far the initial loss is above the least one."""
    smoothness: Annotated[float, Number(at_least=0, reason="a Lipschitz constant is not negative")]
    """L: Lipschitz constant of the gradient."""
    gradient_moment: Annotated[float, Number(at_least=0, reason="it is the mean of a square")]
    """A²: second moment of a sample's gradient."""
    parameter_moment: Annotated[float, Number(at_least=0, reason="it is the mean of a square")]
    """B²: second moment of the parameters, ‖ω‖²."""
    pruning_sensitivity: Annotated[float, Number(at_least=0, reason="it is a squared distance over a ratio")] | None = None
    """γ₂·R as measured, ‖∇(ω) − ∇(ω pruned)‖²/λ; replaces smoothness² × parameter_moment."""
    aggregation: modes.Aggregation = "mean"
    """How the clients' φ enter: sum (as printed), mean, or mixture (φ of the selected clients' pooled histogram)."""
    constants: modes.Constants = "printed"
    """Theorem 1's constants as printed, or corrected by 1/η² (the step from (53) to (55))."""
    statement: modes.Statement = "size_normalised"
    """How φ comes from label histograms: with the sets' sizes (as_printed) or their shares (size_normalised)."""
    sensitivity: modes.Sensitivity = "theorem"
    """Where γ₂·R comes from: smoothness² × parameter_moment (theorem), or pruning_sensitivity (secant)."""

    @property
    def pruning_weight(self) -> float:
        """γ₂·R: L²B² by the theorem, or the measured secant."""
        if self.sensitivity == "secant" and self.pruning_sensitivity is not None:
            return self.pruning_sensitivity
        return self.smoothness**2 * self.parameter_moment


class Server(_Section):
    """The server's radio."""

    power_w: Annotated[float, Number("W", above=0, reason="a silent server cannot broadcast")]
    """p̂: broadcast power, in watt."""
    bandwidth_hz: Annotated[float, Number("Hz", above=0, reason="a server without bandwidth cannot broadcast")]
    """ĉ: broadcast bandwidth, in hertz. Left out, it is the whole band: the sum of the clients' bandwidths."""


class Client(_Section):
    """One client: its radio, its processor, its data."""

    name: Word | None = None
    """What to call it; by default its number."""
    phi: Annotated[float, Number(at_least=0, reason="the generalization statement bounds a norm")] | None = None
    """φ_n: the generalization statement. May be left out where label_counts and target_counts give it."""
    label_counts: Histogram | None = None
    """Training samples of each class."""
    target_counts: Histogram | None = None
    """Samples of each class in the client's own target set; by default the scenario's."""
    uplink_gain: Annotated[float, Number(above=0, reason="without a channel nothing arrives")]
    """h_n: channel power gain from the client to the server."""
    downlink_gain: Annotated[float, Number(above=0, reason="without a channel nothing arrives")]
    """ĥ_n: channel power gain from the server to the client. Left out, it is the uplink's."""
    bandwidth_hz: Annotated[float, Number("Hz", above=0, reason="a client without bandwidth never finishes its upload")]
    """c_n: uplink bandwidth, in hertz."""
    max_power_w: Annotated[float, Number("W", above=0, reason="a silent client never finishes its upload")]
    """p_n^max: the largest transmit power, in watt."""
    max_frequency_hz: Annotated[float, Number("Hz", above=0, reason="a stopped clock never finishes a gradient")]
    """f_n^max: the highest clock frequency, in hertz."""
    flops_per_cycle: Annotated[float, Number("FLOP", above=0, reason="a processor does some work in a cycle")]
    """q_n: floating-point operations a clock cycle."""
    pue: Annotated[float, Number(above=0, reason="computing takes energy")] = 1.0
    """κ_n: power usage effectiveness, total energy over the processor's."""
    capacitance: Annotated[float, Number("F", above=0, reason="computing takes energy")]
    """ϖ_n: effective switched capacitance, in farad."""
    gradient_bits: Annotated[float, Number("bit", above=0, reason="a gradient of no bits carries nothing")] | None = None
    """H_n, where it differs from the model's."""
    flops_per_sample: Annotated[float, Number("FLOP", above=0, reason="a gradient takes some operations")] | None = None
    """e_n, where it differs from the model's."""
    batch_size: Annotated[int, count("a gradient needs at least one sample")] | None = None
    """Z_n for the client's costs, where it differs; θ's constants use learning.batch_size."""
    max_ratio: Annotated[float, Number(at_least=0, below=1, reason="a ratio of 1 would remove the whole model")] | None = None
    """λ^max of this client, where it differs."""
    noise_psd_w_hz: Annotated[float, Number("W/Hz", above=0, reason="no receiver is free of noise")] | None = None
    """U_{0,n}: noise power spectral density at the client's receiver, where it differs."""


@messages.register
class Scenario(_Section):
    """All that planning needs: the task, the bound, the server and every client, in SI units.

    ``Scenario.load`` reads a file or a preset; what it returns is resolved: recipes are expanded into clients, and the
    mode into the keys it stands for.
    """

    rounds: Annotated[int, count("training takes at least one round")]
    """R = S + 1: the number of rounds."""
    budget: Budget
    """What all rounds together may spend."""
    learning: Learning
    """Stochastic gradient descent."""
    model: Model
    """What the model costs to send and to compute."""
    pruning: Pruning
    """How much may be pruned."""
    bound: Bound
    """Theorem 1's constants, and how they are read."""
    server: Server
    """The server's radio."""
    noise_psd_w_hz: Annotated[float, Number("W/Hz", above=0, reason="no receiver is free of noise")]
    """U₀: noise power spectral density, in W/Hz (3.98e-21 is −174 dBm/Hz)."""
    target_counts: Histogram | None = None
    """Samples of each class in the target (test) set."""
    clients: tuple[Client, ...]
    """The clients: a list of them, or the name of a CSV file with one row a client."""

    _document: dict[str, Any] | None = PrivateAttr(default=None)
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def load(cls, source: str | Path, overrides: Iterable[str | Override] = ()) -> Self:
        """Read a scenario from a ``.yaml`` or ``.json`` file, or by a preset's name.

        :param overrides: ``key.path=value`` texts, applied in order before anything is checked.
        :raises InputError: one line that names the key and says what would be right.
        """
        found = open_source(source, "scenario")
        return cls._from_document(found.value, found.label, found.folder, parse_overrides(overrides))

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], overrides: Iterable[str | Override] = (), folder: str | Path = "."
    ) -> Self:
        """A scenario from a dict with the keys of a scenario file; ``folder`` is what paths in it are relative to."""
        return cls._from_document(document, "scenario", Path(folder), parse_overrides(overrides))

    @classmethod
    def _from_document(cls, value: Any, label: str, folder: Path, overrides: Sequence[Override]) -> Self:
        try:
            document, resolved = resolve(value, label, folder, overrides)
            try:
                scenario = cls.model_validate(resolved)
            except ValidationError as error:
                raise messages.first_error(error, resolved, DOCUMENT_KEYS) from None
        except InputError as error:
            raise blame(error, overrides) from None
        scenario._document, scenario._folder = document, folder
        return scenario

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_together(self)
        return self

    def with_overrides(self, overrides: Iterable[str | Override]) -> Self:
        """This scenario with ``key.path=value`` overrides: as if the file had been loaded with them."""
        return self._from_document(self.document(), "scenario", self._folder, parse_overrides(overrides))

    def document(self) -> dict[str, Any]:
        """The scenario as it was written, overrides included, before recipes and mode were resolved."""
        return self._document if self._document is not None else self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The resolved scenario as plain values: every client, every reading, no recipe and no mode."""
        document = self.model_dump(mode="json", exclude_none=True)
        if self.bound.sensitivity == "theorem" and self.bound.pruning_sensitivity is None:
            # It is what would be taken anyway; left out, a sensitivity measured later counts.
            del document["bound"]["sensitivity"]
        return document

    def save(self, path: str | Path) -> Path:
        """Write the resolved scenario as YAML, or as JSON where the path ends so."""
        return write_document({"format": 1} | self.to_dict(), Path(path))

    def hash(self) -> str:
        """16 hex digits that change with anything in the resolved scenario."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.hash())

    @property
    def size(self) -> int:
        """N: the number of clients."""
        return len(self.clients)

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [client.name or f"client {n}" for n, client in enumerate(self.clients)]

    def fleet(self) -> Fleet:
        """The clients and the server as arrays, for the cost formulas."""

        def of_clients(key: str, default: float | None = None) -> Array:
            values = [getattr(client, key) for client in self.clients]
            return np.array([default if value is None else value for value in values], dtype=np.float64)

        return Fleet(
            uplink_gain=of_clients("uplink_gain"),
            downlink_gain=of_clients("downlink_gain"),
            bandwidth_hz=of_clients("bandwidth_hz"),
            max_power_w=of_clients("max_power_w"),
            max_frequency_hz=of_clients("max_frequency_hz"),
            flops_per_cycle=of_clients("flops_per_cycle"),
            pue=of_clients("pue"),
            capacitance=of_clients("capacitance"),
            gradient_bits=of_clients("gradient_bits", self.model.gradient_bits),
            flops_per_sample=of_clients("flops_per_sample", self.model.flops_per_sample),
            batch_size=of_clients("batch_size", self.learning.batch_size),
            max_ratio=of_clients("max_ratio", self.pruning.max_ratio),
            downlink_noise_psd_w_hz=of_clients("noise_psd_w_hz", self.noise_psd_w_hz),
            server_power_w=np.array(self.server.power_w),
            server_bandwidth_hz=np.array(self.server.bandwidth_hz),
            uplink_noise_psd_w_hz=np.array(self.noise_psd_w_hz),
        )

    def phi(self) -> Array:
        """φ_n of every client, shape (N,): as given, or from its label histogram and its target's.

        :raises InputError: where a histogram has no φ (the singularity of Lemma 1).
        """
        phi = np.array([np.nan if client.phi is None else client.phi for client in self.clients])
        open_ = np.flatnonzero(np.isnan(phi))
        if open_.size:
            train = np.array([self.clients[n].label_counts for n in open_])
            target = np.array([self.clients[n].target_counts or self.target_counts for n in open_])
            names = [f"clients[{n}]" for n in open_]
            phi[open_] = statement(train, target, self.bound.statement, names)
        return phi

    def label_counts(self) -> npt.NDArray[np.int64] | None:
        """Training samples of each class, shape (N, classes); None unless every client has a histogram."""
        counts = [client.label_counts for client in self.clients]
        return None if any(row is None for row in counts) else np.array(counts, dtype=np.int64)

    def constants(self, rounds: int | None = None) -> BoundConstants:
        """Theorem 1's α, β, γ₁ and γ₂ in this scenario's readings, for its own or another number of rounds."""
        return bound_constants(
            rounds=self.rounds if rounds is None else rounds,
            learning_rate=self.learning.rate,
            batch_size=self.learning.batch_size,
            initial_gap=self.bound.initial_gap,
            smoothness=self.bound.smoothness,
            gradient_moment=self.bound.gradient_moment,
            parameter_moment=self.bound.parameter_moment,
            pruning_sensitivity=self.bound.pruning_weight,
            constants=self.bound.constants,
        )


def check_together(scenario: Scenario) -> None:
    """What no single key can tell: histograms of equal length, φ known for everyone, names that differ."""
    if not scenario.clients:
        raise InputError("clients: must have at least one client; got none")
    bound, target = scenario.bound, scenario.target_counts
    if bound.sensitivity == "secant" and bound.pruning_sensitivity is None:
        raise InputError("bound.sensitivity: secant needs bound.pruning_sensitivity, the measured γ₂·R")
    if bound.aggregation == "mixture" and target is None:
        raise InputError("target_counts: missing; aggregation mixture needs the target's label histogram")
    classes = len(target) if target is not None else None
    names: dict[str, int] = {}
    for n, client in enumerate(scenario.clients):
        for key in ("label_counts", "target_counts"):
            counts = getattr(client, key)
            if counts is not None and len(counts) != (classes := classes or len(counts)):
                raise InputError(f"clients[{n}].{key}: has {len(counts)} classes where {classes} are expected")
        if bound.aggregation == "mixture" and client.label_counts is None:
            raise InputError(f"clients[{n}].label_counts: missing; aggregation mixture needs every client's histogram")
        if client.phi is None and client.label_counts is None:
            raise InputError(f"clients[{n}].phi: missing; give it, or label_counts here and target_counts")
        if client.phi is None and client.target_counts is None and target is None:
            raise InputError(f"clients[{n}].phi: missing; label_counts gives it only together with target_counts")
        if client.name is not None and names.setdefault(client.name, n) != n:
            raise InputError(f"clients[{n}].name: {messages.shown(client.name)} is clients[{names[client.name]}] already")
