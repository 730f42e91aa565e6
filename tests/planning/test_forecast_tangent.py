"""Tangents of the forecast error of plans in which clients may take turns: never above it, and equal at their plan."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap import Scenario
from fedgap.planning.objectives.forecast_tangent import (
    ForecastTangent,
    SharedTraining,
    features_of_rounds,
    plan_features,
)
from fedgap.planning.oracles.enumerate import Enumeration, all_selections
from fedgap.planning.oracles.label_bound import LabelBound
from fedgap.planning.oracles.planes import PlaneBound
from fedgap.planning.plan import Segment
from fedgap.planning.problem import Problem
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import Forecast

FULL = os.environ.get("FEDGAP_FULL") == "1"
CLIENTS, LABELS = 4, 3
LEARNERS = [("as_is", "equal"), ("balanced", "equal"), ("target", "equal"), ("as_is", "samples"),
            ("balanced", "samples")]
EXACT = [learner for learner in LEARNERS if learner[0] != "target"]
"""With ``target`` batches the tangent is only a bound."""


@cache
def fleet(batches: str, weighting: str, clients: int = CLIENTS) -> Problem:
    """A fleet of the city with tight budgets; labels and weights of the forecast are drawn below."""
    return Problem.of(Scenario.load("city", [
        f"fleet.count={clients}", "model.gradient_bits=1421632", "model.flops_per_sample=1.8e6", "budget.energy_j=3",
        "budget.delay_s=8", "rounds=12", f"learning.batches={batches}", f"learning.weighting={weighting}",
        "learning.local_steps=4", "learning.max_repeat=2"]))


def drawn_fleet(random: np.random.Generator, batches: str, weighting: str, clients: int = CLIENTS) -> Problem:
    """The fleet with uneven labels, some of which some clients do not have."""
    counts = random.multinomial(200, random.dirichlet(np.full(LABELS, 0.5), size=clients)) * random.integers(
        1, 6, (clients, 1))
    return replace(fleet(batches, weighting, clients), label_counts=counts.astype(float),
                   target_counts=random.integers(1, 60, LABELS).astype(float))


def drawn_forecast(random: np.random.Generator) -> FittedForecast:
    """Any weights; in every second forecast one of c, C and g is 0."""
    without = random.choice(["", "", "", "slowed_by_divergence", "divergence", "slowed_by_few_clients"])
    weights = Forecast(
        start=random.uniform(0.5, 4), rounds_power=random.uniform(0.5, 1), steps_power=random.uniform(0.3, 1),
        slowed_by_pruning=random.uniform(0, 1), slowed_by_divergence=random.uniform(0, 1),
        few_clients=random.uniform(0, 1), divergence=random.uniform(0, 1), coarse_uploads=0.0, floor=0.01,
        slowed_by_few_clients=random.uniform(0, 1), drift_power=random.uniform(0, 1))
    return FittedForecast(replace(weights, **{without: 0.0}) if without else weights, "drawn")


def drawn_segments(random: np.random.Generator, problem: Problem) -> tuple[Segment, ...]:
    """Up to five segments with random clients and pruning, which have all rounds of the problem."""
    parts = np.diff([0, *sorted(random.choice(np.arange(1, problem.rounds), random.integers(0, 5), replace=False)),
                     problem.rounds])
    segments = []
    for rounds in parts.tolist():
        chosen = random.random(problem.size) < random.uniform(0.2, 1.0)
        chosen[random.integers(problem.size)] = True
        limits = problem.fleet.max_power_w, problem.fleet.max_frequency_hz
        segments.append(Segment(rounds, chosen, np.where(chosen, random.uniform(0, 0.7, problem.size), 0.0),
                                *(np.where(chosen, limit, 0.0) for limit in limits),
                                local_steps=problem.local_steps))
    return tuple(segments)


def error(tangent: ForecastTangent, segments: tuple[Segment, ...]) -> float:
    return tangent.fixed.error(plan_features(tangent.problem, segments))


def value(tangent: ForecastTangent, segments: tuple[Segment, ...]) -> float:
    return Task(tangent.problem, scheme_of("forecast"), tangent, None).value(segments)


def tangent_at(problem: Problem, fitted: FittedForecast, segments: tuple[Segment, ...]) -> ForecastTangent:
    """The tangent that touches the error at this plan."""
    tangent = ForecastTangent(problem, fitted)
    return replace(tangent, slowed=tangent.fixed.slowed(plan_features(problem, segments)),
                   shared=SharedTraining.of(problem, segments))


@settings(max_examples=400 if FULL else 60)
@given(st.sampled_from(LEARNERS), st.integers(0, 10**6))
def test_the_tangent_at_one_plan_is_nowhere_above_the_error_of_another(learner, seed):
    random = np.random.default_rng(seed)
    problem, fitted = drawn_fleet(random, *learner), drawn_forecast(random)
    here, others = drawn_segments(random, problem), [drawn_segments(random, problem) for _ in range(6)]
    tangent = tangent_at(problem, fitted, here)
    alone = replace(tangent, shared=None)
    for other in (here, *others):
        assert value(tangent, other) <= error(tangent, other) * (1 + 1e-9)
        assert value(tangent, other) <= value(alone, other) * (1 + 1e-9)
    if learner in EXACT:
        assert value(tangent, here) == pytest.approx(error(tangent, here), rel=1e-6)


@settings(max_examples=200 if FULL else 30)
@given(st.sampled_from(EXACT), st.integers(0, 10**6))
def test_without_turns_the_tangent_needs_no_plan(learner, seed):
    """If all rounds have the same clients, the tangent at their z is the error, also without w° and m°."""
    random = np.random.default_rng(seed)
    problem, fitted = drawn_fleet(random, *learner), drawn_forecast(random)
    first, *others = drawn_segments(random, problem)
    same = (first, *(replace(other, selected=first.selected, pruning_ratio=np.where(first.selected, 0.3, 0.0))
                     for other in others))
    alone = replace(tangent_at(problem, fitted, same), shared=None)
    assert value(alone, same) == pytest.approx(error(alone, same), rel=1e-9)
    features = plan_features(problem, same)
    assert features.divergence == pytest.approx(features.divergence_at_once, rel=1e-9, abs=1e-12)


@settings(max_examples=200 if FULL else 40)
@given(st.sampled_from(LEARNERS), st.integers(0, 10**6))
def test_a_search_sees_the_features_that_the_plan_has(learner, seed):
    random = np.random.default_rng(seed)
    problem = drawn_fleet(random, *learner)
    segments = drawn_segments(random, problem)
    exact = plan_features(problem, segments)
    quick = features_of_rounds(problem, np.stack([segment.selected for segment in segments]), exact.pruning,
                               np.array([segment.rounds for segment in segments]))
    bounded = {"divergence", "divergence_at_once"} if learner[0] == "target" else set()
    for name in vars(exact):
        if name in bounded:
            assert getattr(quick, name) <= getattr(exact, name) + 1e-7
        else:
            assert getattr(quick, name) == pytest.approx(getattr(exact, name), rel=1e-9, abs=1e-9), name


def test_unknown_labels_leave_only_how_often_clients_take_part():
    """Two of four clients for nine rounds, the third alone for three: w = (3/8, 3/8, 1/4, 0), Σ w² = 11/32."""
    problem = replace(fleet("as_is", "equal"), label_counts=None, target_counts=None)
    chosen = np.array([[1, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    segments = tuple(Segment(rounds, row, 0.0 * row, 1.0 * row, 1e9 * row, local_steps=4)
                     for rounds, row in zip((9, 3), chosen, strict=True))
    features = plan_features(problem, segments)
    assert features.few_clients == pytest.approx(11 / 32, rel=1e-12)
    assert features.few_at_once == pytest.approx((9 / 2 + 3) / 12, rel=1e-12)
    assert features.divergence == features.divergence_at_once == 0.0
    fitted = FittedForecast(Forecast(0.0, 0.0, 0.0, 0.0, 0.0, few_clients=0.2, divergence=0.0, coarse_uploads=0.0,
                                     floor=0.0), "by hand")
    tangent = tangent_at(problem, fitted, segments)
    # h_n = 2·0.2·w°_n: a round of the first two costs 0.15, one of the third 0.1, one of the fourth nothing.
    np.testing.assert_allclose(tangent.selection_cost(np.vstack([chosen, [0, 0, 0, 1]])), [0.15, 0.1, 0.0], atol=1e-12)
    assert tangent.constant == pytest.approx(-0.2 * 11 / 32, rel=1e-12)
    assert value(tangent, segments) == pytest.approx(0.2 * 11 / 32, rel=1e-12)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("counts_samples", [True, False])
def test_what_the_solvers_see_is_the_selection_cost(learner, shared, counts_samples):
    """The sums of the columns give the cost, and every plane is below it; its own plane touches it."""
    random = np.random.default_rng(7)
    problem, fitted = drawn_fleet(random, *learner), drawn_forecast(random)
    tangent = tangent_at(problem, fitted, drawn_segments(random, problem))
    tangent = replace(tangent, shared=tangent.shared if shared else None, counts_samples=counts_samples)
    selections = all_selections(CLIENTS)
    cost, count = tangent.selection_cost(selections), selections.sum(axis=-1)
    assert np.isinf(tangent.selection_cost(np.zeros(CLIENTS, dtype=bool)))
    for selected, one in zip(selections, cost, strict=True):
        assert tangent.selection_cost(selected) == pytest.approx(one, rel=1e-12)
    pooled = tangent.pooled
    for size in range(1, CLIENTS + 1):
        some = selections[count == size]
        np.testing.assert_allclose(pooled.cost(some.astype(float) @ pooled.counts, size), cost[count == size],
                                   rtol=1e-9)
    assert (pooled.convex is None) == (learner[1] == "samples")
    if pooled.convex is None:
        return

    def plane(vector: np.ndarray, selected: np.ndarray) -> float:
        convex, k = pooled.convex, selected.sum()
        height = convex.scores(vector[None])[0][selected].mean() - np.log(convex.target @ np.exp(vector))
        return (convex.few_clients / k + convex.weight * height + convex.costs[selected].mean()
                + convex.scarcity[selected].sum() / k**2)

    for selected, one in zip(selections, cost, strict=True):
        assert all(plane(vector, selected) <= one + 1e-9 for vector in random.normal(size=(20, LABELS)))
        if learner in EXACT:
            mean = np.maximum(tangent.labels.drawn(selected)[0], 1e-12)
            assert plane(np.log(mean / tangent.labels.target), selected) == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("seed", range(60 if FULL else 6))
def test_bounds_of_large_fleets_hold_for_every_selection_and_deadline(seed):
    """Also where clients cost something by themselves, as they do where they take turns."""
    random = np.random.default_rng(seed)
    batches, clients = ("as_is", "balanced", "target")[seed % 3], int(random.integers(3, 8))
    problem = drawn_fleet(random, batches, "equal", clients)
    tangent = tangent_at(problem, drawn_forecast(random), drawn_segments(random, problem))
    tangent = replace(tangent, shared=tangent.shared if seed % 2 == 0 else None)
    task = Task(problem, scheme_of("forecast"), tangent, None)
    curves = task.kinds[-1].curves
    listed = Enumeration(task, curves, all_selections(problem.size), problem.delay_s)
    bound, planes = LabelBound(task, curves, tangent.pooled.convex, listed.worths), PlaneBound(task)
    for _ in range(3):
        mu, nu = 10.0 ** random.uniform(-4, -1, 2) * 12 / (problem.energy_j, problem.delay_s)
        columns = listed.price(mu, nu).columns
        least = float((columns.cost + mu * columns.energy + nu * columns.deadline).min())
        slack = 1e-9 * abs(least)
        assert bound.at(mu, nu, least + 0.01 * abs(least)) <= least + slack
        assert planes.least(tangent, mu, nu) <= least + slack
        if batches != "target":  # otherwise the bound would be of no use
            goal = least - 0.2 * max(abs(least), tangent.least_error)
            assert bound.at(mu, nu, goal) >= goal
