"""The forecast accuracy of a plan, and what is proven about better plans."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedgap.errors import InputError
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import PlanFeatures

_WORDS = {"rounds": "the rounds", "local_steps": "the local steps", "few_clients": "the number of clients that train",
          "pruning": "the pruning ratio", "divergence": "the labels' divergence", "upload_bits": "the upload bits",
          "few_at_once": "the number of clients per round",
          "divergence_at_once": "the divergence of a round's labels",
          "learner": "the server's optimiser and the rate's schedule (`mode: practical` has those it was fitted to)",
          "samples": "the clients' numbers of samples"}
"""Names of features, and of the entries of :attr:`FittedForecast.unlike`, as warnings write them."""


@dataclass(frozen=True)
class PlanForecast:
    """The forecast accuracy of a plan, as a fraction, with its interval and certificate."""

    accuracy: float
    low: float | None
    """The accuracy is between ``low`` and ``high`` with probability ``confidence``; None if the spread is unknown."""
    high: float | None
    confidence: float
    origin: str
    """Where the forecast's weights come from."""
    outside: tuple[str, ...] = ()
    """Features of the plan (fields of :class:`~fedgap.theory.forecast.PlanFeatures`) that are outside the range of the
    runs to which the forecast was fitted; also ``learner`` if these runs trained in another way, and ``samples`` if
    their clients had far more or fewer samples."""
    least_error: float | None = None
    """Proven lower bound on the forecast error of all plans with these rounds, local steps and bits; None if
    unproven."""

    @classmethod
    def of(cls, fitted: FittedForecast, features: PlanFeatures, least_error: float | None = None) -> "PlanForecast":
        """Return the forecast of a plan with these features.

        :param least_error: a proven lower bound on the forecast error, if there is one.
        """
        expected = fitted.predict(features)
        low, high = (None, None) if fitted.spread is None else (expected.low, expected.high)
        # Rounding must not raise the bound above the error.
        least = None if least_error is None else min(least_error, 1.0 - expected.accuracy)
        return cls(expected.accuracy, low, high, fitted.confidence, fitted.origin, fitted.outside(features), least)

    @property
    def error(self) -> float:
        """The forecast error, 1 − accuracy."""
        return 1.0 - self.accuracy

    @property
    def gap(self) -> float | None:
        """How far the error may be above the least possible one, as a share of the error; None if nothing is proven."""
        return None if self.least_error is None else (self.error - self.least_error) / self.error

    @property
    def sentence(self) -> str:
        """One sentence with the accuracy and its interval."""
        between = ""
        if self.low is not None and self.high is not None:
            between = (f" ({100.0 * self.low:.1f} to {100.0 * self.high:.1f} % with {100.0 * self.confidence:.0f} % "
                       "confidence)")
        return f"Forecast accuracy: {100.0 * self.accuracy:.2f} %{between}."

    @property
    def warning(self) -> str:
        """The warning about features outside the ranges to which the forecast was fitted."""
        words = [_WORDS.get(name, name) for name in self.outside]
        return (f"Warning: outside the range that the forecast was fitted to: {', '.join(words)}. It may be far off; "
                "`fedgap calibrate` fits it anew.")

    def certificate(self, plans: str) -> str:
        """Return a sentence that says what is proven about better plans.

        :param plans: the plans to which the proof applies, in words.
        """
        assert self.least_error is not None
        assert self.gap is not None
        gap = "0.0001" if self.gap < 1e-6 else f"{100.0 * self.gap:.2g}"
        most = 100.0 * (1.0 - self.least_error)
        return (f"Certified: no plan of {plans} has a forecast accuracy above {most:.3f} %, so this one's forecast "
                f"error is within {gap} % of the least.")

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain values for JSON."""
        return {**asdict(self), "outside": list(self.outside)}

    @classmethod
    def from_dict(cls, data: Any) -> "PlanForecast":
        """Read the result of ``to_dict``; a one-line error names what is missing or wrong."""
        if not isinstance(data, Mapping):
            raise InputError(f"forecast: must be an object with the key accuracy; got {data!r}")

        def number(key: str, missing: float | None) -> float | None:
            value = data.get(key)
            if value is None and key != "accuracy":
                return missing
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise InputError(f"forecast.{key}: must be a finite number; got {value!r}")
            return float(value)

        outside = data.get("outside") or ()
        if not isinstance(outside, (list, tuple)) or not all(isinstance(name, str) for name in outside):
            raise InputError(f"forecast.outside: must be a list of names; got {outside!r}")
        accuracy, confidence = number("accuracy", None), number("confidence", 0.9)
        assert accuracy is not None
        assert confidence is not None
        return cls(accuracy, number("low", None), number("high", None), confidence, str(data.get("origin", "")),
                   tuple(outside), number("least_error", None))
