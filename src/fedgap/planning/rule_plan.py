"""The plan for a published rule: the number of clients, local steps and rounds, and the clients of each round.

A rule says only who takes part. Clients in a round, local steps and rounds are those of the least forecast error for
the sets that the rule would choose, so that no rule suffers from constants that were made for another task; ``luo``
decides the first two by its own formula. Where a rule needs losses, the plan is what it would do if all were equal.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats, Ints
from fedgap.config import Scenario
from fedgap.planning.objectives.forecast_tangent import drawn_labels, forecast
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.policies.policy import PolicyStart, make_policy
from fedgap.planning.policies.ruled_rounds import rule_facts, rule_prices, typical_sets
from fedgap.planning.policy_simulation import ChangingWorld, simulate_policy
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import answer_of, forecast_of, infeasible, scheme_of
from fedgap.planning.task import Task
from fedgap.registry import RULES
from fedgap.rules.luo import best_count_and_steps, constants_ratio
from fedgap.system.trace import Trace

SHARES = (0.125, 0.25, 0.5, 0.75)
"""Shares of the fleet that are tried as the clients of a round."""
_ROUNDS = 10
"""Numbers of rounds that are tried at once."""


@dataclass(frozen=True, eq=False)
class RuleSettings:
    """Clients in a round, local steps and rounds of a rule, with the forecast error of its typical sets."""

    count: int
    problem: Problem
    """With its rounds and local steps."""
    error: float


def plan_by_rule(scenario: Scenario, rule: str, *, scheme: str | Scheme = "forecast", seed: int = 0) -> Plan:
    """The plan of the rounds that a rule chooses; ``seed``: of the rule's draws."""
    started = time.perf_counter()
    chosen = scheme_of(scheme)
    task = Task.of(Problem.of(scenario), chosen)
    best = best_candidate(task.problem, chosen, rule, seed)
    answer = None
    if best is not None:
        answer = _rounds_of(best, replace(chosen, name=rule), seed)
    if answer is None:
        answer = replace(infeasible(task, SolverSettings("exact")), scheme=rule)
    return replace(answer, solve_s=time.perf_counter() - started, scenario_hash=scenario.hash())


def _rounds_of(best: RuleSettings, scheme: Scheme, seed: int) -> Plan | None:
    """The rounds that the rule chooses until a budget is spent."""
    problem = best.problem
    assert problem.scenario is not None
    asked = problem.scenario.rounds
    seen = Segment(problem.rounds, np.arange(problem.size) < best.count, *np.zeros((3, problem.size)),
                   local_steps=problem.local_steps, upload_bits=problem.upload_bits)
    settings = answer_of(Task.of(problem, scheme), "exact", [_harmless(problem, seen)], status="feasible")
    start = PolicyStart(problem.with_rounds(asked), scheme, settings, (), seed)
    reached = simulate_policy(ChangingWorld(start, Trace.constant(1, problem.size)), make_policy(scheme.name, start))
    if not reached.segments:
        return None
    done = problem.with_rounds(reached.rounds)
    plan = answer_of(Task.of(done, scheme), "exact", reached.segments, status="feasible")
    return replace(plan, forecast=forecast_of(done, reached.segments))


def _harmless(problem: Problem, segment: Segment) -> Segment:
    """The segment at full power and clock, so that its costs are finite."""
    fleet = problem.fleet
    return replace(segment, power_w=np.where(segment.selected, fleet.max_power_w, 0.0),
                   frequency_hz=np.where(segment.selected, fleet.max_frequency_hz, 0.0))


def best_candidate(problem: Problem, scheme: Scheme, rule: str, seed: int) -> RuleSettings | None:
    """The clients in a round, local steps and rounds of the least forecast error; None where not one round fits."""
    assert problem.scenario is not None
    size = problem.size
    counts = sorted({max(1, int(np.ceil(share * size))) for share in SHARES})
    steps: list[Any] = list(problem.scenario.learning.local_steps_choices)
    if rule == "luo":
        count, step = _by_luo(problem, scheme, counts, steps)
        counts, steps = [count], [step]
    found: dict[tuple[int, int], RuleSettings | None] = {}

    def error(count: int, place: int) -> float:
        if (count, place) not in found:
            found[count, place] = _best_rounds(problem.with_learner(steps[place], None), scheme, rule, count, seed)
        candidate = found[count, place]
        return np.inf if candidate is None else candidate.error

    place = len(steps) // 2
    for count in counts:  # local steps: to the better neighbour, from the best ones of fewer clients
        while True:
            nearby = [near for near in (place, place - 1, place + 1) if 0 <= near < len(steps)]
            best = min(nearby, key=lambda near: error(count, near))
            if best == place:
                break
            place = best
    return min((candidate for candidate in found.values() if candidate is not None),
               key=lambda candidate: candidate.error, default=None)


def _best_rounds(problem: Problem, scheme: Scheme, rule: str, count: int, seed: int) -> RuleSettings | None:
    """The best number of rounds for given clients in a round and local steps: on a grid, then on a finer one."""
    sets = typical_sets(RULES.load(rule)(rule_facts(problem, scheme, count, seed)))
    rounds, errors = np.zeros(0, dtype=np.int64), np.zeros(0)
    low, high = 1.0, float(problem.rounds)
    for _ in range(2):
        grid = np.unique(np.geomspace(low, high, _ROUNDS).round().astype(np.int64))
        rounds, errors = np.append(rounds, grid), np.append(errors, _errors(problem, scheme, sets, grid))
        best = int(errors.argmin())
        if not np.isfinite(errors[best]):
            return None
        step = (high / low) ** (1.0 / (_ROUNDS - 1))
        low, high = max(1.0, rounds[best] / step), min(float(problem.rounds), rounds[best] * step)
    return RuleSettings(count, problem.with_rounds(int(rounds[best])), float(errors[best]))


def _errors(problem: Problem, scheme: Scheme, sets: Bools, rounds: Ints) -> Floats:
    """The forecast error of a rule's typical sets for numbers of rounds, (J,); infinite where so many do not fit."""
    count, fitted = sets.sum(axis=-1), forecast(problem).fitted.forecast
    errors = np.full(len(rounds), np.inf)
    for place, prices in enumerate(rule_prices(problem, scheme, sets, rounds)):
        if prices is not None:
            labels = drawn_labels(problem.with_rounds(int(rounds[place])))
            ratio = prices.points(problem.fleet, scheme).ratio
            pruned = float((np.where(sets, ratio, 0.0).sum(axis=-1) / count).mean())
            apart = 0.0 if labels is None else float(labels.divergence(sets).mean())
            fixed = fitted.at(int(rounds[place]), problem.local_steps, problem.upload_bits)
            errors[place] = fixed.error(float((1.0 / count).mean()), pruned, apart)
    return errors


def _by_luo(problem: Problem, scheme: Scheme, counts: Iterable[int], steps: Iterable[int]) -> tuple[int, int]:
    """K and E by Luo et al.: two pilots, read off the forecast, and the cost of a mean round at full speed."""
    counts, steps = list(counts), list(steps)
    fitted = forecast(problem).fitted.forecast

    def rounds_needed(count: int, step: int) -> float:
        """Rounds until the forecast error is halfway between chance and what remains for ever, on a log scale."""
        grid = np.geomspace(1.0, 1e5, 400)
        remains = fitted.floor + fitted.few_clients / count
        errors = np.array([fitted.at(rounds, step).error(1.0 / count, 0.0, 0.0) for rounds in grid])
        return float(grid[int((errors <= 2.0 * fitted.floor + remains).argmax())])

    first, second = (counts[-1], steps[0]), (counts[0], steps[-1])
    ratio = constants_ratio(problem.size, ((*first, rounds_needed(*first)), (*second, rounds_needed(*second))))

    def cost(count: int, step: int) -> float:
        """Energy and time of a mean round as shares of the budgets, in equal parts."""
        facts = rule_facts(problem.with_learner(step, None), scheme, count, 0)
        seconds = float(np.sort(facts.seconds)[-(-count * problem.size // (count + 1)) - 1])
        return count * float(facts.joules.mean()) / problem.energy_j + seconds / problem.delay_s

    return best_count_and_steps(problem.size, ratio, cost, counts, steps)
