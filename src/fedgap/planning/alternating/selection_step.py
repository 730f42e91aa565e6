"""Line 10 of Algorithm 1: the selection, by problems P4 and P5, at fixed λ, p and f.

P5 minimises (β + μ)/Σa by turns in a and μ, where μ ≥ γ₁Φ(a)² + γ₂Σaλ; the right-hand side is called the *numerator*.
For a fixed μ this maximises Σa, and for a fixed a it lowers μ to the numerator. The printed alternation can therefore
never lower Σa, and its result depends on μ⁰. Of several selections of the same size the one with the least numerator is
taken.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from fedgap.arrays import Bools, Floats
from fedgap.errors import InputError
from fedgap.planning.alternating.convex import cvxpy, solved
from fedgap.planning.alternating.iterate import TOLERANCE, Iterate, Repeated
from fedgap.planning.oracles.enumerate import all_selections
from fedgap.planning.tolerances import ENUMERATED_CLIENTS

Variant = Literal["printed", "relaxed", "exact"]
"""How the selection is found; see :class:`SelectionStep`."""


class Candidate(NamedTuple):
    """The selection with the least numerator among those of one size that fit the budgets."""

    numerator: float
    selected: Bools


class _Budgets(NamedTuple):
    """What each client needs over all rounds at fixed λ, p and f, in units of the budgets, shape (N,)."""

    energy: Floats
    delay: Floats
    """Time of all pruned rounds."""
    dense_delay: Floats
    """Time of the unpruned round; 0 if there is none."""
    linear: Floats
    """The client's part of the numerator: γ₂·λ_n, times (R − 1)/R if round 0 is unpruned."""


class SelectionStep:
    """Finds the selection by P5 with a and μ by turns (``printed``), by P4 over a in [0, 1] and rounding (``relaxed``),
    or by P4 over whole a (``exact``)."""

    def __init__(self, repeated: Repeated, variant: Variant) -> None:
        problem = repeated.problem
        self._repeated, self._variant = repeated, variant
        mixture = problem.aggregation == "mixture"
        if mixture and repeated.scheme.select and (problem.size > ENUMERATED_CLIENTS or variant == "relaxed"):
            raise InputError(
                f"bound.aggregation: mixture works with the solver alternating only for up to {ENUMERATED_CLIENTS} "
                "clients, and not with its option selection: relaxed; use sum or mean, or the solver exact"
            )

    def __call__(self, point: Iterate) -> Iterate:
        """Return the point with its new selection, or unchanged if no other selection fits the budgets."""
        if not self._repeated.scheme.select:
            return point
        budgets = self._budgets(point)
        constants = self._repeated.problem.constants
        if self._variant == "relaxed":
            selected = self._relaxed(budgets)
        elif self._variant == "exact":
            rated = [((constants.beta + c.numerator) / c.selected.sum(), c.selected) for c in self._candidates(budgets)]
            selected = min(rated, key=lambda pair: float(pair[0]))[1] if rated else None
        else:
            selected = self._by_turns(point.selected, budgets)
        return point if selected is None else replace(point, selected=selected)

    def _by_turns(self, selected: Bools, budgets: _Budgets) -> Bools:
        """Solve P5 as printed, starting at the given selection with μ equal to its numerator."""
        mu = self._numerator(selected, budgets)
        while True:
            fitting = (c for c in self._candidates(budgets, int(selected.sum())) if c.numerator <= mu * (1.0 + 1e-12))
            largest = next(fitting, None)
            if largest is None:
                return selected
            selected, before, mu = largest.selected, mu, largest.numerator
            if mu >= before:
                return selected

    # --- the pieces of P4 -----------------------------------------------------------------------------------------

    def _budgets(self, point: Iterate) -> _Budgets:
        repeated, problem = self._repeated, self._repeated.problem
        loads = repeated.loads(point.power_w, point.frequency_hz)
        pruned = repeated.pruned_rounds
        return _Budgets(
            energy=repeated.energy_of(loads, point.ratio) / repeated.energy_j,
            delay=pruned * ((1.0 - point.ratio) * loads.delay_s + loads.download_s) / problem.delay_s,
            dense_delay=repeated.dense_rounds * (loads.delay_s + loads.download_s) / problem.delay_s,
            linear=problem.constants.gamma2 * point.ratio * pruned / problem.rounds,
        )

    def _numerator(self, selected: Bools, budgets: _Budgets) -> float:
        phi = float(self._repeated.problem.statement(selected))
        return float(self._repeated.problem.constants.gamma1 * phi**2 + budgets.linear[selected].sum())

    def _fits(self, selected: Bools, budgets: _Budgets) -> Bools:
        """Return whether each selection (..., N) keeps both budgets, shape (...)."""

        def longest(delays: Floats) -> Floats:
            return np.asarray(np.where(selected, delays, 0.0).max(axis=-1))

        energy = selected @ budgets.energy
        delay = longest(budgets.delay) + longest(budgets.dense_delay)
        return np.asarray((energy <= 1.0 + TOLERANCE) & (delay <= 1.0 + TOLERANCE))

    def _candidates(self, budgets: _Budgets, least: int = 1) -> Iterator[Candidate]:
        """Yield the best selection of each size from N down to ``least`` for which one fits the budgets."""
        sizes = range(self._repeated.problem.size, least - 1, -1)
        if self._repeated.problem.size <= ENUMERATED_CLIENTS:  # for more clients, each size is a mixed-integer program
            return self._enumerated(budgets, sizes)
        return (found for size in sizes if (found := self._mixed_integer(budgets, size)) is not None)

    @cached_property
    def _selections(self) -> tuple[Bools, Floats]:
        """All selections, (2^N − 1, N), and γ₁Φ² of each."""
        every = all_selections(self._repeated.problem.size)
        with np.errstate(invalid="ignore"):
            squared = self._repeated.problem.constants.gamma1 * self._repeated.problem.statement(every) ** 2
        return every, np.nan_to_num(squared, nan=np.inf, posinf=np.inf)

    def _enumerated(self, budgets: _Budgets, sizes: range) -> Iterator[Candidate]:
        every, squared = self._selections
        numerator = np.where(self._fits(every, budgets), squared + every @ budgets.linear, np.inf)
        count = every.sum(axis=-1)
        for size in sizes:
            best = int(np.where(count == size, numerator, np.inf).argmin())
            if np.isfinite(numerator[best]) and count[best] == size:
                yield Candidate(float(numerator[best]), every[best])

    def _mixed_integer(self, budgets: _Budgets, size: int) -> Candidate | None:
        """Return the best selection of ``size`` clients: min q + Σ aγ₂λ with q ≥ γ₁Φ².

        q ≥ γ₁Φ² is replaced by its tangents, which are added one by one until it holds. The variables are a (binary),
        q, and the times of a pruned and of the unpruned round.
        """
        problem = self._repeated.problem
        total, gamma = problem.size, problem.constants.gamma1
        phi = problem.phi / (size if problem.aggregation == "mean" else 1)
        scale = gamma * (size * float(phi.max())) ** 2 + size * float(budgets.linear.max()) or 1.0
        nobody, identity = np.zeros((total, 1)), np.eye(total)
        rows = [
            (np.r_[np.ones(total), 0, 0, 0], float(size), float(size)),
            (np.r_[budgets.energy, 0, 0, 0], -np.inf, 1.0),
            (np.r_[np.zeros(total), 0, 1, 1], -np.inf, 1.0),
        ]
        times = [
            np.hstack([identity * budgets.delay, nobody, nobody - 1, nobody]),
            np.hstack([identity * budgets.dense_delay, nobody, nobody, nobody - 1]),
        ]
        limits = [LinearConstraint(np.vstack(times), -np.inf, 0.0)]
        limits += [LinearConstraint(row, low, high) for row, low, high in rows]
        # A client that exceeds the time even alone is left out, which makes the search faster.
        alone = budgets.delay + budgets.dense_delay <= 1.0 + TOLERANCE
        upper = np.r_[alone.astype(np.float64), np.inf, np.inf, np.inf]
        best: Candidate | None = None
        for _ in range(30):
            answer = milp(
                np.r_[budgets.linear / scale, 1.0, 0.0, 0.0],
                integrality=np.r_[np.ones(total), 0, 0, 0],
                bounds=Bounds(0.0, upper),
                constraints=limits,
                options={"mip_rel_gap": 1e-9},
            )
            if answer.x is None:
                return best
            selected = answer.x[:total] > 0.5
            numerator = self._numerator(selected, budgets)
            if best is None or numerator < best.numerator:
                best = Candidate(numerator, selected)
            if numerator <= scale * answer.fun * (1.0 + 1e-9) + 1e-12 * scale:
                return best
            at = float(phi[selected].sum())
            cut = np.r_[-2.0 * gamma * at * phi / scale, 1.0, 0.0, 0.0]
            limits.append(LinearConstraint(cut, -gamma * at**2 / scale, np.inf))
        return best

    def _relaxed(self, budgets: _Budgets) -> Bools | None:
        """Solve P4 with a in [0, 1], and round; None if no selection fits the budgets.

        For each k a convex program with Σa = k is solved. For the best k the clients with the k largest a are selected.
        If they exceed a budget, the client that needs most is dropped until the rest fits.
        """
        cp = cvxpy()
        problem = self._repeated.problem
        total, beta, gamma = problem.size, problem.constants.beta, problem.constants.gamma1
        a, longest, dense = cp.Variable(total), cp.Variable(), cp.Variable()
        size, share = cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
        scale = gamma * float(problem.phi.sum()) ** 2 + float(budgets.linear.sum()) or 1.0
        statement = np.sqrt(gamma / scale) * problem.phi
        numerator = cp.square(share * (statement @ a)) + (budgets.linear / scale) @ a
        constraints = [a >= 0.0, a <= 1.0, cp.sum(a) == size, budgets.energy @ a <= 1.0, longest + dense <= 1.0]
        constraints += [cp.multiply(budgets.delay, a) <= longest, cp.multiply(budgets.dense_delay, a) <= dense]
        model = cp.Problem(cp.Minimize(numerator), constraints)
        best, selected = np.inf, None
        for k in range(1, total + 1):
            size.value, share.value = k, 1.0 / k if problem.aggregation == "mean" else 1.0
            if not solved(model):
                continue
            cost = (beta + scale * float(model.value)) / k
            if cost < best:
                best, selected = cost, np.zeros(total, dtype=np.bool_)
                selected[np.argsort(-a.value, kind="stable")[:k]] = True
        while selected is not None and not self._fits(selected, budgets):
            selected[np.argmax(np.where(selected, budgets.energy + budgets.delay, 0.0))] = False
            if not selected.any():
                return None
        return selected
