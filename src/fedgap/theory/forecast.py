"""How good the model of a plan will be: its error on the test set, forecast from what the plan decides.

    error ≈ K(R, τ, bits)·exp(d·λ̄ + c·KL) + B·(1/k) + C·KL + floor,        K = C₀·(R·τ^b)^(−a)·exp(e·ρ(bits))

with R rounds, τ local steps, k clients in a round, λ̄ the mean pruning ratio, KL the divergence of the mean of the
selected clients' label distributions from the target, and ρ(bits) = 2^(1 − bits), the step of a rounded upload. Errors
are shares of one (0.02 for an accuracy of 98 %). All weights are at least 0.

Where rounds differ, 1/k, λ̄ and KL are means over the rounds. For given R, τ and bits the error is then convex in these
three means, so that a tangent bounds it from below and has the form that :class:`fedgap.planning.objective.Objective`
asks for.

A fit (:mod:`fedgap.theory.forecast_fit`) also gives the forecast its uncertainty. ln(error) of one run is taken to be
normal around the forecast's, with the variance of the fitted weights' part plus that of runs around the forecast.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedgap.errors import InputError, did_you_mean


@dataclass(frozen=True)
class PlanFeatures:
    """What the forecast knows about a plan."""

    rounds: float
    """R."""
    local_steps: float
    """τ."""
    few_clients: float
    """Mean over the rounds of 1/k."""
    pruning: float
    """λ̄: mean over the rounds of the selected clients' mean pruning ratio."""
    divergence: float
    """Mean over the rounds of KL(A), in nats."""
    upload_bits: int = 32


@dataclass(frozen=True)
class Prediction:
    """A forecast accuracy with the interval that holds the truth with probability ``confidence``."""

    accuracy: float
    low: float
    high: float
    confidence: float

    def to_dict(self) -> dict[str, float]:
        """As in a plan's JSON, to four digits after the point."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class FixedRounds:
    """The forecast for given rounds, local steps and bits: K·exp(d·λ̄ + c·KL) + B·(1/k) + C·KL + floor."""

    scale: float
    """K: what training longer takes away."""
    slowed_by_pruning: float
    """d."""
    slowed_by_divergence: float
    """c."""
    few_clients: float
    """B."""
    divergence: float
    """C."""
    floor: float

    def error(self, few_clients: float, pruning: float, divergence: float) -> float:
        """The forecast error, a share of one."""
        slowed = self.slowed_by_pruning * pruning + self.slowed_by_divergence * divergence
        return float(self.scale * np.exp(slowed) + self.few_clients * few_clients + self.divergence * divergence
                     + self.floor)


@dataclass(frozen=True)
class Forecast:
    """The fitted weights; see the module docstring."""

    start: float
    """C₀: the error after one round of one step, above what remains for ever."""
    rounds_power: float
    """a."""
    steps_power: float
    """b: how much of a round a local step is worth."""
    slowed_by_pruning: float
    """d."""
    slowed_by_divergence: float
    """c."""
    few_clients: float
    """B."""
    divergence: float
    """C."""
    coarse_uploads: float
    """e."""
    floor: float
    origin: str = ""
    """Where the weights come from, in words."""
    runs: int = 0
    """Trained runs that they were fitted to."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the largest value of each feature among those runs."""
    spread: float = 0.0
    """Standard deviation of ln(error) of one run around the forecast."""
    seed_spread: float = 0.0
    """The part of it between seeds of one plan; the rest is what the form misses."""
    covariance: tuple[tuple[float, ...], ...] = ()
    """Of the logarithms of the weights, in the order of :data:`WEIGHTS`."""

    def at(self, rounds: float, local_steps: float, upload_bits: int = 32) -> FixedRounds:
        """The forecast for given rounds, local steps and upload bits."""
        effective = rounds * local_steps**self.steps_power
        coarse = np.exp(self.coarse_uploads * 2.0 ** (1 - upload_bits))
        return FixedRounds(
            scale=float(self.start * effective ** (-self.rounds_power) * coarse),
            slowed_by_pruning=self.slowed_by_pruning,
            slowed_by_divergence=self.slowed_by_divergence,
            few_clients=self.few_clients,
            divergence=self.divergence,
            floor=self.floor,
        )

    def error(self, plan: PlanFeatures) -> float:
        """The forecast error of a plan, a share of one."""
        fixed = self.at(plan.rounds, plan.local_steps, plan.upload_bits)
        return fixed.error(plan.few_clients, plan.pruning, plan.divergence)

    def deviation(self, plan: PlanFeatures, *, of_mean: bool = False) -> float:
        """Standard deviation of ln(error): of one run or, ``of_mean``, of the mean over many seeds."""
        around = math.sqrt(max(0.0, self.spread**2 - self.seed_spread**2)) if of_mean else self.spread
        if not self.covariance:
            return around
        slope = self._slope(plan)
        return math.sqrt(max(0.0, float(slope @ np.array(self.covariance) @ slope)) + around**2)

    def _slope(self, plan: PlanFeatures) -> np.ndarray:
        """∂ln(error)/∂ln(weight), by central differences, (9,)."""
        step = 1e-4
        up, down = ([math.log(replace(self, **{name: getattr(self, name) * factor}).error(plan)) for name in WEIGHTS]
                    for factor in (math.exp(step), math.exp(-step)))
        return (np.array(up) - np.array(down)) / (2.0 * step)

    def predict(self, plan: PlanFeatures, confidence: float = 0.9, *, of_mean: bool = False) -> Prediction:
        """The forecast accuracy with its interval: for one run or, ``of_mean``, for the mean over many seeds."""
        from scipy.special import ndtri

        error = self.error(plan)
        reach = math.exp(float(ndtri(0.5 + 0.5 * confidence)) * self.deviation(plan, of_mean=of_mean))
        low, high = (max(0.0, 1.0 - min(1.0, value)) for value in (error * reach, error / reach))
        return Prediction(max(0.0, 1.0 - error), low, high, confidence)

    def outside(self, plan: PlanFeatures) -> list[str]:
        """One sentence for each feature of the plan that lies outside what the fitted runs had."""
        return [f"{name} {value:.4g} is outside the {low:.4g} to {high:.4g} of the runs that the forecast was fitted to"
                for name, (low, high) in self.ranges.items()
                if not low * (1.0 - _MARGIN) - 1e-9 <= (value := float(getattr(plan, name)))
                <= high * (1.0 + _MARGIN) + 1e-9]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for the section ``forecast`` of a scenario; what is unknown is left out."""
        values: dict[str, Any] = {name: float(f"{getattr(self, name):.6g}") for name in WEIGHTS}
        extra = {"origin": self.origin, "runs": self.runs,
                 "ranges": {name: [float(f"{end:.6g}") for end in ends] for name, ends in self.ranges.items()},
                 "spread": float(f"{self.spread:.4g}"), "seed_spread": float(f"{self.seed_spread:.4g}"),
                 "covariance": [[float(f"{value:.4g}") for value in row] for row in self.covariance]}
        return values | {name: value for name, value in extra.items() if value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Forecast":
        """Read what :meth:`to_dict` wrote; a wrong or missing value is named."""
        known = [entry.name for entry in fields(cls)]
        for name in values:
            if name not in known:
                raise InputError(f"forecast.{name}: is not known{did_you_mean(name, known)}")
        weights = {}
        for name in WEIGHTS:
            value = values.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
                raise InputError(f"forecast.{name}: must be a number of at least 0; got {value!r}")
            weights[name] = float(value)
        size = len(WEIGHTS)
        covariance = tuple(tuple(map(float, row)) for row in values.get("covariance", ()))
        if covariance and [len(row) for row in covariance] != [size] * size:
            raise InputError(f"forecast.covariance: must have {size} rows of {size} numbers")
        ranges = {str(name): (float(ends[0]), float(ends[1])) for name, ends in values.get("ranges", {}).items()}
        return cls(**weights, origin=str(values.get("origin", "")), runs=int(values.get("runs", 0)), ranges=ranges,
                   spread=float(values.get("spread", 0.0)), seed_spread=float(values.get("seed_spread", 0.0)),
                   covariance=covariance)


WEIGHTS = tuple(entry.name for entry in fields(Forecast) if entry.type is float and entry.name not in
                ("spread", "seed_spread"))
"""The names of the nine weights."""
FEATURES = tuple(entry.name for entry in fields(PlanFeatures))
"""The names of what the forecast knows about a plan."""
_MARGIN = 0.1
"""A feature counts as outside the fitted runs' range from a tenth beyond its ends."""
