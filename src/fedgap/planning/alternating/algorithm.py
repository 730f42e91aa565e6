"""Algorithm 1 as printed, with every choice that it leaves open as a named option."""

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
    """Outer iterations end early when θ falls by less than this share of γ₂R, which is a change of the mean λ by this
    much. A share of θ would stop at once where γ₁Φ² is far larger than the pruning term.
    """
    tie_break: Literal["centre", "slack"] = "centre"
    """Which of several solutions of P2.1: the interior-point solver's central one, or one with most slack in both
    budgets."""
    inner_stop: Literal["printed", "moves"] = "printed"
    """When to stop solving P2.1: if the objective does not fall (after one step), or if powers change by less than
    10⁻⁶."""
    start: Literal["printed", "feasible"] = "printed"
    """a = 1, or the largest selection that fits the budgets at λ^max, dropping the slowest and hungriest clients."""
    selection: Variant = "printed"
    """How to solve P5: a and μ in turn (as printed), P4 relaxed and rounded, or P4 exactly."""


@dataclass(frozen=True, eq=False)
class AlternatingResult:
    """The result of Algorithm 1. Without a feasible start there are no segments, and ``message`` says why."""

    segments: tuple[Segment, ...]
    trace: tuple[float, ...]
    """θ at the start and after each iteration, as the scheme sees it; never rises (line 11)."""
    message: str
    feasible_start: bool
    iterations: int

    @property
    def feasible(self) -> bool:
        """Whether there is a plan."""
        return bool(self.segments)


def solve(
    problem: Problem, scheme: Scheme, options: AlternatingOptions | None = None, progress: Progress | None = None
) -> AlternatingResult:
    """Algorithm 1 for θ of a problem. Ctrl-C ends it with the best point so far.

    The paper does not say where it starts; here at λ = λ^max, p = p^max, f = f^max and μ⁰ tight at a⁰. A scheme's fixed
    variables keep these values (λ = 0 where it does not prune). P2.1 without a solution there means that the start is
    infeasible: the algorithm has no way to leave it, though other selections may fit the budgets.
    """
    _refuse_limits(problem)
    options = options or AlternatingOptions()
    repeated = Repeated(problem, scheme)
    selection = SelectionStep(repeated, options.selection)
    step_for = cache(lambda clients: ResourceStep(repeated, clients, options.tie_break))  # compiled once per number
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
                # The budgets are so tight at this λ that P2.1 has no inner point: keep the powers.
                new = point
            new = selection(pruning_step(repeated, new))
            value = repeated.theta(new)
            if repeated.feasible(new) and value <= theta:  # line 11
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
    """Refuse minimum clocks and powers, idle power, batteries and cost curves, which the paper's subproblems do not
    have."""
    fleet = problem.fleet
    given = {"clients.min_frequency_hz": fleet.min_frequency_hz.any(), "clients.min_power_w": fleet.min_power_w.any(),
             "clients.idle_power_w": fleet.idle_power_w.any(), "clients.battery_j": np.isfinite(fleet.battery_j).any(),
             "model.cost_curve": fleet.cost_curve is not None}
    for key, holds in given.items():
        if holds:
            raise InputError(f"solver: alternating does not support {key}; use exact")
