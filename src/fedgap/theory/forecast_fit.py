"""The forecast's weights from trained runs: a robust fit to the logarithm of the error, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.errors import InputError
from fedgap.theory.fitted_forecast import BUILT_IN, FittedForecast
from fedgap.theory.forecast import FEATURES, WEIGHTS, Forecast, PlanFeatures

LEAST_ERROR = 1e-4
"""Errors below are taken as this: a run that makes no mistake on few samples must not decide the fit."""
FEWEST_RUNS = 8
"""With fewer runs, the prior alone would decide."""
STARTS = 8
"""Starting points of the search: the prior's weights, and random multiples of them."""
ROBUST_AT = 1.5
"""Residuals beyond this multiple of the spread count linearly rather than by their square (soft-L1)."""
PRIOR_SPREAD = 1.0
"""Standard deviation of ln(weight) around the prior's: a factor of about three either way."""
LEAST_WEIGHT = 1e-3
"""A weight that the prior has as 0 is taken as this, so that it has a logarithm."""
_FIRST_SPREAD, _LEAST_SPREAD = 0.15, 0.01
_TURNS = 3
"""Fits in a row, each with the spread of the last one's residuals."""


def fit(runs: Sequence[PlanFeatures], errors: Sequence[float], *, prior: Forecast = BUILT_IN.forecast,
        origin: str = "", plans: Sequence[int] | None = None) -> FittedForecast:
    """The forecast whose weights fit the runs best.

    Minimises Σ ρ((ln error − ln forecast)/spread) + Σ ρ((ln weight − ln prior weight)/PRIOR_SPREAD) with a soft-L1
    loss ρ, from several starting points, so that all weights are positive. The prior decides what the runs say nothing
    about, such as the price of coarse uploads where all uploads are wide.

    :param runs: one entry per run; :param errors: 1 − accuracy of each, on samples that no client trained on;
    :param plans: which plan each run belongs to, so that the noise between seeds of one plan can be told from what the
        form misses.
    """
    from scipy.optimize import least_squares

    if len(runs) < FEWEST_RUNS:
        raise InputError(f"forecast: needs at least {FEWEST_RUNS} runs to be fitted; got {len(runs)}")
    measured = np.log(np.maximum(np.asarray(errors, dtype=np.float64), LEAST_ERROR))
    expected = _logarithm_of_error(runs)
    centre = np.log([max(getattr(prior, name), LEAST_WEIGHT) for name in WEIGHTS])

    def residuals(x: Floats, spread: float) -> Floats:
        return np.concatenate([(measured - expected(x)) / spread, (x - centre) / PRIOR_SPREAD])

    def search(first: Floats, spread: float) -> Any:
        return least_squares(residuals, first, args=(spread,), loss="soft_l1", f_scale=ROBUST_AT, max_nfev=100)

    random = np.random.default_rng(0)
    firsts = [centre, *(centre + random.normal(0.0, 0.5 * PRIOR_SPREAD, len(centre)) for _ in range(STARTS - 1))]
    spread = _FIRST_SPREAD
    best = min((search(first, spread) for first in firsts), key=lambda found: found.cost)
    for _ in range(_TURNS):
        spread = max(_LEAST_SPREAD, _spread(measured - expected(best.x), len(WEIGHTS)))
        best = search(best.x, spread)
    weights = Forecast(**{name: float(value) for name, value in zip(WEIGHTS, np.exp(best.x), strict=True)})
    covariance = np.linalg.inv(best.jac.T @ best.jac + 1e-9 * np.eye(len(centre)))
    ranges = {name: (float(min(values)), float(max(values)))
              for name in FEATURES if (values := [float(getattr(run, name)) for run in runs])}
    between = min(spread, _between_seeds(measured - expected(best.x), plans)) if plans is not None else 0.0
    return FittedForecast(weights, origin, spread, ranges, runs=len(runs), seed_spread=between,
                          covariance=tuple(tuple(map(float, row)) for row in covariance))


def _logarithm_of_error(runs: Sequence[PlanFeatures]) -> Callable[[Floats], Floats]:
    """The function from ln(weights) (9,) to ln(error) of every run; the same form as :class:`Forecast`."""
    rounds, steps, few, pruning, divergence, bits = (
        np.array([getattr(run, name) for run in runs], dtype=np.float64) for name in FEATURES)
    coarse = 2.0 ** (1.0 - bits)

    def expected(x: Floats) -> Floats:
        w = dict(zip(WEIGHTS, np.exp(x), strict=True))
        slowed = (w["slowed_by_pruning"] * pruning + w["slowed_by_divergence"] * divergence
                  + w["coarse_uploads"] * coarse)
        learning = x[0] - w["rounds_power"] * (np.log(rounds) + w["steps_power"] * np.log(steps)) + slowed
        rest = w["few_clients"] * few + w["divergence"] * divergence + w["floor"]
        return np.asarray(np.logaddexp(learning, np.log(rest)))

    return expected


def _spread(residual: Floats, fitted: int) -> float:
    """Standard deviation of runs around the fit, from the range that holds nine tenths of them."""
    within = float(np.quantile(np.abs(residual), 0.9)) / 1.645
    return within * math.sqrt(len(residual) / max(1.0, len(residual) - fitted))


def _between_seeds(residual: Floats, plans: Sequence[int]) -> float:
    """Standard deviation of the residuals of one plan around their mean, over all plans with several runs."""
    groups: dict[int, list[float]] = {}
    for value, plan in zip(residual.tolist(), plans, strict=True):
        groups.setdefault(plan, []).append(value)
    several = [np.array(group) for group in groups.values() if len(group) > 1]
    if not several:
        return 0.0
    return math.sqrt(sum(float(((g - g.mean()) ** 2).sum()) for g in several) / sum(len(g) - 1 for g in several))
