"""Algorithm 1: its formulas, its three steps by hand, and what it promises whatever the scenario."""

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.errors import InputError
from fedgap.planning import PAPER_SCHEMES
from fedgap.planning.alternating import AlternatingOptions, selection_step, solve
from fedgap.planning.alternating.iterate import Iterate, Repeated
from fedgap.planning.alternating.pruning_step import pruning_step
from fedgap.planning.alternating.resource_step import (
    ResourceStep,
    successive_approximation,
    tangent,
    upload_energy_slope,
)
from fedgap.planning.alternating.selection_step import SelectionStep
from fedgap.planning.alternating.starting_point import everybody
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from fedgap.system import upload_energy
from tests.oracle.scenarios import FEASIBLE_CASES, case, pencil_problem, random_fleet, random_problem

PROPOSED = SCHEMES.load("proposed")
SAMPLE = 60 if os.environ.get("FEDGAP_FULL") == "1" else 8
VARIANTS = [
    AlternatingOptions(),
    AlternatingOptions(tie_break="slack"),
    AlternatingOptions(inner_stop="moves"),
    AlternatingOptions(selection="exact"),
    AlternatingOptions(selection="relaxed"),
    AlternatingOptions(start="feasible", selection="exact"),
]
powers = st.floats(min_value=1e-9, max_value=0.5)


# --- the printed tangent and derivative ---------------------------------------------------------------------------


@given(seed=st.integers(0, 10), power=powers)
def test_slope_is_the_derivative_of_the_upload_energy(seed, power):
    fleet = random_fleet(np.random.default_rng(seed), 3)
    step = 1e-4 * power

    def energy(p):
        return upload_energy(fleet, np.zeros(3), np.full(3, p))

    near, far = energy(power + step) - energy(power - step), energy(power + 2 * step) - energy(power - 2 * step)
    central = (8 * near - far) / (12 * step)
    assert upload_energy_slope(fleet, np.full(3, power)) == pytest.approx(central, rel=1e-7)


@given(seed=st.integers(0, 10), power=powers, at=powers)
def test_tangent_lies_above_the_upload_energy_and_touches_it(seed, power, at):
    fleet = random_fleet(np.random.default_rng(seed), 3)
    p, local = np.full(3, power), np.full(3, at)
    assert (tangent(fleet, p, local) >= upload_energy(fleet, np.zeros(3), p) * (1.0 - 1e-12)).all()
    assert tangent(fleet, local, local) == pytest.approx(upload_energy(fleet, np.zeros(3), local), rel=1e-14)


def test_slope_by_hand():
    """r(p) = log₂(1 + p), H = 2: at p = 1, b = 2/1 − 1·2·1/(1·(1 + 1)·ln2) = 2 − 1/ln2."""
    assert upload_energy_slope(pencil_problem(10, 10).fleet, np.ones(2)) == pytest.approx(2 - 1 / np.log(2))


# --- the three steps by hand --------------------------------------------------------------------------------------


def pencil_point(selected=(True, True), ratio=(0.5, 0.5)):
    return Iterate(np.array(selected), np.array(ratio), np.ones(2), np.ones(2))


def test_pruning_step_by_hand():
    """ε = (5, 3) J and 7 s unpruned. 6.5 s want λ ≥ 0.1; 6 J want 2 J saved: 0.1·3 by client 1, 0.34·5 by client 0."""
    repeated = Repeated(pencil_problem(2.0 + 6.0, 6.5), PROPOSED)
    assert pruning_step(repeated, pencil_point()).ratio == pytest.approx([0.34, 0.1])


def test_pruning_step_with_an_unpruned_first_round_by_hand():
    """The first of 3 rounds takes 7 s and 8 J; two have 6 s and 6.4 J each: λ ≥ 0.2, which saves the 1.6 J."""
    problem = replace(pencil_problem(3 * 2.0 + 8.0 + 2 * 6.4, 7.0 + 2 * 6.0, rounds=3), dense_first=True)
    assert pruning_step(Repeated(problem, PROPOSED), pencil_point()).ratio == pytest.approx([0.2, 0.2])


def test_selection_steps_by_hand():
    """λ = (0.34, 0.1), β = 1, γ₂ = 1, from a = (1, 0): numerators 0.34, 0.1 and, for both, 0.44.

    By turns Σa cannot rise, for 0.44 > μ⁰ = 0.34, and client 1 alone has the least numerator. Exactly, (1 + 0.44)/2 is
    best.
    """
    problem = pencil_problem(2.0 + 6.0, 6.5)
    repeated = Repeated(problem, PROPOSED)
    start = pencil_point((True, False), (0.34, 0.1))
    assert SelectionStep(repeated, "printed")(start).selected.tolist() == [False, True]
    assert SelectionStep(repeated, "exact")(start).selected.tolist() == [True, True]
    assert SelectionStep(repeated, "relaxed")(start).selected.tolist() == [True, True]
    poor = Repeated(pencil_problem(2.0 + 5.9, 6.5), PROPOSED)  # both would need 3.3 + 2.7 = 6 J
    assert SelectionStep(poor, "exact")(start).selected.tolist() == [False, True]
    fast = Repeated(pencil_problem(2.0 + 6.0, 6.0), PROPOSED)  # client 1 needs 4.5 + 2 s
    assert SelectionStep(fast, "exact")(start).selected.tolist() == [True, False]


@pytest.mark.parametrize("rule", ["centre", "slack"])
def test_resource_step_keeps_the_budgets(rule):
    problem, _ = case("n10_cifar_mean")
    repeated = Repeated(problem, PROPOSED)
    start = everybody(repeated)
    point = successive_approximation(ResourceStep(repeated, 10, rule), repeated, start, "printed")
    assert repeated.feasible(point)
    assert not repeated.feasible(start)  # full power at most pruning costs too much here: P2.1 did something


def test_a_single_client_short_of_time_ends_at_its_maxima():
    """Energy no object, 4 s a round: the optimum is f = 2 Hz, p = 3 W, 2.5 s a model, so λ = 1 − 2/2.5 = 0.2."""
    problem = pencil_problem(1e6, 4.0 * 10, rounds=10)
    one = replace(problem, fleet=problem.fleet.take(np.array([0])), phi=np.ones(1))
    result = solve(one, PROPOSED)
    assert result.segments[0].pruning_ratio[0] == pytest.approx(0.2, abs=1e-3)
    assert result.trace[-1] == pytest.approx(1.2, abs=1e-3)  # β + γ₂λ, over all rounds


# --- what it promises ---------------------------------------------------------------------------------------------


def check(problem, scheme, result):
    assert (np.diff(result.trace) <= 0.0).all()
    assert problem.violation(result.segments) <= 1e-6
    assert problem.objective(result.segments).theta == pytest.approx(result.trace[-1], rel=1e-12)
    for segment in result.segments:
        chosen, fleet = segment.selected, problem.fleet
        assert scheme.select or chosen.all()
        assert scheme.prune or (segment.pruning_ratio == 0.0).all()
        assert scheme.power or (segment.power_w[chosen] == fleet.max_power_w[chosen]).all()
        assert scheme.frequency or (segment.frequency_hz[chosen] == fleet.max_frequency_hz[chosen]).all()


@pytest.mark.parametrize(("name", "options"), list(product(FEASIBLE_CASES, VARIANTS)))
def test_shared_cases_are_planned_feasibly_and_not_below_their_bound(name, options):
    problem, expected = case(name)
    result = solve(problem, PROPOSED, options)
    assert result.feasible_start
    check(problem, PROPOSED, result)
    assert result.trace[-1] >= expected["theta_lower"] * (1.0 - 1e-6)
    assert result.trace[-1] < result.trace[0]


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_random_problems_under_every_scheme(seed):
    rng = np.random.default_rng(seed)
    aggregation = ("mean", "sum", "mixture")[seed % 3]
    problem = random_problem(rng, 2 + seed % 5, 1 + seed % 7, aggregation=aggregation, dense_first=seed % 4 == 3)
    options = [o for o in VARIANTS if aggregation != "mixture" or o.selection != "relaxed"]
    for number, scheme in enumerate(PAPER_SCHEMES.values()):
        seen = Task.of(problem, scheme).objective.problem
        result = solve(seen, scheme, options[(seed + number) % len(options)])
        assert result.feasible or ("budget" in result.message and not result.feasible_start)
        if result.feasible:
            check(seen, scheme, result)


@settings(max_examples=SAMPLE, deadline=None)
@given(seed=st.integers(0, 1000))
def test_printed_alternation_never_lowers_the_number_of_clients(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 6, 5, aggregation=("mean", "sum", "mixture")[seed % 3])
    fleet = problem.fleet
    selected = rng.random(6) < 0.5
    selected[0] = True
    power = rng.uniform(0.1, 1.0, 6) * fleet.max_power_w
    point = Iterate(selected, rng.uniform(0.0, 0.7, 6), power, fleet.max_frequency_hz)
    repeated = Repeated(problem, PROPOSED)
    assert SelectionStep(repeated, "printed")(point).selected.sum() >= selected.sum()


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_mixed_integer_selection_finds_what_enumeration_finds(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 7, 5, aggregation=("mean", "sum")[seed % 2], dense_first=seed % 3 == 2)
    repeated, fleet = Repeated(problem, PROPOSED), problem.fleet
    power = rng.uniform(0.1, 1.0, 7) * fleet.max_power_w
    point = Iterate(np.ones(7, dtype=bool), rng.uniform(0.0, 0.7, 7), power, fleet.max_frequency_hz)
    enumerated = [SelectionStep(repeated, variant)(point).selected for variant in ("printed", "exact")]
    monkeypatch.setattr(selection_step, "ENUMERATED_CLIENTS", 3)
    mixed = [SelectionStep(repeated, variant)(point).selected for variant in ("printed", "exact")]
    for expected, found in zip(enumerated, mixed, strict=True):
        thetas = [repeated.theta(replace(point, selected=chosen)) for chosen in (expected, found)]
        assert thetas[1] == pytest.approx(thetas[0], rel=1e-9)


def test_more_than_twelve_clients():
    problem = random_problem(np.random.default_rng(3), 20, 50)
    for variant in ("printed", "exact"):
        result = solve(problem, PROPOSED, AlternatingOptions(start="feasible", selection=variant, iterations=4))
        check(problem, PROPOSED, result)


# --- what it says when it cannot ----------------------------------------------------------------------------------


def test_infeasible_start_names_the_constraint_and_the_client():
    problem, _ = case("n10_infeasible_delay")
    result = solve(problem, PROPOSED)
    assert not result.feasible
    assert not result.feasible_start
    assert "delay_budget: client 3 needs 4812.5 s" in result.message
    assert not solve(problem, PROPOSED, AlternatingOptions(start="feasible")).feasible


def test_start_that_is_too_hungry_is_reported_and_dropping_clients_helps():
    """At most pruning both clients need 0.5·(ε₀ + ε₁) at the least; with less, only one can take part."""
    problem = pencil_problem(2.0 + 1.5, 7.0)
    result = solve(problem, PROPOSED)
    assert not result.feasible_start
    assert "energy_budget" in result.message
    fewer = solve(problem, PROPOSED, AlternatingOptions(start="feasible"))
    assert fewer.feasible
    assert fewer.segments[0].selected.tolist() == [False, True]
    assert not solve(problem, SCHEMES.load("all_clients"), AlternatingOptions(start="feasible")).feasible


def test_broadcasts_beyond_the_budget_are_named():
    result = solve(pencil_problem(1.5, 50.0), PROPOSED)
    assert "energy_budget: the broadcasts alone need 2 J" in result.message


def test_mixture_beyond_enumeration_is_refused_in_one_line():
    problem = random_problem(np.random.default_rng(0), 13, 5, aggregation="mixture")
    with pytest.raises(InputError, match=r"^bound\.aggregation: mixture .* up to 12 clients"):
        solve(problem, PROPOSED)
    assert solve(problem, SCHEMES.load("all_clients")).iterations >= 0


def test_progress_and_interruption_leave_the_best_point_so_far():
    problem, _ = case("n10_mnist_mean_tight")
    seen = []

    def stop_at_two(what, iteration, cost, bound):
        seen.append((what, iteration, cost, bound))
        if iteration == 2:
            raise KeyboardInterrupt

    result = solve(problem, PROPOSED, progress=stop_at_two)
    assert [entry[1] for entry in seen] == [1, 2]
    assert seen[1][2] == pytest.approx(result.trace[-1] - problem.constants.alpha)
    assert result.message == "interrupted"
    check(problem, PROPOSED, result)
