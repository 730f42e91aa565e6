"""Fit the forecast's weights to trained runs: a robust fit to the logarithm of the error, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.errors import InputError
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import FEATURES, WEIGHTS, Forecast, PlanFeatures

PRIOR = Forecast(start=3.0, rounds_power=0.8, steps_power=0.65, slowed_by_pruning=0.6, slowed_by_divergence=1.0,
                 few_clients=0.1, divergence=0.1, coarse_uploads=1.0, floor=0.03, slow_start=8.0,
                 slowed_by_few_clients=0.3, drift_power=0.2)
"""Typical weights, which the fit keeps where the runs give no information."""
PRIOR_SPREAD: Mapping[str, float] = {
    "start": 1.2, "rounds_power": 0.4, "steps_power": 0.3, "slowed_by_pruning": 0.7, "slowed_by_divergence": 0.8,
    "few_clients": 1.5, "divergence": 1.5, "coarse_uploads": 0.8, "floor": 2.0, "slow_start": 0.8,
    "slowed_by_few_clients": 1.0, "drift_power": 1.0}
"""Standard deviation of ln(weight) around the prior. It is small for exponents, which hardly differ between tasks, and
large for the weights of lasting errors, which do."""
LEAST_ERROR = 1e-4
"""Smaller errors are replaced by this: a run without a mistake on few samples must not decide the fit."""
LEAST_WEIGHT = 1e-3
"""Replaces a prior weight of 0, which has no logarithm."""
FEWEST_RUNS = 8
"""With fewer runs, the prior alone would decide."""
FEWEST_FOR_TWO_SPREADS = 100
"""With fewer runs one spread is fitted for all runs, because the additional spread of short runs cannot be
estimated."""
STARTS = 4
"""Starting points of the search: the prior's weights, and random multiples of them."""
ROBUST_AT = 1.5
"""Residuals beyond this multiple of the spread count linearly rather than by their square (soft-L1)."""
_FIRST_SPREAD, _LEAST_SPREAD = 0.1, 0.01
"""Spread that the first fit assumes, and the least spread that is reported."""
_TURNS = 3
"""Number of fits after the first; each uses the spread of the residuals of the one before."""
_SPREADS = np.geomspace(0.01, 0.6, 25)
_LEARNING_SPREADS = np.concatenate([[0.0], np.geomspace(0.02, 1.0, 20)])
"""Values among which ``spread`` and ``learning_spread`` are chosen."""
_HEAVY = 4.0
"""Degrees of freedom of the Student distribution by whose likelihood the two spreads are chosen. Its tails are heavy,
so that a few outliers do not decide."""
_HARMLESS = ("pruning", "divergence", "divergence_at_once")
"""Features for which values below the fitted range are no reason for a warning."""


def fit(runs: Sequence[PlanFeatures], errors: Sequence[float], *, prior: Forecast = PRIOR, origin: str = "",
        plans: Sequence[int] | None = None) -> FittedForecast:
    """Return the forecast whose weights fit the runs best.

    The fit minimises Σ ρ((ln error − ln forecast)/spread) + Σ ρ((ln weight − ln prior weight)/PRIOR_SPREAD) over the
    logarithms of the weights, with a soft-L1 loss ρ, from several starting points. The prior decides weights about
    which the runs say nothing, such as that of coarse uploads if all uploads have 32 bits.

    :param runs: the features of each run's plan; :param errors: 1 − accuracy of each run, on samples that no client
        trained on; :param plans: a number for each run that is equal for runs of the same plan, so that noise between
        seeds can be separated from errors of the formula.
    """
    from scipy.optimize import least_squares

    if len(runs) < FEWEST_RUNS:
        raise InputError(f"forecast: needs at least {FEWEST_RUNS} runs to be fitted; got {len(runs)}")
    measured = np.log(np.maximum(np.asarray(errors, dtype=np.float64), LEAST_ERROR))
    expected = _logarithm_of_error(runs)
    centre = np.log([max(getattr(prior, name), LEAST_WEIGHT) for name in WEIGHTS])
    around = np.array([PRIOR_SPREAD[name] for name in WEIGHTS])

    def residuals(x: Floats, spread: Floats) -> Floats:
        return np.concatenate([(measured - expected(x)[0]) / spread, (x - centre) / around])

    def search(first: Floats, spread: Floats) -> Any:
        return least_squares(residuals, first, args=(spread,), loss="soft_l1", f_scale=ROBUST_AT, max_nfev=60)

    random = np.random.default_rng(0)
    firsts = [centre, *(centre + 0.5 * around * random.standard_normal(len(centre)) for _ in range(STARTS - 1))]
    spread = np.full(len(runs), _FIRST_SPREAD)
    best = min((search(first, spread) for first in firsts), key=lambda found: found.cost)
    for _ in range(_TURNS):
        logarithm, share = expected(best.x)
        finished, learning = _spreads(measured - logarithm, share, len(centre))
        best = search(best.x, np.sqrt(finished**2 + (learning * share) ** 2))
    logarithm, share = expected(best.x)
    finished, learning = _spreads(measured - logarithm, share, len(centre))
    weights = Forecast(**{name: float(value) for name, value in zip(WEIGHTS, np.exp(best.x), strict=True)})
    covariance = np.linalg.inv(best.jac.T @ best.jac)
    seen = {name: [float(getattr(run, name)) for run in runs] for name in FEATURES}
    ranges = {name: (0.0 if name in _HARMLESS else min(values), max(values)) for name, values in seen.items()}
    between = _between_seeds(measured, plans) if plans is not None else 0.0
    return FittedForecast(weights, origin, finished, ranges, runs=len(runs), learning_spread=learning,
                          seed_spread=min(finished, between),
                          covariance=tuple(tuple(map(float, row)) for row in covariance))


def _logarithm_of_error(runs: Sequence[PlanFeatures]) -> Callable[[Floats], tuple[Floats, Floats]]:
    """Return the formula of :class:`Forecast` for all runs at once, as a function of the logarithms of the weights.

    The function returns ln(error) of every run, and the share of each error that more training would remove.
    """
    rounds, steps, few, pruning, divergence, bits, few_at_once, divergence_at_once = (
        np.array([getattr(run, name) for run in runs], dtype=np.float64) for name in FEATURES)
    coarse = 2.0 ** (1.0 - bits)

    def expected(x: Floats) -> tuple[Floats, Floats]:
        w = dict(zip(WEIGHTS, np.exp(x), strict=True))
        apart = w["slowed_by_divergence"] * divergence_at_once + w["slowed_by_few_clients"] * few_at_once
        slowed = w["slowed_by_pruning"] * pruning + apart * steps ** w["drift_power"] + w["coarse_uploads"] * coarse
        effective = np.log(rounds) - w["slow_start"] / rounds + w["steps_power"] * np.log(steps)
        learning = np.log(w["start"]) - w["rounds_power"] * effective + slowed
        lasting = w["few_clients"] * few + w["divergence"] * divergence + w["floor"]
        logarithm = np.logaddexp(learning, np.log(lasting))
        return logarithm, np.exp(learning - logarithm)

    return expected


def _spreads(residual: Floats, share: Floats, fitted: int) -> tuple[float, float]:
    """Return ``spread`` and ``learning_spread``: the most likely pair under Student's distribution, scaled so that 90 %
    of the runs lie within their 90 % interval.

    :param residual: ln(error) minus its forecast, per run; :param share: the share of each run's error that more
        training would remove; :param fitted: the number of fitted weights.
    """
    best, finished, learning = math.inf, 0.0, 0.0
    for one in _SPREADS:
        for more in _LEARNING_SPREADS if len(residual) >= FEWEST_FOR_TWO_SPREADS else [0.0]:
            variance = one**2 + (more * share) ** 2
            cost = float((0.5 * np.log(variance) + 0.5 * (_HEAVY + 1.0) * np.log1p(residual**2 / variance / _HEAVY))
                         .sum())
            if cost < best:
                best, finished, learning = cost, float(one), float(more)
    within = float(np.quantile(np.abs(residual) / np.sqrt(finished**2 + (learning * share) ** 2), 0.9)) / 1.645
    scale = within * math.sqrt(len(residual) / max(1.0, len(residual) - fitted))
    return max(_LEAST_SPREAD, scale * finished), scale * learning


def _between_seeds(measured: Floats, plans: Sequence[int]) -> float:
    """Return the standard deviation of ln(error) between runs of the same plan, from all plans with several runs."""
    groups: dict[int, list[float]] = {}
    for value, plan in zip(measured.tolist(), plans, strict=True):
        groups.setdefault(plan, []).append(value)
    variances = [float(np.var(group, ddof=1)) for group in groups.values() if len(group) > 1]
    return math.sqrt(float(np.mean(variances))) if variances else 0.0
