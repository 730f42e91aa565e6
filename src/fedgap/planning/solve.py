"""``plan(scenario)`` returns a :class:`Plan`, for every solver, scheme, objective and selection rule."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning import diagnosis, exact
from fedgap.planning.forecast_search import best_forecast, cheapest_task
from fedgap.planning.horizon import INTERRUPTED, best_horizon
from fedgap.planning.objective import ObjectiveFactory
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, plan_features
from fedgap.planning.objectives.theta import Theta
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.plan_forecast import PlanForecast
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import PAPER_SCHEMES, Scheme
from fedgap.planning.schemes.scheme import SelectionRule
from fedgap.planning.settings import SOLVERS, Progress, SolverSettings
from fedgap.planning.task import Task
from fedgap.planning.tolerances import OPTIMAL_GAP
from fedgap.registry import SCHEMES
from fedgap.theory import Terms


def plan(
    scenario: Scenario,
    *,
    scheme: str | Scheme | None = None,
    objective: str | ObjectiveFactory | None = None,
    selection: str | SelectionRule | None = None,
    solver: str = "exact",
    horizon: bool = False,
    shorten: bool | None = None,
    options: object | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the best plan for a scenario: who trains in which rounds, with how much pruning, power and clock.

    If a scheme other than ``proposed`` cannot finish R rounds within the budgets, it is planned again with as many
    rounds as fit. Its plan then has fewer rounds, the status ``infeasible`` and θ = ∞.

    >>> plan = fedgap.plan(fedgap.Scenario.load("paper-mnist", ["budget.delay_s=120"]))
    >>> plan.status, plan.scheme, round(plan.delay_s, 3)
    ('optimal', 'proposed', 120.0)

    :param scheme: a registered name, ``package.module:NAME``, or a :class:`Scheme`; by default ``forecast`` for a
        scenario that leaves local steps or upload bits to the plan (``auto``), and ``proposed`` for others.
    :param objective: what is minimised in place of the scheme's: a registered name, ``package.module:NAME``, or a
        function from a :class:`~fedgap.planning.problem.Problem` to an :class:`~fedgap.planning.objective.Objective`.
    :param selection: a rule that fixes which clients take part in every round: a registered name,
        ``package.module:NAME``, or a function from a scenario to the selected clients. The planner then decides only
        their pruning, powers and clocks.
    :param solver: ``exact`` (certified) or ``alternating`` (the paper's Algorithm 1).
    :param horizon: also choose the number of rounds, up to that of the scenario.
    :param shorten: if not all rounds fit the budgets, plan again with as many as fit; by default, for every scheme
        except ``proposed``.
    :param options: an ``AlternatingOptions``, for ``alternating`` only.
    :param progress: called with (what is done, iteration, best cost so far, lower bound so far). After Ctrl-C the best
        plan so far is returned.
    """
    chosen = scheme_of(usual_scheme(scenario) if scheme is None else scheme, objective, selection)
    shorten = chosen is not PAPER_SCHEMES["proposed"] if shorten is None else shorten
    return planned(scenario, chosen, SolverSettings(solver, horizon, shorten, options, progress))


def usual_scheme(scenario: Scenario) -> str:
    """Return the default scheme of a scenario; for anything else ``proposed``, so that a later check can report it."""
    return scenario.usual_scheme if isinstance(scenario, Scenario) else "proposed"  # the error is raised later


def scheme_of(
    scheme: str | Scheme, objective: str | ObjectiveFactory | None = None, selection: str | SelectionRule | None = None
) -> Scheme:
    """Return a scheme, given by name or as an object, with another objective or selection rule if one is given.

    These are then part of its name, as in ``proposed+measured`` or ``no_pruning+fastest_half``.
    """
    chosen = SCHEMES.load(scheme) if isinstance(scheme, str) else scheme
    if not isinstance(chosen, Scheme):
        raise InputError(f"scheme: must be a fedgap.Scheme, or the name of one; got {chosen!r:.80}")
    if objective is not None:
        chosen = replace(chosen, name=f"{chosen.name}+{_name_of(objective)}", objective=objective)
    if selection is not None:
        chosen = replace(chosen, name=f"{chosen.name}+{_name_of(selection)}", selection=selection)
    return chosen


def _name_of(value: Any) -> str:
    """Return a short name for an objective or rule that was given by name, as ``package.module:NAME``, or as an
    object."""
    return str(value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)).split(":")[-1]


def planned(scenario: Scenario, scheme: Scheme, settings: SolverSettings) -> Plan:
    """Return the plan of a scenario by a scheme; see :func:`plan`."""
    started = time.perf_counter()
    if settings.solver not in SOLVERS:
        raise InputError(f"solver: must be one of {', '.join(SOLVERS)}; got {settings.solver!r}")
    task = Task.of(Problem.of(scenario), scheme)
    if settings.solver == "alternating" and scheme.selection is not None:
        raise InputError("solver: must be exact if a selection rule is given, because alternating selects the clients "
                         "itself")
    if isinstance(task.objective, ForecastTangent):
        answer = _by_forecast(task, settings)
    elif settings.horizon or task.objective.chooses_rounds:
        answer = best_horizon(task, settings, solve, infeasible)
    else:
        answer = solve(task, settings)
        if not answer.feasible and settings.shorten:
            answer = _shortened(task, settings, answer)
    return replace(answer, solve_s=time.perf_counter() - started, scenario_hash=scenario.hash())


def solve(task: Task, settings: SolverSettings) -> Plan:
    """Return the plan of a task for the task's number of rounds."""
    if settings.solver == "alternating":
        return _alternating(task, settings)
    solution = exact.solve(task, settings)
    if not solution.segments:
        return infeasible(task, settings)
    bound = solution.lower_bound
    certified = bound is not None and solution.cost - bound <= OPTIMAL_GAP * solution.cost
    prices: dict[str, float | None] = {"energy": 0.0 - solution.energy_price, "delay": 0.0 - solution.delay_price}
    answer = answer_of(
        task, settings.solver, solution.segments, status="optimal" if certified else "feasible", prices=prices,
        reason=INTERRUPTED if solution.interrupted else "",
    )
    if bound is None or task.objective.name != "theta":
        return answer
    # Rounding must not raise the bound above the plan's value.
    return replace(answer, lower_bound=min(float(task.objective.constant + bound), answer.theta))


def _by_forecast(task: Task, settings: SolverSettings) -> Plan:
    """Return the plan with the least forecast error; rounds, local steps and upload bits are chosen as well."""
    if settings.solver != "exact":
        raise InputError(f"solver: must be exact for the scheme {task.scheme.name}; alternating can only minimise θ")
    solution = best_forecast(task, settings)
    if solution is None:
        return infeasible(cheapest_task(task), settings)
    prices: dict[str, float | None] = {"energy": 0.0 - solution.energy_price, "delay": 0.0 - solution.delay_price}
    answer = answer_of(
        solution.task, settings.solver, solution.segments, prices=prices,
        status="optimal" if solution.gap <= OPTIMAL_GAP else "feasible",
        reason=INTERRUPTED if solution.interrupted else "",
    )
    return replace(answer, forecast=forecast_of(solution.task.problem, solution.segments, solution.least_error),
                   bound_scope="all" if solution.in_turns else "single")


def forecast_of(problem: Problem, segments: Sequence[Segment], least_error: float | None = None) -> PlanForecast:
    """Return the forecast of a plan with these segments.

    :param least_error: a proven lower bound on the forecast error, if there is one.
    """
    assert problem.scenario is not None
    return PlanForecast.of(problem.scenario.fitted_forecast(), plan_features(problem, segments), least_error)


def _alternating(task: Task, settings: SolverSettings) -> Plan:
    from fedgap.planning.alternating import AlternatingOptions
    from fedgap.planning.alternating import solve as alternate

    options, scheme = settings.options, task.scheme
    if not isinstance(task.objective, Theta):
        raise InputError(f"solver: must be exact for the scheme {scheme.name}; alternating can only minimise θ")
    if options is not None and not isinstance(options, AlternatingOptions):
        raise InputError("options: must be a fedgap.planning.alternating.AlternatingOptions; "
                         f"got {type(options).__name__}")
    result = alternate(task.objective.problem, scheme, options, settings.progress)
    if not result.feasible:
        # The paper's starting point selects all clients, so the least budgets are those of all clients.
        printed = options is None or options.start == "printed"
        everybody = replace(task, selected=np.ones(task.problem.size, dtype=np.bool_)) if printed else task
        advice = "; a start with fewer clients (--start feasible) may fit" if printed and scheme.select else ""
        return replace(infeasible(everybody, settings),
                       reason=f"Algorithm 1 has no feasible start: {result.message}{advice}")
    reason = INTERRUPTED if result.message == "interrupted" else ""
    answer = answer_of(task, "alternating", result.segments, status="feasible", reason=reason)
    return replace(answer, trace=result.trace)


def answer_of(
    task: Task, solver: str, segments: Sequence[Segment], *, status: Literal["optimal", "feasible"],
    reason: str = "", prices: dict[str, float | None] | None = None,
) -> Plan:
    """Return a plan with these segments, and with their θ even if something else was minimised."""
    problem = task.problem
    terms = problem.objective(segments)
    return Plan(
        status=status, scheme=task.scheme.name, solver=solver, objective=task.objective.name, rounds=problem.rounds,
        segments=tuple(segments), theta=terms.theta, terms=asdict(terms), prices=prices, reason=reason,
        energy_j=problem.energy(segments), delay_s=problem.delay(segments),
    )


def infeasible(task: Task, settings: SolverSettings) -> Plan:
    """Return a plan without segments that says why no plan fits the budgets, and which budgets suffice."""
    least = diagnosis.least_budget(task)
    terms = Terms(task.problem.constants.alpha, np.inf, np.inf, np.inf)
    return Plan(
        status="infeasible", scheme=task.scheme.name, solver=settings.solver, objective=task.objective.name, rounds=0,
        segments=(), theta=np.inf, terms=asdict(terms), energy_j=0.0, delay_s=0.0,
        reason=diagnosis.reason(task, least), least_budget=least,
    )


def _shortened(task: Task, settings: SolverSettings, failed: Plan) -> Plan:
    """Return the plan with the most rounds that fit the budgets, or ``failed`` if none do."""
    rounds, answer = diagnosis.most_rounds(task), failed
    if settings.solver == "exact" and rounds:
        answer = solve(task.with_rounds(rounds), settings)
    elif rounds:  # Algorithm 1 may need fewer rounds than other solvers, because it needs a feasible start
        low, high = 0, rounds
        while low < high:
            middle = (low + high + 1) // 2
            trial = solve(task.with_rounds(middle), settings)
            low, high, answer = (middle, high, trial) if trial.feasible else (low, middle - 1, answer)
        rounds = low
    if not answer.feasible:
        return failed
    asked = task.problem.rounds
    reason = f"{failed.reason}; planned again with {rounds} of {asked} rounds, the most that fit the budgets"
    return replace(answer, status="infeasible", theta=np.inf, lower_bound=None, least_budget=failed.least_budget,
                   reason=reason)
