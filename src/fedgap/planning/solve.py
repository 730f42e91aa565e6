"""``plan(scenario) -> Plan``: one entry for every solver and scheme."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning import diagnosis, exact
from fedgap.planning.master import Progress
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.registry import SCHEMES

SOLVERS = ("exact", "alternating")
INTERRUPTED = "interrupted: the best plan so far"
OPTIMAL_GAP = 1e-3
"""A plan within this share of the certified bound is called optimal."""


def plan(
    scenario: Scenario,
    *,
    scheme: str | Scheme = "proposed",
    solver: str = "exact",
    horizon: bool = False,
    shorten: bool | None = None,
    options: object | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Solve P1 for a scenario.

    A baseline that cannot finish R rounds within the budgets is re-planned at the most rounds that they carry: its plan
    then has fewer rounds, status ``infeasible`` and θ = ∞ for the R asked for.

    :param scheme: a registered name, ``package.module:NAME``, or a :class:`Scheme`.
    :param solver: ``exact`` (certified) or ``alternating`` (the paper's Algorithm 1).
    :param horizon: choose the number of rounds too, up to the scenario's own.
    :param shorten: re-plan at the most rounds that the budgets carry where all do not fit (by default, every scheme but
        ``proposed``).
    :param options: an ``AlternatingOptions``, for ``alternating`` only.
    :param progress: called with (what, iteration, best cost so far, lower bound so far); Ctrl-C keeps the best so far.
    """
    restriction = _scheme(scheme)
    shorten = restriction.name != "proposed" if shorten is None else shorten
    return _planned(scenario, restriction, solver, horizon, options, progress, shorten=shorten)


def _planned(
    scenario: Scenario, restriction: Scheme, solver: str, horizon: bool, options: object | None,
    progress: Progress | None, *, shorten: bool,
) -> Plan:
    started = time.perf_counter()
    if solver not in SOLVERS:
        raise InputError(f"solver: must be one of {', '.join(SOLVERS)}; got {solver!r}")
    if solver == "alternating" and restriction.objective is not None:
        raise InputError(f"solver: alternating minimises θ, and {restriction.name} does not; must be exact")
    problem = Problem.of(scenario)
    if horizon or restriction.objective is not None:
        answer = _best_horizon(problem, restriction, solver, options, progress)
    else:
        answer = _solve(problem, restriction, solver, options, progress)
        if not answer.feasible and shorten:
            answer = _shortened(problem, restriction, solver, options, progress, answer)
    return replace(answer, solve_s=time.perf_counter() - started, scenario_hash=scenario.hash())


def _scheme(scheme: str | Scheme) -> Scheme:
    chosen = SCHEMES.load(scheme, "scheme") if isinstance(scheme, str) else scheme
    if not isinstance(chosen, Scheme):
        raise InputError(f"scheme: must be a Scheme or the name of one; {scheme!r} is a {type(chosen).__name__}")
    return chosen


def _solve(
    problem: Problem, scheme: Scheme, solver: str, options: object | None, progress: Progress | None
) -> Plan:
    own = scheme.own(problem)
    if solver == "alternating":
        return _alternating(problem, own, scheme, options, progress)
    solution = exact.solve(own, scheme, progress)
    if not solution.segments:
        return infeasible(problem, scheme, solver)
    certified = solution.lower_bound is not None and solution.cost - solution.lower_bound <= OPTIMAL_GAP * solution.cost
    bound = None
    if solution.lower_bound is not None and own is problem:
        # Rounding must not lift the bound above the plan that it bounds.
        bound = min(float(problem.constants.alpha + solution.lower_bound), problem.objective(solution.segments).theta)
    return _answer(
        problem,
        scheme,
        solver,
        solution.segments,
        status="optimal" if certified else "feasible",
        lower_bound=bound,
        prices={"energy": 0.0 - solution.energy_price, "delay": 0.0 - solution.delay_price},  # no −0
        reason=INTERRUPTED if solution.interrupted else "",
    )


def _alternating(
    problem: Problem, own: Problem, scheme: Scheme, options: object | None, progress: Progress | None
) -> Plan:
    from fedgap.planning.alternating import AlternatingOptions
    from fedgap.planning.alternating import solve as alternate

    if options is not None and not isinstance(options, AlternatingOptions):
        raise InputError("options: must be an AlternatingOptions")
    result = alternate(own, scheme, options, progress)
    if not result.feasible:
        # The printed start has everybody take part, and so do the least budgets that let it start.
        printed = options is None or options.start == "printed"
        answer = infeasible(problem, replace(scheme, select=False) if printed else scheme, "alternating")
        advice = "; the start of fewer clients (--start feasible) may fit" if printed and scheme.select else ""
        return replace(answer, scheme=scheme.name,
                       reason=f"Algorithm 1 has no feasible start: {result.message}{advice}")
    reason = INTERRUPTED if result.message == "interrupted" else ""
    answer = _answer(problem, scheme, "alternating", result.segments, status="feasible", reason=reason)
    return replace(answer, trace=result.trace)


def _answer(
    problem: Problem,
    scheme: Scheme,
    solver: str,
    segments: Sequence[Segment],
    *,
    status: Literal["optimal", "feasible"],
    reason: str,
    lower_bound: float | None = None,
    prices: dict[str, float | None] | None = None,
) -> Plan:
    terms = problem.objective(segments)
    return Plan(
        status=status,
        scheme=scheme.name,
        solver=solver,
        rounds=problem.rounds,
        segments=tuple(segments),
        theta=terms.theta,
        terms=_terms(problem, segments),
        energy_j=problem.energy(segments),
        delay_s=problem.delay(segments),
        lower_bound=lower_bound,
        prices=prices,
        reason=reason,
    )


def _terms(problem: Problem, segments: Sequence[Segment]) -> dict[str, float]:
    terms = problem.objective(segments)
    return {
        "alpha": terms.alpha,
        "clients": terms.clients,
        "generalization": terms.generalization,
        "pruning": terms.pruning,
    }


def infeasible(problem: Problem, scheme: Scheme, solver: str) -> Plan:
    """The answer where no plan fits: why, and the least budgets that would do."""
    least = diagnosis.least_budget(problem, scheme)
    return Plan(
        status="infeasible",
        scheme=scheme.name,
        solver=solver,
        rounds=0,
        segments=(),
        theta=np.inf,
        terms={"alpha": problem.constants.alpha, "clients": np.inf, "generalization": np.inf, "pruning": np.inf},
        energy_j=0.0,
        delay_s=0.0,
        reason=diagnosis.reason(problem, scheme, least),
        least_budget=least,
    )


def _shortened(
    problem: Problem, scheme: Scheme, solver: str, options: object | None, progress: Progress | None, failed: Plan
) -> Plan:
    rounds, answer = diagnosis.most_rounds(problem, scheme), failed
    if solver == "exact" and rounds:
        answer = _solve(problem.with_rounds(rounds), scheme, solver, options, progress)
    elif rounds:  # fewer may fit for Algorithm 1 than for others: it must start somewhere
        low, high = 0, rounds
        while low < high:
            middle = (low + high + 1) // 2
            trial = _solve(problem.with_rounds(middle), scheme, solver, options, progress)
            low, high, answer = (middle, high, trial) if trial.feasible else (low, middle - 1, answer)
        rounds = low
    if not answer.feasible:
        return failed
    return replace(
        answer,
        status="infeasible",
        theta=np.inf,
        lower_bound=None,
        least_budget=failed.least_budget,
        reason=f"{failed.reason}; re-planned at {rounds} of {problem.rounds} rounds, the most that the budgets carry",
    )


def _best_horizon(
    problem: Problem, scheme: Scheme, solver: str, options: object | None, progress: Progress | None
) -> Plan:
    """R chosen too: θ*(R) over 1..R by coarse-to-fine search around the best of a geometric grid.

    α falls with R while tighter budgets a round raise the rest, so θ* has one valley in practice; the grid guards
    against others, and the bound returned is the one at the R chosen. No R whose α alone exceeds the best θ is solved.
    A scheme with an objective of its own has that in place of θ.
    """
    most = diagnosis.most_rounds(problem, scheme)
    if most == 0:
        return infeasible(problem, scheme, solver)
    known: dict[int, tuple[float, Plan]] = {}

    def best() -> float:
        return min((value for value, _ in known.values()), default=np.inf)

    def at(rounds: int) -> float:
        shorter = problem.with_rounds(rounds)
        own = shorter if scheme.objective is None else scheme.own(shorter)
        if rounds not in known and own.constants.alpha < best():
            answer = _solve(shorter, scheme, solver, options, None)
            value = own.objective(answer.segments).theta if answer.feasible else np.inf
            known[rounds] = value, answer
            if progress is not None:
                progress(f"horizon {rounds}", len(known), value, -np.inf)
        return known[rounds][0] if rounds in known else np.inf

    stopped = False

    def look(rounds: int) -> float:
        nonlocal stopped
        if not stopped:
            try:
                value = at(rounds)
                stopped = rounds in known and known[rounds][1].reason == INTERRUPTED
                return value
            except KeyboardInterrupt:
                if not np.isfinite(best()):
                    raise
                stopped = True
        return known[rounds][0] if rounds in known else np.inf

    grid = sorted({round(r) for r in np.geomspace(1, most, 12)})
    while not stopped:
        values = {r: look(r) for r in reversed(grid)}
        place = grid.index(min(grid, key=lambda r: values[r]))
        middle = grid[place]
        low = grid[place - 1] if place else middle
        high = grid[place + 1] if place + 1 < len(grid) else middle
        new = sorted({low, middle, high, (low + middle) // 2, (middle + high + 1) // 2})
        if high - low <= 2 or (set(new) <= set(grid) and len(new) == len(grid)):
            for rounds in range(low, high + 1):
                look(rounds)
            break
        grid = new
    _, found = min(known.values(), key=lambda each: each[0])
    return replace(found, reason=INTERRUPTED) if stopped else found
