"""Plans whose clients take turns: what the rounds cost, and when turns are worth it."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap import Plan, Scenario, plan
from fedgap.planning import forecast_search
from fedgap.planning.cycles import Cycle
from fedgap.planning.forecast_plan import solve_turns
from fedgap.planning.forecast_search import best_drafts, best_forecast, best_turns
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task
from fedgap.planning.turn_taking import TurnSearch
from tests.planning.test_cycles import written_out

FULL = os.environ.get("FEDGAP_FULL") == "1"
TURNS = scheme_of("forecast")
SAME_CLIENTS = replace(TURNS, turns=False)
WEIGHTS = {"start": 1.5, "rounds_power": 0.8, "steps_power": 0.7, "slowed_by_pruning": 0.5, "slowed_by_divergence": 0.5,
           "few_clients": 0.3, "divergence": 0.5, "floor": 0.005, "slowed_by_few_clients": 0.05, "drift_power": 0.2}
"""Weights with which turns pay: what remains of the error depends strongly on how many clients ever train, and learning
depends little on how many there are in a round."""


def scenario_of(clients: int, *overrides: str, energy_j: float = 1.0) -> Scenario:
    """A city fleet with energy for few rounds of few clients."""
    weights = [f"forecast.{name}={value}" for name, value in WEIGHTS.items()]
    return Scenario.load("city", [
        f"fleet.count={clients}", "model.gradient_bits=1421632", "model.flops_per_sample=1.8e6", "budget.delay_s=8",
        f"budget.energy_j={energy_j}", "rounds=40", "learning.local_steps=8", "forecast=", *weights, *overrides])


# --- drafts ---------------------------------------------------------------------------------------------------------


def drawn_cycle(random: np.random.Generator, search: TurnSearch) -> Cycle:
    """Any groups of one to all clients, of any sizes and as often as they like."""
    size = search.problem.size
    groups = random.random((int(random.integers(1, 7)), size)) < random.uniform(0.1, 0.9)
    groups[np.arange(len(groups)), random.integers(0, size, len(groups))] = True
    return Cycle(groups)


@cache
def search_for(batches: str, dense: bool, prune: bool) -> TurnSearch:
    scenario = scenario_of(7, f"learning.batches={batches}", f"pruning.dense_first={str(dense).lower()}", energy_j=2.0)
    return TurnSearch(Problem.of(scenario), replace(TURNS, prune=prune))


@settings(max_examples=200 if FULL else 30)
@given(st.sampled_from(["as_is", "balanced", "target"]), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_the_rounds_of_a_draft_keep_both_budgets_and_reach_its_error(batches, dense, prune, seed):
    random = np.random.default_rng(seed)
    search = search_for(batches, dense, prune)
    cycle = drawn_cycle(random, search)
    numbers = np.unique(random.integers(1, 15, 4))
    drafts = {draft.problem.rounds: draft for draft in search.drafts(cycle, numbers)}
    assert set(drafts) <= set(numbers.tolist())
    for rounds, draft in drafts.items():
        segments = draft.segments(search.scheme)
        assert draft.problem.violation(segments) <= 1e-9  # budgets, ranges, rounds, and an unpruned first round
        taken = np.stack([segment.selected for segment in segments]).T @ [segment.rounds for segment in segments]
        np.testing.assert_array_equal(taken, cycle.times(rounds) @ cycle.groups)
        pruned = max(segment.pruning_ratio.max() for segment in segments)
        if prune and pruned > 1e-6:  # otherwise there is nothing left to spend for
            assert min(draft.problem.energy_budget(segments), draft.problem.delay_budget(segments)) <= 1e-3
        assert prune or pruned == 0.0
        reached = search.problem.scenario.fitted_forecast().forecast.error(plan_features(draft.problem, segments))
        if batches == "target":
            assert draft.error <= reached * (1 + 1e-6)
        else:
            assert draft.error == pytest.approx(reached, rel=1e-6)


# --- what clients cost ----------------------------------------------------------------------------------------------


def test_the_costs_of_clients_say_how_the_error_changes_when_groups_change():
    """24 groups of four of fourteen clients, and a forecast on which only pruning has an influence. In every trial a
    client of a group is exchanged for another, and powers, clocks and pruning of all groups are computed anew."""
    nothing_else = [f"forecast.{name}=0" for name in ("few_clients", "divergence", "slowed_by_divergence")]
    search = TurnSearch(Problem.of(scenario_of(14, *nothing_else, energy_j=9.0)), TURNS)
    random, rounds = np.random.default_rng(2), np.array([24])
    groups = np.stack([np.isin(np.arange(14), random.choice(14, 4, replace=False)) for _ in range(24)])
    (draft,) = search.drafts(Cycle(groups), rounds)
    costs = search._costs(draft)
    expected, happened = [], []
    for _ in range(60):
        changed, row = groups.copy(), int(random.integers(24))
        leaves, joins = random.choice(np.flatnonzero(groups[row])), random.choice(np.flatnonzero(~groups[row]))
        changed[row, [leaves, joins]] = [False, True]
        (other,) = search.drafts(Cycle(changed), rounds)
        expected.append(written_out(costs, changed) - written_out(costs, groups))
        happened.append(other.error - draft.error)
    assert np.corrcoef(expected, happened)[0, 1] > 0.99
    assert np.dot(expected, happened) / np.dot(expected, expected) == pytest.approx(1.0, abs=0.05)


def test_no_client_pays_for_waiting_for_a_client_outside_its_group():
    """The slowest client of the fleet becomes half a minute slower, which changes the costs of no other client."""
    problem = Problem.of(scenario_of(14, energy_j=9.0))
    problem = replace(problem, fleet=replace(problem.fleet, idle_power_w=np.full(14, 0.05)))
    search = TurnSearch(problem, TURNS)
    pool, slowest = search.order[:10], search.order[-1]
    groups = np.stack([np.isin(np.arange(14), pool[:5]), np.isin(np.arange(14), pool[5:])])
    (draft,) = search.drafts(Cycle(groups), np.array([4]))
    slower = replace(problem.fleet, latency_s=problem.fleet.latency_s + 30.0 * (np.arange(14) == slowest))
    late = replace(draft, problem=replace(draft.problem, fleet=slower))
    others = np.arange(14) != slowest
    before, after = (search._costs(one).client_costs for one in (draft, late))
    np.testing.assert_allclose(after[others], before[others], rtol=1e-12)


@pytest.mark.parametrize(("fastest", "pool"), [([0, 1, 2], 3), ([0, 2, 5], 6), ([3], 4), ([0, 13], 14)])
def test_a_pool_is_the_fastest_clients_up_to_the_slowest_that_takes_part(fastest, pool):
    search = TurnSearch(Problem.of(scenario_of(14, energy_j=9.0)), TURNS)
    group = np.isin(np.arange(14), search.order[fastest])
    (draft,) = search.drafts(Cycle(group[None]), np.array([2]))
    assert search._pool_of(draft) == pool


# --- plans ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["7 clients", "14 clients", "matched labels"])
def both(request) -> tuple[Scenario, Plan, Plan]:
    """A scenario in which turns pay, with the plan by ``forecast`` and the one with the same clients in all rounds."""
    scenario = {"7 clients": lambda: scenario_of(7), "14 clients": lambda: scenario_of(14),
                "matched labels": lambda: scenario_of(14, "learning.batches=target")}[request.param]()
    return scenario, plan(scenario, scheme="forecast"), plan(scenario, scheme=SAME_CLIENTS)


def test_clients_take_turns_where_that_lowers_the_forecast_error(both):
    scenario, turns, same = both
    problem = Problem.of(scenario).with_rounds(turns.rounds)
    assert problem.violation(turns.segments) <= 1e-9
    assert turns.forecast.error < 0.97 * same.forecast.error
    ever = np.any([segment.selected for segment in turns.segments], axis=0)
    assert ever.sum() > max(segment.selected.sum() for segment in turns.segments)
    exact = scenario.fitted_forecast().forecast.error(plan_features(problem, turns.segments))
    assert turns.forecast.error == pytest.approx(exact, rel=1e-12)


def test_a_certificate_says_for_which_plans_it_holds(both):
    _, turns, same = both
    assert (turns.bound_scope, same.bound_scope) == ("all", "single")
    assert "by forecast has a forecast accuracy above" in turns.certificate
    assert "by forecast with the same clients in all rounds has a forecast accuracy above" in same.certificate
    for one in (turns, same):
        assert 0.0 <= one.gap < 1.0
        again = Plan.from_dict(one.to_dict())
        assert (again.bound_scope, again.certificate) == (one.bound_scope, one.certificate)


def test_no_plan_with_turns_is_better_than_the_certificate_allows(both):
    """Random groups, with the operating points of drafts; and the plan is not much worse than the best of them."""
    scenario, turns, _ = both
    random, errors = np.random.default_rng(1), []
    search = TurnSearch(Problem.of(scenario).with_learner(turns.local_steps, turns.upload_bits), TURNS)
    for _ in range(2000 if FULL else 60):
        for draft in search.drafts(drawn_cycle(random, search), np.array([turns.rounds])):
            segments = draft.segments(TURNS)
            assert draft.problem.violation(segments) <= 1e-9
            errors.append(scenario.fitted_forecast().forecast.error(plan_features(draft.problem, segments)))
    assert len(errors) > 10
    assert turns.forecast.least_error <= min(errors)
    assert turns.forecast.error <= 1.05 * min(errors)


def test_more_of_a_budget_lowers_the_error_by_its_price():
    """With a hundredth more of both budgets the same groups prune less. The error falls by what both prices say."""
    task = Task.of(Problem.of(scenario_of(7, energy_j=2.0)), TURNS)
    draft = best_turns(task, best_drafts(task))
    solution, problem = solve_turns(task, draft, SolverSettings()), draft.problem
    assert solution.energy_price > 0.0
    assert solution.delay_price > 0.0
    richer = replace(problem, energy_j=1.01 * problem.energy_j, delay_s=1.01 * problem.delay_s)
    (other,) = TurnSearch(richer, TURNS).drafts(draft.cycle, np.array([problem.rounds]))
    worth = 0.01 * (solution.energy_price * problem.energy_j + solution.delay_price * problem.delay_s)
    reached = task.objective.fitted.forecast.error(plan_features(richer, other.segments(TURNS)))
    assert solution.error - reached == pytest.approx(worth, rel=0.1)


@pytest.mark.parametrize("how", [
    {"scheme": SAME_CLIENTS}, {"scheme": "forecast", "selection": "everybody"},
    {"scheme": "all_clients", "objective": "forecast"}])
def test_nobody_takes_turns_where_a_scheme_forbids_it(how, monkeypatch):
    monkeypatch.setattr(forecast_search, "solve_turns", lambda *_: pytest.fail("somebody takes turns"))
    answer = plan(scenario_of(7, energy_j=6.0), **how)
    assert answer.feasible
    assert answer.bound_scope == "single"


def test_nobody_takes_turns_in_a_changing_world(monkeypatch):
    """A client may be absent when it is its turn."""
    moving = scenario_of(7, "world.availability.mean_on_s=20", "world.availability.mean_off_s=10")
    monkeypatch.setattr(forecast_search, "solve_turns", lambda *_: pytest.fail("somebody takes turns"))
    answer, same = plan(moving, scheme="forecast"), plan(scenario_of(7), scheme=SAME_CLIENTS)
    assert answer.bound_scope == "single"
    assert [one.selected.tolist() for one in answer.segments] == [one.selected.tolist() for one in same.segments]


def test_turns_keep_the_batteries():
    """The batteries hold a tenth less than what the busiest client would need without them."""
    task = Task.of(Problem.of(scenario_of(7)), TURNS)
    drafts = best_drafts(task)
    free = best_turns(task, drafts)
    battery = np.full(7, 0.9 * free.problem.client_energy(free.segments(TURNS)).max())
    limited = replace(task.problem, fleet=replace(task.problem.fleet, battery_j=battery))
    found = best_turns(Task.of(limited, TURNS), drafts)
    assert found.error > free.error
    assert found.problem.battery_range(found.segments(TURNS)) >= -1e-9
    assert found.problem.violation(found.segments(TURNS)) <= 1e-9


def test_matched_labels_never_make_a_plan_with_turns_that_is_worse(monkeypatch):
    """The error of a draft is only a lower bound then, so that the plan itself is compared."""
    task = Task.of(Problem.of(scenario_of(7, "learning.batches=target")), TURNS)
    same = best_forecast(replace(task, scheme=SAME_CLIENTS), SolverSettings())
    draft = best_turns(task, best_drafts(task))
    monkeypatch.setattr(forecast_search, "best_turns", lambda *_: replace(draft, error=0.0))
    monkeypatch.setattr(forecast_search, "solve_turns", lambda *_: replace(same, error=1.5 * same.error, in_turns=True))
    assert best_forecast(task, SolverSettings()).error == same.error


def test_ctrl_c_in_the_search_for_turns_returns_the_plan_without(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(forecast_search, "best_turns", interrupted)
    answer = plan(scenario_of(7), scheme="forecast")
    assert answer.feasible
    assert "interrupted" in answer.reason
