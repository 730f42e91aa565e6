"""The measured scheme: its objective by hand, its plans against other plans, and what it needs."""

from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning import PAPER_SCHEMES, Segment, plan
from fedgap.planning.problem import Problem
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from tests.planning.regimes import random_scenario

MEASURED = SCHEMES.load("measured")


def score(problem: Problem, segments: tuple[Segment, ...]) -> float:
    """(1 + mean over rounds of 10·KL + 1/k + λ̄/5)/R, from the histograms."""
    rounds = sum(s.rounds for s in segments)
    total = 0.0
    for s in segments:
        pooled, target = problem.label_counts[s.selected].sum(axis=0) + 1.0, problem.target_counts + 1.0
        p, q = pooled / pooled.sum(), target / target.sum()
        each = 10.0 * float((p * np.log(p / q)).sum()) + 1.0 / s.selected.sum() + s.pruning_ratio[s.selected].mean() / 5
        total += s.rounds / rounds * each
    return (1.0 + total) / rounds


@pytest.fixture(scope="module")
def tight() -> Scenario:
    """The paper's fleet, where a hundred rounds do not fit."""
    return Scenario.load("paper-mnist", ["rounds=100", "budget.delay_s=22", "budget.energy_j=40"])


@pytest.mark.full
def test_it_gives_rounds_up_for_clients_and_beats_the_papers_plans(tight: Scenario) -> None:
    problem, answer = Problem.of(tight), plan(tight, scheme="measured")
    assert answer.status == "optimal"
    assert answer.rounds < tight.rounds
    assert sum(s.rounds for s in answer.segments) == answer.rounds
    task = Task.of(problem.with_rounds(answer.rounds), MEASURED)
    assert task.problem.violation(answer.segments) <= 1e-9
    found = score(problem, answer.segments)
    assert task.value(answer.segments) == pytest.approx(found, rel=1e-9)
    assert answer.theta == pytest.approx(problem.with_rounds(answer.rounds).objective(answer.segments).theta)
    for rounds in (answer.rounds - 10, answer.rounds, answer.rounds + 2):
        for name in ("proposed", "all_clients"):
            other = plan(tight.with_overrides([f"rounds={rounds}"]), scheme=name)
            if other.feasible and other.rounds == rounds:
                assert score(problem, other.segments) >= found * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_no_random_plan_scores_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, 4, 12, aggregation="mixture", spread=1.5, near=3.0)
    problem, answer = Problem.of(scenario), plan(scenario, scheme="measured")
    found, fleet = score(problem, answer.segments), problem.fleet
    tried = 0
    for _ in range(300):
        selected = rng.random(4) < 0.6
        if not selected.any():
            continue
        ratio = np.where(selected, rng.uniform(0.0, 1.0) * fleet.max_ratio, 0.0)
        speed = np.where(selected, 10.0 ** rng.uniform(-1.0, 0.0), 0.0)
        one = Segment(1, selected, ratio, speed * fleet.max_power_w, speed * fleet.max_frequency_hz)
        most = int(min(problem.energy_j / problem.energy([one]), problem.delay_s / problem.delay([one]), 12))
        if most > 0:
            tried += 1
            assert score(problem, (replace(one, rounds=most),)) >= found * (1 - 1e-6)
    assert tried > 0


def test_without_labels_the_number_of_clients_stands_for_them() -> None:
    scenario = random_scenario(np.random.default_rng(1), 5, 50, aggregation="mean")
    problem = Problem.of(scenario)
    answer = plan(scenario, scheme="measured")
    task = Task.of(problem.with_rounds(answer.rounds), MEASURED)
    by_hand = 1.0 + sum(s.rounds / answer.rounds * (2.0 / s.selected.sum() + s.pruning_ratio[s.selected].mean() / 5)
                        for s in answer.segments)
    assert task.value(answer.segments) == pytest.approx(by_hand / answer.rounds, rel=1e-9)


def test_it_is_no_scheme_of_the_papers_and_not_for_its_algorithm(tight: Scenario) -> None:
    assert list(SCHEMES.built_in) == [*PAPER_SCHEMES, "measured", "forecast"]
    with pytest.raises(InputError, match="must be exact"):
        plan(tight, scheme="measured", solver="alternating")
