"""Algorithm 1 of the paper. Choices that the paper leaves open are named options."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from fedgap.errors import InputError
from fedgap.planning.alternating.iterate import Repeated
from fedgap.planning.alternating.pruning_step import pruning_step
from fedgap.planning.alternating.resource_step import ResourceStep, successive_approximation
from fedgap.planning.alternating.selection_step import SelectionStep, Variant
from fedgap.planning.alternating.starting_point import everybody, fewer, why_infeasible
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.settings import Progress


@dataclass(frozen=True)
class AlternatingOptions:
    """Choices that the paper leaves open; the defaults follow its text, or its simplest reading."""

    iterations: int = 50
    """O: maximum number of outer iterations."""
    threshold: float = 1e-5
    """Outer iterations end when θ falls by less than this share of γ₂R, which corresponds to a change of the mean λ by
    this much. A share of θ itself would end them at once if γ₁Φ² is far larger than the pruning term.
    """
    tie_break: Literal["centre", "slack"] = "centre"
    """Which solution of P2.1 is taken, as it has many: the central one of the interior-point solver (``centre``), or
    the one with the most slack in both budgets (``slack``)."""
    inner_stop: Literal["printed", "moves"] = "printed"
    """When to stop solving P2.1 again: if the objective does not fall, which is after one step (``printed``), or if
    powers change by less than 10⁻⁶ of their maximum (``moves``)."""
    start: Literal["printed", "feasible"] = "printed"
    """The first selection: all clients (``printed``), or as many as fit the budgets at λ^max, after the slowest and
    those that need most energy are dropped (``feasible``)."""
    selection: Variant = "printed"
    """How P5 is solved: by turns in a and μ (``printed``), P4 relaxed and rounded (``relaxed``), or P4 exactly
    (``exact``)."""


@dataclass(frozen=True, eq=False)
class AlternatingResult:
    """The result of Algorithm 1. Without a feasible start there are no segments, and ``message`` says why."""

    segments: tuple[Segment, ...]
    trace: tuple[float, ...]
    """θ at the start and after each iteration, as the scheme minimises it. It never rises (line 11)."""
    message: str
    """How the algorithm ended, or why there is no plan."""
    feasible_start: bool
    """Whether the starting point was feasible."""
    iterations: int
    """The number of outer iterations."""

    @property
    def feasible(self) -> bool:
        """Whether there is a plan."""
        return bool(self.segments)


def solve(
    problem: Problem, scheme: Scheme, options: AlternatingOptions | None = None, progress: Progress | None = None
) -> AlternatingResult:
    """Minimise θ of a problem by Algorithm 1. After Ctrl-C the best point so far is returned.

    The paper does not say where the algorithm starts. Here it starts at λ = λ^max, p = p^max, f = f^max, with μ⁰ equal
    to its lower limit at a⁰. Variables that a scheme fixes keep these values (λ = 0 if it does not prune). If P2.1 has
    no solution there, the start is infeasible. The algorithm then cannot continue, although other selections may fit
    the budgets.
    """
    _refuse_limits(problem)
    options = options or AlternatingOptions()
    repeated = Repeated(problem, scheme)
    selection = SelectionStep(repeated, options.selection)
    step_for = cache(lambda count: ResourceStep(repeated, count, options.tie_break))  # compiled once per client count
    if repeated.energy_j <= 0.0:
        return AlternatingResult((), (), why_infeasible(repeated, everybody(repeated)), False, 0)
    point = everybody(repeated) if options.start == "printed" else fewer(repeated)
    if point is None:
        reason = why_infeasible(repeated, everybody(repeated))
        return AlternatingResult((), (), f"no start fits the budgets; with all clients: {reason}", False, 0)
    theta = repeated.theta(point)
    trace = [theta]
    started, message = False, ""
    for iteration in range(1, options.iterations + 1):
        try:
            new = successive_approximation(step_for(int(point.selected.sum())), repeated, point, options.inner_stop)
            if new is None and not started:
                return AlternatingResult((), (), why_infeasible(repeated, point), False, 0)
            if new is None:
                # The budgets are so tight at this λ that P2.1 has no interior point: keep the powers and frequencies.
                new = point
            new = selection(pruning_step(repeated, new))
            value = repeated.theta(new)
            if repeated.feasible(new) and value <= theta:  # line 11 of Algorithm 1
                point, gain, theta, started = new, theta - value, value, True
            else:
                gain = 0.0
            trace.append(theta)
            if progress is not None:
                progress("Algorithm 1", iteration, theta - problem.constants.alpha, -np.inf)
        except KeyboardInterrupt:
            if not started:
                raise
            message = "interrupted"
            break
        if gain <= options.threshold * problem.pruning_weight:
            message = "converged"
            break
    else:
        message = f"stopped after {options.iterations} iterations"
    if not started:
        return AlternatingResult((), (), message + " before a feasible point was reached", True, len(trace) - 1)
    return AlternatingResult(repeated.segments(point), tuple(trace), message, True, len(trace) - 1)


def _refuse_limits(problem: Problem) -> None:
    """Raise an error for minimum clocks and powers, idle power, batteries and cost curves.

    The paper's subproblems do not have them.
    """
    fleet = problem.fleet
    given = {"clients.min_frequency_hz": fleet.min_frequency_hz.any(), "clients.min_power_w": fleet.min_power_w.any(),
             "clients.idle_power_w": fleet.idle_power_w.any(), "clients.battery_j": np.isfinite(fleet.battery_j).any(),
             "model.cost_curve": fleet.cost_curve is not None}
    for key, holds in given.items():
        if holds:
            raise InputError(f"solver: must be exact, because alternating does not support {key}")
