"""Policies by the published rules of :mod:`fedgap.rules`: the rule says who, the planner gives everybody its point.

Pruning, powers and clocks are those of :mod:`fedgap.planning.operating_points` for the present channels, made for as
many rounds, clients in a round and local steps as the plan has. The rule chooses among the clients that could still end
a round of their own within what is left of both budgets.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Ints
from fedgap.planning.objectives.forecast_tangent import forecast
from fedgap.planning.operating_points import OperatingPoints, Prices, prices_for, shortest_s
from fedgap.planning.plan import Segment
from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.registry import RULES
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts
from fedgap.system import probe_cost, round_cost

_SAMPLE = 16
"""Rounds of a rule whose mean cost decides the prices."""
_FEWER = 12
"""Numbers of rounds that are tried where the plan's do not fit."""


def rule_facts(problem: Problem, scheme: Scheme, count: int, seed: int) -> RuleFacts:
    """What a rule knows about a problem's clients; local steps are the problem's."""
    fleet, size = problem.fleet, problem.size
    counts = problem.label_counts
    seconds = shortest_s(fleet, scheme, dense=True)
    points = Prices(float(seconds.max()), 0.0, 1.0).points(fleet, scheme, dense=True)
    cost = round_cost(fleet, np.ones(size, dtype=np.bool_), points.ratio, points.power_w, points.frequency_hz)
    samples = fleet.batch_size if counts is None else counts.sum(axis=1)
    return RuleFacts(count, np.asarray(samples, dtype=np.float64), seconds, cost.client_j,
                     np.ones((size, 1)) if counts is None else counts, seed)


def typical_sets(rule: RoundRule, rounds: int = _SAMPLE) -> Bools:
    """The sets that a rule chooses where every loss is 1, (rounds, N)."""
    size = rule.facts.size
    losses, last, chosen = np.full(size, np.nan), np.full(size, -1.0), []
    for number in range(rounds):
        now = RoundFacts(number, np.ones(size, dtype=np.bool_), losses.copy(), last.copy())
        asked = rule.asks(now)
        if asked is not None:
            now = replace(now, losses=np.where(asked, 1.0, losses))
        chosen.append(rule.choose(now))
        losses[chosen[-1]], last[chosen[-1]] = 1.0, number
    return np.stack(chosen)


def rule_prices(problem: Problem, scheme: Scheme, sets: Bools, rounds: Ints) -> list[Prices | None]:
    """The prices for numbers of rounds, (J,), by the forecast's worth of pruning; None where so many do not fit."""
    count = float(sets.sum(axis=-1).mean())
    fitted = forecast(problem).fitted.forecast
    fixed = [fitted.at(number, problem.local_steps, problem.upload_bits) for number in rounds.tolist()]
    worth = np.array([each.scale * each.slowed_by_pruning / count for each in fixed])
    return prices_for(problem, scheme, sets, rounds, worth)


class RuledRounds:
    """Asks a rule who takes part in each round."""

    def __init__(self, name: str, start: PolicyStart) -> None:
        self.start, plan = start, start.plan
        problem = start.problem
        count = max(int(segment.selected.sum()) for segment in plan.segments)
        facts = rule_facts(problem, start.scheme, count, start.seed)
        make = RULES.load(name)
        self.rule: RoundRule = make(facts)
        self.state = self.rule.state
        sets = typical_sets(make(facts))
        rounds = np.unique(np.geomspace(1, plan.rounds, _FEWER).astype(np.int64))[::-1]
        # The plan may have been made for faster clients than the rule chooses: then as many rounds as fit.
        found = [prices for prices in rule_prices(problem, start.scheme, sets, rounds) if prices is not None]
        self.prices = found[0] if found else Prices(0.0, 0.0, 1.0)

    def _points(self, view: RoundView) -> OperatingPoints:
        return self.prices.points(view.fleet, self.start.scheme,
                                  dense=self.start.problem.dense_first and not view.done)

    def _now(self, view: RoundView) -> RoundFacts:
        there = view.available if self.start.selected is None else view.available & self.start.selected
        points, everybody = self._points(view), np.ones_like(view.available)
        cost = round_cost(view.fleet, everybody, points.ratio, points.power_w, points.frequency_hz)
        fits = (cost.client_s <= view.delay_s) & (cost.client_j + cost.broadcast_j <= view.energy_j)
        return RoundFacts(view.number, there & fits, view.losses, view.last_round)

    def asks(self, view: RoundView) -> Bools | None:
        """Who must tell its loss before the round is decided."""
        return self.rule.asks(self._now(view))

    def decide(self, view: RoundView) -> Decision:
        """The rule's clients at their points."""
        chosen = self.rule.choose(self._now(view))
        if not chosen.any():
            return Decision(None)
        problem = self.start.problem
        return Decision(self._points(view).segment(chosen, problem.local_steps, problem.upload_bits))


@dataclass(frozen=True, eq=False)
class RuleChoices:
    """What a rule may choose from in a constant world, as plain data for a run without the planner."""

    settings: dict[str, Any]
    """What the rule knows, and what each client pays for telling its loss."""
    segments: tuple[Segment, Segment]
    """Everybody's points in the first round and in all others."""

    @classmethod
    def of(cls, start: PolicyStart, name: str) -> "RuleChoices":
        """The choices of a rule by its plan."""
        ruled, problem = RuledRounds(name, start), start.problem
        everybody = np.ones(problem.size, dtype=np.bool_)
        probe, facts = probe_cost(problem.fleet, everybody), ruled.rule.facts
        settings = {"count": facts.count, "most_rounds": problem.rounds, "seconds": facts.seconds.tolist(),
                    "joules": facts.joules.tolist(), "probe_s": probe.client_s.tolist(),
                    "probe_j": (probe.compute_j + probe.upload_j).tolist()}
        first, others = (ruled.prices.points(problem.fleet, start.scheme, dense=dense).segment(
            everybody, problem.local_steps, problem.upload_bits) for dense in (problem.dense_first, False))
        return cls(settings, (first, others))

