"""The scenario: all that planning needs, checked."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import PrivateAttr, ValidationError, model_validator

from fedgap.config import error_messages
from fedgap.config.checked_fields import Histogram
from fedgap.config.document_source import open_source
from fedgap.config.overrides import Override, blame, parse_overrides
from fedgap.config.scenario_resolution import DOCUMENT_KEYS, Resolved, plain, resolve, with_histograms
from fedgap.config.scenario_sections import (
    Bound,
    Budget,
    Client,
    Learning,
    Model,
    NoisePsd,
    Pruning,
    Rounds,
    Section,
    Server,
)
from fedgap.config.yaml_writer import write_document
from fedgap.errors import InputError
from fedgap.system.fleet import Fleet
from fedgap.theory.convergence import BoundConstants, bound_constants
from fedgap.theory.generalization import statement

Array = npt.NDArray[np.float64]


@error_messages.register
class Scenario(Section):
    """All that planning needs: the task, the bound, the server and every client, in SI units.

    ``Scenario.load`` reads a file or a preset; what it returns is resolved: recipes are expanded into clients, and the
    mode into the keys it stands for.
    """

    rounds: Rounds
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
    noise_psd_w_hz: NoisePsd
    """U₀: noise power spectral density, in W/Hz (3.98e-21 is −174 dBm/Hz)."""
    target_counts: Histogram | None = None
    """Samples of each class in the target (test) set."""
    clients: tuple[Client, ...]
    """The clients: a list of them, or the name of a CSV file with one row a client."""

    _written: Any = PrivateAttr(default=None)
    _overrides: tuple[Override, ...] = PrivateAttr(default=())
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def load(cls, source: str | Path, overrides: Iterable[str | Override] = ()) -> Self:
        """Read a scenario from a ``.yaml`` or ``.json`` file, or by a preset's name.

        :param overrides: ``key.path=value`` texts, applied in order before anything is checked.
        :raises InputError: one line that names the key and says what would be right.
        """
        found = open_source(source, "scenario")
        return cls._build(found.value, found.label, found.folder, parse_overrides(overrides))

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], overrides: Iterable[str | Override] = (), folder: str | Path = "."
    ) -> Self:
        """A scenario from a dict with the keys of a scenario file; ``folder`` is what paths in it are relative to."""
        return cls._build(plain(document), "scenario", Path(folder), parse_overrides(overrides))

    @classmethod
    def _build(cls, written: Any, label: str, folder: Path, overrides: Sequence[Override]) -> Self:
        try:
            resolved = resolve(written, label, folder, overrides)
            try:
                scenario = cls.model_validate(resolved.scenario)
            except ValidationError as error:
                raise resolved.locate(error_messages.first_error(error, resolved.scenario, DOCUMENT_KEYS)) from None
            except InputError as error:
                raise resolved.locate(error) from None
        except InputError as error:
            raise blame(error, overrides) from None
        scenario._written, scenario._overrides, scenario._folder = written, tuple(overrides), folder
        return scenario

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_together(self)
        return self

    def with_overrides(self, overrides: Iterable[str | Override]) -> Self:
        """This scenario with further ``key.path=value`` overrides: as if it had been loaded with them."""
        written = self._written if self._written is not None else self.to_dict()
        return self._build(written, "scenario", self._folder, [*self._overrides, *parse_overrides(overrides)])

    def with_labels(
        self,
        label_counts: npt.ArrayLike,
        target_counts: npt.ArrayLike,
        client_target_counts: npt.ArrayLike | None = None,
    ) -> Self:
        """This scenario with the histograms of a real partition, φ and a mode's aggregation following from them.

        :param label_counts: training samples, shape (N, classes); :param target_counts: of the target set, (classes,);
        :param client_target_counts: of each client's own target set, (N, classes), where they have one.
        """
        document = with_histograms(self._resolved(), label_counts, target_counts, client_target_counts)
        return self._build(document, "scenario", self._folder, ())

    def document(self) -> dict[str, Any]:
        """The scenario as it was written, overrides included: a recipe stays a recipe, and the mode a mode.

        (Where an override names a client of a recipe, and with a CSV, the clients are listed.)
        """
        return self._resolved().document

    def _resolved(self) -> Resolved:
        written = self._written if self._written is not None else self.to_dict()
        return resolve(written, "scenario", self._folder, self._overrides)

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
            raise InputError(f"clients[{n}].phi: missing; give it, or label_counts and target_counts, or labels")
        if client.phi is None and client.target_counts is None and target is None:
            raise InputError(f"clients[{n}].phi: missing; label_counts gives it only together with target_counts")
        if client.name is not None and names.setdefault(client.name, n) != n:
            taken = f"{error_messages.shown(client.name)} is the name of clients[{names[client.name]}] already"
            raise InputError(f"clients[{n}].name: {taken}")
