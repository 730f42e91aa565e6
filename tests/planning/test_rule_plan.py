"""Plans for published rules: they use up the budgets, nearly as well as any plan for the same clients could."""

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import rule_plan
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.policies.policy import PolicyStart
from fedgap.planning.policies.ruled_rounds import RuleChoices, RuledRounds, rule_facts, typical_sets
from fedgap.planning.problem import Problem
from fedgap.planning.rule_plan import plan_by_rule
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task
from fedgap.registry import RULES
from fedgap.rules.luo import constants_ratio
from fedgap.system import probe_cost

SCHEME = scheme_of("forecast")


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Eight clients of the city, one of whom is far slower than the others, with room for about twenty rounds."""
    return Scenario.load("city", ["rounds=90", "budget.energy_j=4", "budget.delay_s=8", "mode=practical",
                                  "learning.local_steps=4", "fleet.count=8", "model.gradient_bits=1421632",
                                  "model.flops_per_sample=1.69e6"])


@pytest.fixture(scope="module")
def plans(scenario) -> dict:
    return {rule: plan_by_rule(scenario, rule) for rule in RULES.built_in}


def probes(scenario, plan, rule):
    """Joules and seconds of the questions before a plan's rounds."""
    problem = Problem.of(scenario).with_learner(plan.local_steps, plan.upload_bits)
    facts = rule_facts(problem, SCHEME, int(plan.segments[0].selected.sum()), 0)
    cost = probe_cost(problem.fleet, typical_sets(RULES.load(rule)(facts), plan.rounds).asked)
    return float(cost.energy_j.sum()), float(cost.delay_s.sum())


@pytest.mark.parametrize("rule", RULES.built_in)
def test_a_rule_gets_all_rounds_that_its_budgets_can_buy(scenario, plans, rule):
    plan = plans[rule]
    joules, seconds = probes(scenario, plan, rule)
    assert (joules > 0.0) == (rule == "power_of_choice")
    spent = (plan.energy_j + joules) / 4.0, (plan.delay_s + seconds) / 8.0
    assert max(spent) <= 1.0 + 1e-6
    # If nobody prunes, nothing more can be bought, unless there is room for another round.
    unpruned = all(segment.pruning_ratio.max() == 0.0 for segment in plan.segments)
    assert min(spent) > 0.999 or plan.rounds == scenario.rounds or (unpruned and max(spent) > 0.999)
    assert (plan.segments[0].pruning_ratio == 0.0).all() == Problem.of(scenario).dense_first


@pytest.mark.parametrize("rule", ["random_k", "fed_cbs"])
def test_no_plan_for_the_same_clients_prunes_much_less(scenario, plans, rule):
    """The exact solution of P1 for the very same selections decides every round's time and every client's pruning."""
    plan = plans[rule]
    problem = Problem.of(scenario).with_learner(plan.local_steps, plan.upload_bits).with_rounds(plan.rounds)
    task = Task.of(problem, SCHEME)
    kinds = [0, *[len(task.kinds) - 1] * (plan.rounds - 1)]
    exact = compose(task, Composition.of(Part(kind, segment.selected, 1)
                                         for kind, segment in zip(kinds, plan.segments, strict=True)))
    least, ours = (plan_features(problem, segments).pruning for segments in (exact.segments, plan.segments))
    assert least - 1e-3 <= ours <= least + 0.03


@pytest.mark.parametrize("rule", ["power_of_choice", "oort", "fedzero"])
def test_a_run_begins_with_the_points_of_its_plan(scenario, plans, rule):
    plan = plans[rule]
    choices = RuleChoices.of(PolicyStart.of(scenario, plan, SCHEME), rule)
    first, others = choices.settings["menus"]
    assert len(choices.segments) == len(first["round_s"]) + len(others["round_s"])
    for number, planned in enumerate(plan.segments):
        menu = others if number else first
        longest = max(np.array(menu["least_s"])[planned.selected])
        row = next(row for row, round_s in enumerate(menu["round_s"]) if round_s >= longest)
        offered = choices.segments[menu["segment"] + row]
        for name in ("pruning_ratio", "power_w", "frequency_hz"):
            np.testing.assert_allclose(getattr(offered, name)[planned.selected],
                                       getattr(planned, name)[planned.selected], rtol=1e-9, atol=1e-12)


def test_a_plan_for_faster_clients_leaves_a_rule_as_many_rounds_as_fit(scenario, plans):
    """The points are then made for fewer rounds than the plan has."""
    tight = scenario.with_overrides(["budget.delay_s=4"])
    ruled = RuledRounds("random_k", PolicyStart.of(tight, plans["random_k"], SCHEME))
    assert ruled.prices.deadline_s > 0.0


@pytest.mark.parametrize(("local_steps", "pilots"), [("4", (4, 8)), ("", (1, 64))])
def test_luos_pilots_differ_in_their_local_steps_only(scenario, monkeypatch, local_steps, pilots):
    """The forecast's pilots do not depend on the number of clients, so that both must have the same."""
    made = []
    monkeypatch.setattr(rule_plan, "constants_ratio", lambda size, two: made.append(two) or constants_ratio(size, two))
    problem = Problem.of(scenario.with_overrides([f"learning.local_steps={local_steps}"]))
    steps = problem.scenario.learning.local_steps_choices
    rule_plan._by_luo(Task.of(problem, SCHEME).problem, SCHEME, [1, 2, 4, 6], steps)
    (first, second), = made
    assert (first[:2], second[:2]) == ((8, pilots[0]), (8, pilots[1]))
    assert first[2] > second[2] > 1.0  # more local steps need fewer rounds
    assert constants_ratio(8, made[0]) > 0.0
