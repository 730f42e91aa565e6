"""The scenario: everything that planning needs, with all values checked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError, model_validator

from fedgap.arrays import Floats
from fedgap.config import error_messages
from fedgap.config.checked_fields import Histogram
from fedgap.config.document import SHORTHAND_KEYS, Document, Written
from fedgap.config.fleet_recipes import RECIPES
from fedgap.config.mode_defaults import PRACTICAL_LEARNER
from fedgap.config.overrides import Override
from fedgap.config.scenario_resolution import Resolved, Shorthand, resolve, with_histograms
from fedgap.config.scenario_sections import (
    Bound,
    Budget,
    Client,
    ForecastSection,
    Learning,
    Model,
    NoisePsd,
    Pruning,
    Rounds,
    Server,
)
from fedgap.config.world import World, trace_of
from fedgap.config.yaml_edit import edit_yaml
from fedgap.config.yaml_files import to_yaml
from fedgap.errors import InputError
from fedgap.system import CostCurve, Fleet
from fedgap.system.trace import Trace
from fedgap.theory.built_in_forecasts import BUILT_IN, SAMPLES_OF_A_CLIENT
from fedgap.theory.convergence import BoundConstants, bound_constants
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.generalization import statement
from fedgap.upload_size import bits_per_value


@error_messages.register
class Scenario(Document):
    """Everything that planning needs: the task, the bound, the server and every client, in SI units.

    >>> scenario = fedgap.Scenario.load("paper-mnist", ["budget.delay_s=120"])
    >>> scenario.size, scenario.budget.delay_s, scenario.clients[0].max_power_w
    (10, 120.0, 0.5)

    ``load`` reads a preset or a file, replaces recipes by the clients that they draw, and fills in the defaults of the
    mode.
    """

    kind: ClassVar[str] = "scenario"
    rounds: Rounds
    """R = S + 1: the number of rounds."""
    budget: Budget
    """What all rounds together may spend."""
    learning: Learning
    """How clients and server learn, and at what rate."""
    model: Model
    """What the model costs to send and to compute."""
    pruning: Pruning
    """How much may be pruned."""
    bound: Bound
    """The quantities in Theorem 1's bound θ, and which variant of its formulas is used."""
    server: Server
    """The server's radio."""
    noise_psd_w_hz: NoisePsd
    """U₀: noise power spectral density, in W/Hz (3.98e-21 is −174 dBm/Hz)."""
    target_counts: Histogram | None = None
    """Samples of each class in the target (test) set."""
    forecast: ForecastSection | None = None
    """The weights of the forecast of the test error, fitted to training runs; by default those of a built-in
    forecast."""
    clients: tuple[Client, ...]
    """The clients: a list of them, or the name of a CSV file with one row per client."""
    world: World | None = None
    """How channels, availability, processors and labels change during training; by default they do not change."""

    @classmethod
    def _checked(cls, written: Written, overrides: Sequence[Override]) -> Self:
        resolved = resolve(written, overrides)
        try:
            return cls.model_validate(resolved.scenario)
        except ValidationError as error:
            message = error_messages.first_error(error, resolved.scenario, SHORTHAND_KEYS)
            raise resolved.locate(message) from None
        except InputError as error:
            raise resolved.locate(error) from None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_together(self)
        return self

    def with_labels(
        self,
        label_counts: npt.ArrayLike,
        target_counts: npt.ArrayLike,
        client_target_counts: npt.ArrayLike | None = None,
    ) -> Self:
        """Return this scenario with the label histograms of a real partition.

        φ and, if the mode decides it, the aggregation then follow from these histograms.

        :param label_counts: training samples of each class, shape (N, classes);
        :param target_counts: samples of the target set, (classes,);
        :param client_target_counts: samples of each client's own target set, (N, classes), if they have one.
        """
        document = with_histograms(self._resolved(), label_counts, target_counts, client_target_counts)
        return self.from_dict(document, folder=self.folder)

    def document(self) -> dict[str, Any]:
        """Return the scenario as it was written, with overrides applied. Recipes and the mode are kept as such.

        The clients are nevertheless listed if they come from a CSV, or if an override changes one client of a recipe.
        """
        return self._resolved().document

    def document_text(self) -> str:
        """Return :meth:`document` as YAML, with the comments and the layout of the file it was read from."""
        document, text = self.document(), self._source().text
        return to_yaml({"format": 1} | document) if text is None else edit_yaml(text, document)

    def _resolved(self) -> Resolved:
        return resolve(self._source(), self._overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as plain values, with all clients and all defaults of the mode, without recipes and mode.
        """
        document = self.model_dump(mode="json", exclude_none=True)
        # Files of fedgap 0.1 have only the rate and the batch size, and their hashes must stay the same.
        document["learning"] = self.learning.model_dump(mode="json", exclude_defaults=True)
        if self.bound.sensitivity == "theorem" and self.bound.pruning_sensitivity is None:
            # This is the default; it is left out so that a sensitivity measured later is used.
            del document["bound"]["sensitivity"]
        return document

    @property
    def outline(self) -> str:
        """One line with the numbers of clients and rounds and the budgets."""
        budget = self.budget
        return f"{self.size} clients, {self.rounds:,} rounds within {budget.energy_j:g} J and {budget.delay_s:g} s"

    @property
    def size(self) -> int:
        """N: the number of clients."""
        return len(self.clients)

    @property
    def names(self) -> list[str]:
        """The clients' names; a client without one is called ``client N``, counted from 0."""
        return [client.name or f"client {n}" for n, client in enumerate(self.clients)]

    @property
    def usual_scheme(self) -> str:
        """The default scheme: ``forecast`` if a key is ``auto``, because only this scheme decides such keys."""
        return "forecast" if "auto" in (self.learning.local_steps, self.learning.upload_bits) else "proposed"

    def trace(self, seed: int = 0) -> Trace:
        """Return what the scenario's ``world`` does to channels and clients in each round of a run with this seed."""
        return trace_of(self.world, self.names, self.rounds, self.folder, seed)

    def fleet(self) -> Fleet:
        """Return the clients and the server as arrays, for the cost formulas.

        Local steps and upload bits that are ``auto`` have the values of ``learning.usual_local_steps`` and
        ``learning.usual_upload_bits`` here; the planner replaces them.
        """

        def column(key: str, default: float | None = None) -> Floats:
            values = [getattr(client, key) for client in self.clients]
            return np.array([default if value is None else value for value in values], dtype=np.float64)

        keys = ("uplink_gain", "downlink_gain", "bandwidth_hz", "max_power_w", "max_frequency_hz", "flops_per_cycle",
                "pue", "capacitance")
        gradient_bits = column("gradient_bits", self.model.gradient_bits)
        points = self.model.cost_curve
        return Fleet(
            **{key: column(key) for key in keys},
            gradient_bits=gradient_bits,
            flops_per_sample=column("flops_per_sample", self.model.flops_per_sample),
            batch_size=column("batch_size", self.learning.batch_size),
            max_ratio=column("max_ratio", self.pruning.max_ratio),
            local_steps=np.full(self.size, float(self.learning.usual_local_steps)),
            uplink_bits=gradient_bits * bits_per_value(self.learning.usual_upload_bits) / 32.0,
            downlink_noise_psd_w_hz=column("noise_psd_w_hz", self.noise_psd_w_hz),
            server_power_w=np.array(self.server.power_w),
            server_bandwidth_hz=np.array(self.server.bandwidth_hz),
            uplink_noise_psd_w_hz=np.array(self.noise_psd_w_hz),
            **{key: column(key, 0.0) for key in ("min_frequency_hz", "min_power_w", "idle_power_w", "latency_s")},
            battery_j=column("battery_j", np.inf),
            cost_curve=None if points is None else CostCurve.covering(
                *map(np.array, (points.ratio, points.bits, points.flops))),
        )

    def fitted_forecast(self) -> FittedForecast:
        """Return the scenario's forecast, or a built-in one if it has none.

        The built-in forecasts were fitted to runs of the mode ``practical``. ``unlike`` of the result says in what the
        scenario differs from them.
        """
        if self.forecast is not None and self.forecast.like is None:
            return self.forecast.fitted()
        built_in = BUILT_IN if self.forecast is None else self.forecast.fitted()
        learner = (self.learning.server.optimiser, self.learning.schedule)
        practical = (PRACTICAL_LEARNER["server"]["optimiser"], PRACTICAL_LEARNER["schedule"])
        counts = self.label_counts()
        least, most = SAMPLES_OF_A_CLIENT
        other_data = counts is not None and not least <= counts.sum(axis=1).mean() <= most
        differs = {"learner": learner != practical, "samples": other_data}
        return replace(built_in, unlike=tuple(name for name, is_other in differs.items() if is_other))
    @property
    def largest_ratio(self) -> float:
        """The largest λ^max of any client, a fraction."""
        return max(self.pruning.max_ratio if c.max_ratio is None else c.max_ratio for c in self.clients)

    def phi(self) -> Floats:
        """Return φ_n of every client, shape (N,): as given, or from the client's label histogram and the target's.

        :raises InputError: if Lemma 1 has no φ for a client's histogram.
        """
        phi = np.array([np.nan if client.phi is None else client.phi for client in self.clients])
        unknown = np.flatnonzero(np.isnan(phi))
        if unknown.size:
            train = np.array([self.clients[n].label_counts for n in unknown])
            target = np.array([self.clients[n].target_counts or self.target_counts for n in unknown])
            names = [f"clients[{n}]" for n in unknown]
            phi[unknown] = statement(train, target, self.bound.statement, names)
        return phi

    def label_counts(self) -> npt.NDArray[np.int64] | None:
        """Return the training samples of each class, shape (N, classes); None unless every client has a histogram."""
        counts = [client.label_counts for client in self.clients]
        return None if any(row is None for row in counts) else np.array(counts, dtype=np.int64)

    def constants(self, rounds: int | None = None) -> BoundConstants:
        """Return Theorem 1's α, β, γ₁ and γ₂ for this scenario.

        :param rounds: R, by default the scenario's.
        """
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

    @classmethod
    def file_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of a scenario *file*.

        A file may have the keys of this class, and others that loading turns into these, such as ``fleet``.
        """
        result = super().file_schema()
        definitions, properties = result["$defs"], result["properties"]
        recipes = {name: recipe.model_json_schema() for name, recipe in RECIPES.items()}
        shorthand = Shorthand.model_json_schema()
        for part in (shorthand, *recipes.values()):
            definitions |= part.pop("$defs", {})
        for name, recipe in recipes.items():
            recipe["properties"] = {"kind": {"const": name}} | recipe["properties"]
            recipe["required"].append("kind")
        other = {"type": "object", "properties": {"kind": {"type": "string", "not": {"enum": list(recipes)}}},
                 "required": ["kind"], "description": "A fleet of another package: a name, or package.module:NAME."}
        properties |= shorthand["properties"]
        properties["fleet"] = {"anyOf": [*recipes.values(), other],
                               "description": "A recipe for the clients, instead of clients."}
        listed = {**properties["clients"], "minItems": 1}
        properties["clients"] = {"anyOf": [listed, {"type": "string", "pattern": r".+"}]}
        result["required"].remove("clients")
        result["oneOf"] = [{"required": ["clients"]}, {"required": ["fleet"]}]
        for model, optional in (("Client", "downlink_gain"), ("Server", "bandwidth_hz")):
            definitions[model]["required"].remove(optional)
        return result


def check_together(scenario: Scenario) -> None:
    """Raise an error if values of different keys do not fit together.

    Histograms must have equal length, φ must be known for all clients, and names must be distinct.
    """
    if not scenario.clients:
        raise InputError("clients: must have at least one client; got none")
    bound, target = scenario.bound, scenario.target_counts
    if bound.sensitivity == "secant" and bound.pruning_sensitivity is None:
        raise InputError("bound.sensitivity: secant needs bound.pruning_sensitivity, the measured γ₂·R; give it, or "
                         "use theorem")
    if bound.aggregation == "mixture" and target is None:
        raise InputError("target_counts: missing; aggregation mixture needs the target's label histogram; give it, or "
                         "use mean")
    _check_curve(scenario)
    classes = len(target) if target is not None else None
    names: dict[str, int] = {}
    for n, client in enumerate(scenario.clients):
        for key in ("label_counts", "target_counts"):
            counts = getattr(client, key)
            if counts is not None and len(counts) != (classes := classes or len(counts)):
                raise InputError(f"clients[{n}].{key}: must have {classes} classes, as the other histograms have; "
                                 f"got {len(counts)}")
        if bound.aggregation == "mixture" and client.label_counts is None:
            raise InputError(f"clients[{n}].label_counts: missing; aggregation mixture needs every client's histogram; "
                             "give it, or use mean")
        if client.phi is None and client.label_counts is None:
            raise InputError(f"clients[{n}].phi: missing; give phi, or label_counts and target_counts, or a recipe "
                             "under labels")
        if client.phi is None and client.target_counts is None and target is None:
            raise InputError(f"clients[{n}].phi: missing; to compute it from label_counts, give target_counts as well")
        for low, high in (("min_power_w", "max_power_w"), ("min_frequency_hz", "max_frequency_hz")):
            least, most = getattr(client, low), getattr(client, high)
            if least is not None and least > most:
                raise InputError(f"clients[{n}].{low}: must be at most {high}, {most:g}; got {least:g}")
        if client.name is not None and names.setdefault(client.name, n) != n:
            taken = f"clients[{names[client.name]}] already has the name {error_messages.shown(client.name)}"
            raise InputError(f"clients[{n}].name: must be unique; {taken}")


_STRAIGHT = 1e-6
"""Tolerance of the check that a cost curve is convex; it is needed because the values are rounded."""


def _check_curve(scenario: Scenario) -> None:
    """Raise an error unless the cost curve begins at 0, reaches the largest ratio, and has convex shares falling from
    1.
    """
    curve = scenario.model.cost_curve
    if curve is None:
        return
    ratio, key = np.array(curve.ratio), "model.cost_curve"
    if ratio[0] != 0.0 or (np.diff(ratio) <= 0.0).any():
        raise InputError(f"{key}.ratio: must begin with 0, and each value must be larger than the one before")
    most = scenario.largest_ratio
    if ratio[-1] < most:
        raise InputError(f"{key}.ratio: must reach the largest max_ratio, {most:g}; it ends at {ratio[-1]:g}")
    for name in ("bits", "flops"):
        share = np.array(getattr(curve, name))
        if len(share) != len(ratio):
            raise InputError(f"{key}.{name}: must have one value per ratio, {len(ratio)}; got {len(share)}")
        slope = np.diff(share) / np.diff(ratio)
        if share[0] != 1.0 or share[-1] <= 0.0 or not slope[0] < 0.0 or (slope > 0.0).any():
            raise InputError(f"{key}.{name}: must begin with 1, never rise, and stay above 0")
        if (np.diff(slope) < -_STRAIGHT).any():
            raise InputError(f"{key}.{name}: must be convex (each further ratio saves less than the one before); "
                             f"fedgap.convex_upper_fit(ratio, {name}) returns the lowest such curve above it")
