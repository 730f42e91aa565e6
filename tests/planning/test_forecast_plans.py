"""Plans by the forecast: what they minimise, what is certified about them, and what they decide."""

import os
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap import Scenario, plan
from fedgap.errors import InputError
from fedgap.planning import Plan
from fedgap.planning.composition import Composition, Part
from fedgap.planning.fixed_composition import compose
from fedgap.planning.forecast_plan import ForecastSolution, solve_forecast
from fedgap.planning.objectives.forecast_tangent import ForecastTangent, plan_features
from fedgap.planning.oracles import oracle as oracles
from fedgap.planning.oracles.enumerate import Enumeration, all_selections
from fedgap.planning.oracles.label_bound import LabelBound
from fedgap.planning.plan import Segment
from fedgap.planning.plan_forecast import PlanForecast
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.solve import scheme_of
from fedgap.planning.task import Task
from fedgap.theory.built_in_forecasts import BUILT_IN
from fedgap.theory.drawn_labels import DrawnLabels
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import PlanFeatures
from fedgap.theory.label_matching import match_labels

FULL = os.environ.get("FEDGAP_FULL") == "1"
WEIGHTS = {"start": 1.5, "rounds_power": 0.8, "steps_power": 0.7, "slowed_by_pruning": 0.5, "slowed_by_divergence": 1.0,
           "few_clients": 0.05, "divergence": 0.1, "coarse_uploads": 1.0, "floor": 0.005}
OWN_WEIGHTS = ["forecast=", *(f"forecast.{name}={value}" for name, value in WEIGHTS.items())]
"""The weights above in place of the preset's forecast, of which nothing is kept."""
SAME_CLIENTS = replace(scheme_of("forecast"), turns=False)
"""Nobody takes turns, so that the search is for the best plan with the same clients in all rounds."""


def city(clients: int, *overrides: str, energy_j: float = 3.0, seed: int = 0) -> Scenario:
    """A city fleet with LeNet-5 and tight budgets."""
    return Scenario.load("city", [
        f"fleet.count={clients}", f"seed={seed}", "model.gradient_bits=1421632", "model.flops_per_sample=1.8e6",
        f"budget.energy_j={energy_j}", "budget.delay_s=8", "rounds=40", *overrides])


def forecast_task(scenario: Scenario, rounds: int) -> Task:
    return Task.of(Problem.of(scenario), scheme_of("forecast")).with_rounds(rounds)


def segment(rounds: int, selected: list[int], ratio: list[float]) -> Segment:
    chosen = np.array(selected, dtype=np.bool_)
    return Segment(rounds, chosen, np.array(ratio), np.where(chosen, 0.1, 0.0), np.where(chosen, 1e9, 0.0),
                   local_steps=4, upload_bits=8)


def test_features_are_means_over_the_rounds():
    scenario = city(4, "learning.batches=as_is", *OWN_WEIGHTS, "forecast.slow_start=2",
                    "forecast.slowed_by_few_clients=0.2", "forecast.drift_power=0.5")
    counts = [[30, 10], [10, 10], [0, 5], [20, 20]]
    scenario = scenario.with_labels(np.array(counts), np.array([9999, 9999]))
    features = plan_features(Problem.of(scenario), [segment(1, [1, 1, 0, 0], [0, 0, 0, 0]),
                                                    segment(3, [0, 0, 1, 0], [0, 0, 0.4, 0])])
    assert (features.rounds, features.local_steps, features.upload_bits) == (4, 4, 8)
    assert features.few_at_once == pytest.approx((1 / 2 + 3 * 1) / 4)
    assert features.pruning == pytest.approx(3 * 0.4 / 4)
    # The first two clients do 1/8 of the training each, the third 3/4. They have 40, 20 and 5 samples, the mean client
    # 105/4, so that s is 105/160, 105/80 and 105/20.
    few = (105 / 160 + 105 / 80) / 64 + 105 / 20 * 9 / 16
    assert features.few_clients == pytest.approx(few, rel=1e-12)
    # The first two clients have (3/4, 1/4) and (1/2, 1/2), on average (5/8, 3/8); the third has (0, 1).
    first = 5 / 8 * np.log(5 / 4) + 3 / 8 * np.log(3 / 4)
    assert features.divergence_at_once == pytest.approx((first + 3 * np.log(2)) / 4, rel=1e-12)
    # All rounds together have a quarter of the first and three quarters of the second: (5/32, 27/32).
    together = 5 / 32 * np.log(5 / 16) + 27 / 32 * np.log(27 / 16)
    assert features.divergence == pytest.approx(together, rel=1e-12)
    fitted = scenario.fitted_forecast().forecast
    scale = 1.5 * (4 * np.exp(-2 / 4) * 4**0.7) ** -0.8 * np.exp(2.0**-7)
    z = 0.5 * 0.3 + (1.0 * (first + 3 * np.log(2)) / 4 + 0.2 * 0.875) * 2.0
    by_hand = scale * np.exp(z) + 0.05 * few + 0.1 * together + 0.005
    assert fitted.error(features) == pytest.approx(by_hand, rel=1e-12)


def test_the_divergence_is_that_of_the_labels_drawn():
    counts, target = np.array([[90, 10, 0], [4, 0, 96]]), np.array([99, 99, 99])  # smoothed: thirds
    everybody = np.array([True, True])

    def divergence(**how: object) -> float:
        return float(DrawnLabels.of(counts, target, **how).divergence(everybody))

    def apart(*shares: float) -> float:
        return sum(p * np.log(3 * p) for p in shares if p)

    assert divergence() == pytest.approx(apart(0.47, 0.05, 0.48), rel=1e-12)
    # The second client has fewer than five of label 0: it shows label 2 alone, the first shows 0 and 1.
    assert divergence(batches="balanced") == pytest.approx(apart(0.25, 0.25, 0.5), rel=1e-12)
    unequal = DrawnLabels.of(counts * [[3], [1]], target, by_samples=True)
    assert float(unequal.divergence(everybody)) == pytest.approx(apart(0.685, 0.075, 0.24), rel=1e-12)
    assert not unequal.convex


@settings(max_examples=25 if not FULL else 200, deadline=None)
@given(st.integers(0, 10**6))
def test_matched_labels_are_bounded_from_below_and_usually_exactly(seed):
    random = np.random.default_rng(seed)
    counts = random.multinomial(60, random.dirichlet(np.full(4, 0.3)), size=5)
    labels = DrawnLabels.of(counts, random.integers(1, 50, 4), batches="target", max_repeat=2.0)
    selected = random.random(5) < 0.6
    selected[0] = True
    exact = labels.exact_divergence(selected)
    assert float(labels.divergence(selected)) <= exact + 1e-7
    assert exact == pytest.approx(match_labels(counts[selected], labels.target, max_repeat=2.0).divergence)
    g = random.normal(size=4)  # any plane is below the divergence
    plane = labels.scores(g[None])[0][selected].mean() - np.log(np.exp(g) @ labels.target)
    assert plane <= exact + 1e-7


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 3), st.floats(0, 0.9), st.floats(0, 2), st.integers(1, 4), st.floats(0.1, 10))
def test_tangents_are_nowhere_above_the_error_and_touch_it(slowed, pruning, divergence, clients, scarcity):
    """For plans with the same clients in all rounds; ``test_forecast_tangent`` has the others."""
    objective = ForecastTangent(Problem.of(city(4)), BUILT_IN, slowed)
    fixed = objective.fixed
    features = PlanFeatures(1, 1, scarcity / clients, pruning, divergence, few_at_once=1 / clients)
    error = fixed.error(features)

    def tangent(objective: ForecastTangent) -> float:
        return (objective.constant + objective.few_weight / clients + fixed.few_clients * features.few_clients
                + objective.label_weight * divergence + objective.pruning_weight * pruning)

    assert tangent(objective) <= error * (1 + 1e-12)
    touching = fixed.slowed(features)
    assert tangent(ForecastTangent(objective.problem, BUILT_IN, touching)) == pytest.approx(error, rel=1e-12)


@pytest.mark.parametrize("seed", range(200 if FULL else 3))
def test_the_relaxation_is_below_every_selection_and_deadline(seed):
    random = np.random.default_rng(seed)
    batches = ("as_is", "balanced", "target")[seed % 3]
    scenario = city(int(random.integers(2, 9)), f"learning.batches={batches}", "learning.local_steps=8", seed=seed)
    task = forecast_task(scenario, 12)
    problem, curves = task.problem, task.kinds[-1].curves
    listed = Enumeration(task, curves, all_selections(problem.size), problem.delay_s)
    bound = LabelBound(task, curves, task.objective.pooled.convex, listed.worths)
    for _ in range(2):
        mu, nu = 10.0 ** random.uniform(-4, -1, 2) * 12 / (problem.energy_j, problem.delay_s)
        priced = listed.price(mu, nu)
        least = float((priced.columns.cost + mu * priced.columns.energy + nu * priced.columns.deadline).min())
        proven = bound.at(mu, nu, least * 1.001)
        assert proven <= least * (1 + 1e-9)
        if batches != "target" and bound.at(mu, nu, 0.9 * least) < 0.9 * least:
            pytest.fail("the relaxation is too weak to be of use")


@pytest.mark.parametrize("seed", range(200 if FULL else 3))
def test_a_certificate_by_relaxation_is_never_above_the_enumerations_plan(seed, monkeypatch):
    random = np.random.default_rng(seed)
    scenario = city(int(random.integers(3, 11)), "learning.local_steps=8", seed=seed,
                    energy_j=float(random.uniform(1.0, 6.0)))
    task = forecast_task(scenario, int(random.integers(8, 15)))
    exact = solve_forecast(task, SolverSettings())
    monkeypatch.setattr(oracles, "ENUMERATED_CLIENTS", 0)
    relaxed = solve_forecast(task, SolverSettings())
    if exact is None:
        assert relaxed is None
        return

    def judged_alone(solution: ForecastSolution) -> float:
        """The error if each round is judged as if all rounds had its clients: the tangent at the plan's own z."""
        touching = replace(task.objective, slowed=task.objective.fixed.slowed(solution.features))
        return replace(task, objective=touching).value(solution.segments)

    for ours, other in ((exact, exact), (exact, relaxed), (relaxed, exact), (relaxed, relaxed)):
        assert ours.least_error <= judged_alone(other) * (1 + 1e-9)
        assert other.error <= judged_alone(other) * (1 + 1e-9)
    assert exact.least_error <= exact.error
    assert exact.gap < 2e-3
    assert relaxed.gap < 0.05


def test_rounds_and_local_steps_are_as_good_as_those_of_a_full_grid():
    scenario = city(4, "learning.local_steps=auto", "rounds=24", *OWN_WEIGHTS)
    tasks = [Task.of(Problem.of(scenario).with_learner(steps, 32), SAME_CLIENTS).with_rounds(rounds)
             for steps in (8, 32, 64) for rounds in (8, 12, 16, 20)]

    def error(task: Task, chosen: np.ndarray) -> float:
        """The least error of a plan in which these clients take part in all rounds."""
        composed = compose(task, Composition(tuple(Part(k, chosen, kind.rounds) for k, kind in enumerate(task.kinds))))
        return np.inf if composed is None else task.objective.fixed.error(
            plan_features(task.problem, composed.segments))

    answer = plan(scenario, scheme=SAME_CLIENTS)
    assert answer.forecast.error <= 1.002 * min(error(task, chosen) for task in tasks for chosen in all_selections(4))
    assert answer.gap < 1e-3
    assert Problem.of(scenario).with_rounds(answer.rounds).violation(answer.segments) < 1e-9
    # With turns more is possible, also more than with plans that mix clients without looking at all rounds together.
    turns = plan(scenario, scheme="forecast")
    mixed = min(solution.error for task in tasks if (solution := solve_forecast(task, SolverSettings())) is not None)
    assert turns.forecast.error <= 1.002 * mixed < answer.forecast.error
    assert Problem.of(scenario).with_rounds(turns.rounds).violation(turns.segments) < 1e-9


def test_rounds_and_local_steps_are_the_best_where_everybody_must_prune_almost_as_much_as_allowed():
    scenario = Scenario.load("paper-mnist", ["mode=practical", "fleet.count=5", "budget.energy_j=31.25",
                                             "budget.delay_s=12"])
    answer = plan(scenario, scheme="forecast")
    learners = {steps: Task.of(Problem.of(scenario).with_learner(steps, 32), scheme_of("forecast"))
                for steps in (8, 16, 32)}
    least = min(solution.error for task in learners.values() for rounds in range(12, 30, 2)
                if (solution := solve_forecast(task.with_rounds(rounds), SolverSettings())) is not None)
    assert answer.forecast.error <= least * 1.002


def test_more_rounds_with_fewer_clients_are_found():
    """Forty clients: the first grid's best draft has 53 rounds of 14 clients, and 60 rounds of 12 are better."""
    scenario = Scenario.load("city", ["rounds=60", "budget.energy_j=600", "budget.delay_s=80", "mode=practical",
                                      "learning.local_steps=8"])
    task = Task.of(Problem.of(scenario), scheme_of("forecast"))
    errors = {rounds: solve_forecast(task.with_rounds(rounds), SolverSettings()).error for rounds in (52, 60)}
    assert plan(scenario, scheme="forecast").forecast.error <= 1.002 * min(errors.values())


def test_a_number_of_rounds_that_is_never_reached_does_not_matter():
    answers = [plan(city(5, "learning.local_steps=1", *OWN_WEIGHTS, f"rounds={most}"), scheme="forecast")
               for most in (150, 190, 240)]
    assert max(answer.rounds for answer in answers) < 150
    errors = [answer.forecast.error for answer in answers]
    assert max(errors) <= min(errors) * 1.004


def test_a_plan_says_what_it_forecasts_and_what_is_certified():
    answer = plan(city(5, "learning.local_steps=auto", "learning.upload_bits=auto", *OWN_WEIGHTS,
                       "forecast.ranges.rounds=[1, 2]", "forecast.spread=0.1", "forecast.origin=a pilot"),
                  scheme="forecast")
    assert answer.objective == "forecast"
    assert answer.upload_bits in (32, 8, 4)
    text = str(answer)
    assert text.startswith(f"Forecast accuracy: {100 * answer.forecast.accuracy:.2f} % (")
    assert "Warning: outside the range that the forecast was fitted to: the rounds." in text
    assert f"no plan of {answer.rounds} rounds with {answer.local_steps} local steps and" in " ".join(text.split())
    assert answer.forecast.origin == "a pilot"
    # ln(error) is normal: 90 % lie within 1.645 standard deviations.
    assert 1 - answer.forecast.low == pytest.approx(answer.forecast.error * np.exp(0.1645), rel=1e-3)
    again = Plan.from_dict(answer.to_dict())
    assert again.forecast == answer.forecast
    assert again.gap == answer.gap
    assert again.upload_bits == answer.upload_bits


def test_auto_chooses_inside_of_what_the_pilot_has_seen():
    fitted = FittedForecast(BUILT_IN.forecast, "here", ranges={"local_steps": (2.0, 8.0)})
    assert fitted.seen("local_steps", (1, 2, 4, 8, 16)) == (2, 4, 8)
    assert fitted.seen("upload_bits", (32, 8)) == (32, 8)
    assert fitted.interval(0.02) is None


@pytest.mark.parametrize(("how", "check"), [
    ({"scheme": "forecast", "selection": "everybody"}, lambda s: s.selected.all()),
    ({"scheme": "all_clients", "objective": "forecast"}, lambda s: s.selected.all()),
    ({"scheme": "no_pruning", "objective": "forecast"}, lambda s: not s.pruning_ratio.any()),
])  # fmt: skip
def test_restrictions_can_be_planned_by_the_forecast(how, check):
    scenario = city(5, "learning.local_steps=auto")
    answer, free = plan(scenario, **how), plan(scenario, scheme="forecast")
    assert all(check(segment) for segment in answer.segments)
    # Rounds with different clients are not searched for unless that gains more than 0.2 %, and a gap may be 0.1 %.
    assert answer.forecast.error >= free.forecast.error * (1 - 3e-3)
    assert answer.gap < 1e-2  # without pruning nothing fills up the part of a round that is left
    single = plan(scenario.with_overrides(["learning.local_steps=1"]), **how)
    assert {segment.local_steps for segment in single.segments} == {1}
    assert single.forecast.error > answer.forecast.error


def test_without_labels_the_divergence_is_zero():
    scenario = city(4, "learning.local_steps=4", "bound.aggregation=mean")
    clients = [{key: value for key, value in client.items() if key != "label_counts"} | {"phi": 1.0}
               for client in scenario.to_dict()["clients"]]
    bare = Scenario.from_dict({key: value for key, value in scenario.to_dict().items() if key != "target_counts"}
                              | {"clients": clients})
    for scheme, gap in ((SAME_CLIENTS, 2e-3), ("forecast", 2e-2)):
        answer = plan(bare, scheme=scheme)
        features = plan_features(Problem.of(bare), answer.segments)
        assert features.divergence == features.divergence_at_once == 0.0
        assert answer.gap < gap


def test_more_of_a_budget_is_never_worse():
    errors = [plan(city(4, "learning.local_steps=auto", energy_j=energy), scheme="forecast").forecast.error
              for energy in (1.0, 2.0, 4.0)]
    assert all(more <= less * (1 + 1e-3) for less, more in pairwise(errors))


@pytest.mark.parametrize(("override", "message"), [
    ("forecast.start=-1", "forecast.start: must be at least 0"),
    ("forecast.ranges.rounds=[3, 2]", "forecast.ranges.rounds: must be [least, largest], with the "
     "smaller value first; got [3, 2]"),
    ("forecast.flor=0.1", "forecast.flor: "),
])  # fmt: skip
def test_wrong_weights_are_named(override, message):
    weights = [f"forecast.{name}={value}" for name, value in WEIGHTS.items()]
    with pytest.raises(InputError) as caught:
        city(3, *weights, override)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("overrides", "warned"), [
    (["mode=practical"], False), (["mode=repaired"], True), (["mode=practical", "learning.schedule=constant"], True),
    (["mode=repaired", "forecast.like=lenet5-mnist"], True),
    (["mode=repaired", *OWN_WEIGHTS], False),
])
def test_a_built_in_forecast_warns_where_the_learner_is_not_the_one_it_was_fitted_to(overrides, warned):
    scenario = Scenario.load("paper-mnist", overrides)
    problem = Problem.of(scenario)
    everybody = segment(100, [1] * scenario.size, [0.0] * scenario.size)
    forecast = PlanForecast.of(scenario.fitted_forecast(), plan_features(problem, [everybody]))
    assert ("learner" in forecast.outside) == warned
    assert ("optimiser" in forecast.warning) == warned


@pytest.mark.parametrize(("samples", "warned"), [(600, True), (1250, False), (6000, False), (9000, True)])
def test_a_built_in_forecast_warns_where_clients_have_far_more_or_less_data(samples, warned):
    scenario = Scenario.load("paper-mnist", ["mode=practical"])
    scenario = scenario.with_labels(np.full((scenario.size, 10), samples // 10), np.full(10, 1000))
    assert scenario.fitted_forecast().unlike == (("samples",) if warned else ())
