"""Plans whose clients are selected by a published rule (:mod:`fedgap.rules`).

A rule decides only which clients take part. How many clients a round has, the local steps and the number of rounds are
chosen such that the forecast error for the rule's selections is least, so that no rule is handicapped by constants that
were tuned for another task. The rule ``luo`` decides the number of clients and the local steps by its own formula.
Pruning, powers and clocks are such that the rounds use the budgets (:mod:`fedgap.planning.operating_points`).

These settings are searched with a sample of the rule's rounds; the plan itself has all rounds that the rule selects. If
a rule needs the clients' losses, the plan assumes that all losses are equal, so that a run may end up a few rounds
longer or shorter.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.config import Scenario
from fedgap.planning.objectives.forecast_tangent import features_of_rounds, forecast
from fedgap.planning.operating_points import Prices, RuledSets, prices_for
from fedgap.planning.plan import Plan
from fedgap.planning.policies.ruled_rounds import rule_facts, typical_sets
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import answer_of, forecast_of, infeasible, scheme_of
from fedgap.planning.task import Task
from fedgap.registry import RULES
from fedgap.rules.luo import best_count_and_steps, constants_ratio, expected_longest

SHARES = (0.125, 0.25, 0.5, 0.75)
"""Numbers of clients per round that are tried, as shares of the fleet."""
_ROUNDS = 10
"""How many numbers of rounds are tried at once."""
_SAMPLE = 40
"""Number of a rule's rounds that represent all of them while its settings are searched."""
_PILOT_ERROR = 0.01
"""A pilot of ``luo`` ends when training longer would reduce the error by no more than this, if the forecast has no
floor."""
_NEARBY = 0.15
"""With all rounds of the rule, numbers of rounds are tried that differ from the best of the sample by up to this
share."""


@dataclass(frozen=True, eq=False)
class RuleSettings:
    """Settings with which a rule can be planned, and the forecast error that they reach."""

    problem: Problem
    """The problem with the chosen number of rounds and local steps."""
    sets: RuledSets
    """The rule's selections in all rounds, or in a sample of them."""
    prices: Prices
    """The prices of energy and time, from which pruning, powers and clocks of each round follow."""
    error: float


def plan_by_rule(scenario: Scenario, rule: str, *, scheme: str | Scheme = "forecast", seed: int = 0) -> Plan:
    """Return the plan in which a rule selects the clients of each round.

    :param rule: a name in :data:`fedgap.registry.RULES`; :param seed: of the rule's random draws.
    """
    started = time.perf_counter()
    chosen = scheme_of(scheme)
    task = Task.of(Problem.of(scenario), chosen)
    best = best_candidate(task.problem, chosen, rule, seed)
    if best is None:
        answer = replace(infeasible(task, SolverSettings("exact")), scheme=rule)
    else:
        answer = _plan_of(best, replace(chosen, name=rule))
    return replace(answer, solve_s=time.perf_counter() - started, scenario_hash=scenario.hash())


def _plan_of(best: RuleSettings, scheme: Scheme) -> Plan:
    """Return the plan with the rule's selections, and pruning, powers and clocks by the prices of ``best``."""
    problem = best.problem
    segments = [best.prices.round_points(problem.fleet, scheme, selected, dense=problem.dense_first and not number)
                .segment(selected, problem.local_steps, problem.upload_bits)
                for number, selected in enumerate(best.sets.selected)]
    plan = answer_of(Task.of(problem, scheme), "exact", segments, status="feasible")
    return replace(plan, forecast=forecast_of(problem, segments))


def best_candidate(problem: Problem, scheme: Scheme, rule: str, seed: int) -> RuleSettings | None:
    """Return the settings with the least forecast error; None if not even one round fits the budgets."""
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
    for count in counts:  # for each count, start at the best local steps of the count before, and move while that helps
        while True:
            nearby = [near for near in (place, place - 1, place + 1) if 0 <= near < len(steps)]
            best = min(nearby, key=lambda near: error(count, near))
            if best == place:
                break
            place = best
    sampled = min((settings for settings in found.values() if settings is not None), key=_error, default=None)
    return None if sampled is None else _with_all_rounds(sampled, scheme, rule, seed)


def _best_rounds(problem: Problem, scheme: Scheme, rule: str, count: int, seed: int) -> RuleSettings | None:
    """Find the best number of rounds for ``count`` clients per round, on a coarse grid and then on a finer one."""
    sets = _sets(problem, scheme, rule, count, seed, _SAMPLE)
    found: list[RuleSettings] = []
    low, high = 1.0, float(problem.rounds)
    for _ in range(2):
        found += _settings(problem, scheme, sets, np.geomspace(low, high, _ROUNDS))
        best = min(found, key=_error, default=None)
        if best is None:
            return None
        step = (high / low) ** (1.0 / (_ROUNDS - 1))
        low, high = max(1.0, best.problem.rounds / step), min(float(problem.rounds), best.problem.rounds * step)
    return best


def _with_all_rounds(sampled: RuleSettings, scheme: Scheme, rule: str, seed: int) -> RuleSettings | None:
    """Return the settings for all rounds that the rule selects, with nearly as many rounds as the sample suggests."""
    problem, count = sampled.problem, int(sampled.sets.selected[0].sum())
    assert problem.scenario is not None
    most = min(problem.scenario.rounds, int(np.ceil(problem.rounds * (1.0 + _NEARBY))))
    fewest = max(1, int(problem.rounds * (1.0 - _NEARBY)))
    sets = _sets(problem, scheme, rule, count, seed, most)
    for low, high in ((fewest, most), (1, fewest)):
        best = min(_settings(problem, scheme, sets, np.linspace(low, high, 2 * _ROUNDS)), key=_error, default=None)
        if best is not None:
            return replace(best, sets=sets.first(best.problem.rounds))
    return None


def _sets(problem: Problem, scheme: Scheme, rule: str, count: int, seed: int, rounds: int) -> RuledSets:
    """Return the selections of the first ``rounds`` rounds of a rule with ``count`` clients per round."""
    return typical_sets(RULES.load(rule)(rule_facts(problem, scheme, count, seed)), rounds)


def _error(settings: RuleSettings) -> float:
    return settings.error


def _settings(problem: Problem, scheme: Scheme, sets: RuledSets, numbers: Floats) -> list[RuleSettings]:
    """Return the settings for each of these numbers of rounds (rounded) that fits the budgets; both are used up."""
    rounds = np.unique(numbers.round().astype(np.int64))
    found = []
    for number, priced in zip(rounds.tolist(), prices_for(problem, scheme, sets, rounds), strict=True):
        if priced is not None:
            trial, chosen = problem.with_rounds(number), sets.selected[:number]
            error = forecast(trial).fixed.error(features_of_rounds(trial, chosen, priced.pruning))
            found.append(RuleSettings(trial, sets, priced.prices, error))
    return found


def _by_luo(problem: Problem, scheme: Scheme, counts: Iterable[int], steps: Iterable[int]) -> tuple[int, int]:
    """Return the clients per round K and the local steps E by the formula of Luo et al.

    The formula needs the numbers of rounds that two pilot runs take. Nothing is trained here; the forecast gives these
    numbers. Both pilots count as runs with all clients, because the part of the forecast error that more rounds remove
    does not depend on K. One pilot has the fewest local steps that the scenario allows and the other the most, or twice
    as many if it allows only one number.
    The cost of a round is its expected cost at full speed if K clients are drawn uniformly.
    """
    counts, steps = list(counts), list(steps)
    fitted = forecast(problem).fitted.forecast
    grid = np.geomspace(1.0, 1e5, 400)

    def rounds_needed(step: int) -> float:
        """Return after how many rounds, up to 1e5, more training reduces the error by at most twice the floor, or
        0.01."""
        left = np.array([fitted.at(rounds, step).scale for rounds in grid])
        above = int((left > max(2.0 * fitted.floor, _PILOT_ERROR)).sum())
        return float(grid[min(above, len(grid) - 1)])

    pilots = steps[0], steps[-1] if len(steps) > 1 else 2 * steps[0]
    first, second = ((problem.size, step, rounds_needed(step)) for step in pilots)
    ratio = constants_ratio(problem.size, (first, second))

    def cost(count: int, step: int) -> float:
        """Return the sum of a round's expected energy and time, each as a share of its budget."""
        facts = rule_facts(problem.with_learner(step, None), scheme, count, 0)
        seconds = expected_longest(facts.seconds, count)
        return count * float(facts.joules.mean()) / problem.energy_j + seconds / problem.delay_s

    return best_count_and_steps(problem.size, ratio, cost, counts, steps)
