"""Policies by the published rules of :mod:`fedgap.rules`: the rule says who, the planner gives everybody its point.

Pruning, powers and clocks are those of :mod:`fedgap.planning.operating_points` for the present channels, made for as
many rounds, clients in a round and local steps as the plan has. The rule chooses among the clients that could still end
a round of their own within what is left of both budgets.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgap.arrays import Bools
from fedgap.planning.operating_points import OperatingPoints, Prices, RuledSets, prices_for, shortest_s
from fedgap.planning.plan import Segment
from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.problem import Problem
from fedgap.planning.schemes import Scheme
from fedgap.registry import RULES
from fedgap.rules.rule import RoundFacts, RoundRule, RuleFacts
from fedgap.system import probe_cost, round_cost

_FEWER = 12
"""Numbers of rounds that are tried where the plan's do not fit."""


def rule_facts(problem: Problem, scheme: Scheme, count: int, seed: int) -> RuleFacts:
    """What a rule knows about a problem's clients; local steps are the problem's."""
    fleet, size = problem.fleet, problem.size
    counts = problem.label_counts
    seconds = shortest_s(fleet, scheme, dense=True)
    points = Prices(float(seconds.max()), 0.0).points(fleet, scheme, dense=True)
    cost = round_cost(fleet, np.ones(size, dtype=np.bool_), points.ratio, points.power_w, points.frequency_hz)
    samples = fleet.batch_size if counts is None else counts.sum(axis=1)
    return RuleFacts(count, np.asarray(samples, dtype=np.float64), seconds, cost.client_j,
                     np.ones((size, 1)) if counts is None else counts, seed)


def typical_sets(rule: RoundRule, rounds: int) -> RuledSets:
    """The first rounds of a rule where every loss is 1: its own ones where it needs no losses."""
    size = rule.facts.size
    losses, last = np.full(size, np.nan), np.full(size, -1.0)
    chosen, probed = np.zeros((2, rounds, size), dtype=np.bool_)
    for number in range(rounds):
        now = RoundFacts(number, np.ones(size, dtype=np.bool_), losses.copy(), last.copy())
        asked = rule.asks(now)
        if asked is not None:
            probed[number], now = asked, replace(now, losses=np.where(asked, 1.0, losses))
        chosen[number] = rule.choose(now)
        losses[chosen[number]], last[chosen[number]] = 1.0, number
    return RuledSets(chosen, probed)


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
        sets = typical_sets(make(facts), plan.rounds)
        rounds = np.unique(np.geomspace(1, plan.rounds, _FEWER).astype(np.int64))[::-1]
        # The plan may have been made for faster clients than the rule chooses: then as many rounds as fit.
        found = prices_for(problem, start.scheme, sets, rounds)
        self.prices = next((priced.prices for priced in found if priced is not None), Prices(0.0, 0.0))

    def _dense(self, view: RoundView) -> bool:
        return self.start.problem.dense_first and not view.done

    def _now(self, view: RoundView) -> RoundFacts:
        there = view.available if self.start.selected is None else view.available & self.start.selected
        points, everybody = self._alone(view), np.ones_like(view.available)
        cost = round_cost(view.fleet, everybody, points.ratio, points.power_w, points.frequency_hz)
        fits = (cost.client_s <= view.delay_s) & (cost.client_j + cost.broadcast_j <= view.energy_j)
        return RoundFacts(view.number, there & fits, view.losses, view.last_round)

    def _alone(self, view: RoundView) -> OperatingPoints:
        """Everybody's points in a round that waits for nobody else."""
        return self.prices.points(view.fleet, self.start.scheme, dense=self._dense(view))

    def asks(self, view: RoundView) -> Bools | None:
        """Who must tell its loss before the round is decided."""
        return self.rule.asks(self._now(view))

    def decide(self, view: RoundView) -> Decision:
        """The rule's clients at their points."""
        chosen = self.rule.choose(self._now(view))
        if not chosen.any():
            return Decision(None)
        problem = self.start.problem
        points = self.prices.round_points(view.fleet, self.start.scheme, chosen, dense=self._dense(view))
        return Decision(points.segment(chosen, problem.local_steps, problem.upload_bits))


@dataclass(frozen=True, eq=False)
class RuleChoices:
    """What a rule may choose from in a constant world, as plain data for a run without the planner."""

    settings: dict[str, Any]
    """What the rule knows, what each client pays for telling its loss, and for the first round and all others a menu:
    the least seconds of each client, the seconds that a round may last, and the segment of the shortest of these."""
    segments: tuple[Segment, ...]
    """Everybody's points in rounds of these seconds: the first round's menu, then the others'."""

    @classmethod
    def of(cls, start: PolicyStart, name: str) -> "RuleChoices":
        """The choices of a rule by its plan."""
        ruled, problem = RuledRounds(name, start), start.problem
        prices, fleet = ruled.prices, problem.fleet
        everybody = np.ones(problem.size, dtype=np.bool_)
        menus: list[dict[str, Any]] = []
        segments: list[Segment] = []
        for dense in (problem.dense_first, False):
            least_s = shortest_s(fleet, start.scheme, dense=dense)
            lengths = [prices.deadline_s, *np.unique(least_s[least_s > prices.deadline_s]).tolist()]
            menus.append({"least_s": least_s.tolist(), "round_s": lengths, "segment": len(segments)})
            segments += [prices.points(fleet, start.scheme, round_s, dense=dense).segment(
                everybody, problem.local_steps, problem.upload_bits) for round_s in lengths]
        probe, facts = probe_cost(fleet, everybody), ruled.rule.facts
        settings = {"count": facts.count, "most_rounds": problem.rounds, "seconds": facts.seconds.tolist(),
                    "joules": facts.joules.tolist(), "probe_s": probe.client_s.tolist(),
                    "probe_j": (probe.compute_j + probe.upload_j).tolist(), "menus": menus}
        return cls(settings, tuple(segments))
