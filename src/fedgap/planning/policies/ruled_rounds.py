"""Policies by the published rules of :mod:`fedgap.rules`: the rule selects clients, the planner decides all else.

Pruning, powers and clocks are those of :mod:`fedgap.planning.operating_points` for the present channels, such that as
many rounds, with as many clients and local steps, as the plan has use up the budgets. The rule selects among the
clients that could finish a round alone within what is left of both budgets.
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
"""How many numbers of rounds, up to the plan's, are tried until one fits the budgets."""


def rule_facts(problem: Problem, scheme: Scheme, count: int, seed: int) -> RuleFacts:
    """Return what a rule knows about a problem's clients before the first round.

    :param count: the number of clients per round; :param seed: of the rule's random draws.
    """
    fleet, size = problem.fleet, problem.size
    counts = problem.label_counts
    seconds = shortest_s(fleet, scheme, dense=True)
    points = Prices(float(seconds.max()), 0.0).points(fleet, scheme, dense=True)
    cost = round_cost(fleet, np.ones(size, dtype=np.bool_), points.ratio, points.power_w, points.frequency_hz)
    samples = fleet.batch_size if counts is None else counts.sum(axis=1)
    return RuleFacts(count, np.asarray(samples, dtype=np.float64), seconds, cost.client_j,
                     np.ones((size, 1)) if counts is None else counts, seed)


def typical_sets(rule: RoundRule, rounds: int) -> RuledSets:
    """Return the selections of a rule in its first rounds, if all clients are available and every loss is 1.

    For a rule that does not use losses these are the selections that it really makes.
    """
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
    """The policy that selects the clients of each round by a rule."""

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
        # The rule may select slower clients than the plan has. Then fewer rounds are assumed, as many as fit.
        found = prices_for(problem, start.scheme, sets, rounds)
        self.prices = next((priced.prices for priced in found if priced is not None), Prices(0.0, 0.0))

    def _dense(self, view: RoundView) -> bool:
        """Return whether the next round must be unpruned."""
        return self.start.problem.dense_first and not view.done

    def _now(self, view: RoundView) -> RoundFacts:
        """Return what the rule knows before the round; clients that cannot finish it alone are not available."""
        there = view.available if self.start.selected is None else view.available & self.start.selected
        points, everybody = self._alone(view), np.ones_like(view.available)
        cost = round_cost(view.fleet, everybody, points.ratio, points.power_w, points.frequency_hz)
        fits = (cost.client_s <= view.delay_s) & (cost.client_j + cost.broadcast_j <= view.energy_j)
        return RoundFacts(view.number, there & fits, view.losses, view.last_round)

    def _alone(self, view: RoundView) -> OperatingPoints:
        """Return the operating points of all clients in a round in which no client waits for another."""
        return self.prices.points(view.fleet, self.start.scheme, dense=self._dense(view))

    def asks(self, view: RoundView) -> Bools | None:
        """Return the clients that are asked for their loss before the round is decided, (N,); None for nobody."""
        return self.rule.asks(self._now(view))

    def decide(self, view: RoundView) -> Decision:
        """Return a round with the rule's clients at their operating points, or no round if there are none."""
        chosen = self.rule.choose(self._now(view))
        if not chosen.any():
            return Decision(None)
        problem = self.start.problem
        points = self.prices.round_points(view.fleet, self.start.scheme, chosen, dense=self._dense(view))
        return Decision(points.segment(chosen, problem.local_steps, problem.upload_bits))


@dataclass(frozen=True, eq=False)
class RuleChoices:
    """All rounds that a rule can choose in a world that does not change, as plain data for a run without the
    planner."""

    settings: dict[str, Any]
    """What the rule knows, what asking each client for its loss costs, and two menus, for the first round and for all
    others. A menu has the least seconds of each client, the possible durations of a round in rising order, and the
    index in ``segments`` of the first of these durations."""
    segments: tuple[Segment, ...]
    """The operating points of all clients for each duration: those of the first menu, then those of the second."""

    @classmethod
    def of(cls, start: PolicyStart, name: str) -> "RuleChoices":
        """Return the choices of the rule ``name``."""
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
