"""Is the bound a good guide? Random feasible plans, their θ under every reading, and the accuracy that they reach.

    python -m tools.guide                judges the plans in experiments/guide/results.json, and their picture
    python -m tools.guide --data DATA    makes the plans first, and trains those that have no record
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.config import Experiment
from fedgap.evidence.reproduce import train_new, write
from fedgap.evidence.training import training_key
from fedgap.evidence.workshop import Workshop
from fedgap.learning.data import Dataset
from fedgap.planning import Plan, Segment
from fedgap.planning.objectives.measured_guide import DIVERGENCE, FEW_CLIENTS, PRUNING
from fedgap.planning.problem import Problem
from fedgap.running.job import Job
from fedgap.running.prepare import divide, prepare
from fedgap.statistics import Interval, interval
from fedgap.streams import stream
from fedgap.theory import divergence, smoothed
from tools import EXPERIMENTS

STATEMENTS = (("as_printed", "sum"), ("as_printed", "mean"), ("size_normalised", "sum"), ("size_normalised", "mean"),
              ("size_normalised", "mixture"))
"""How φ is computed from histograms, and how it enters θ."""
READINGS = tuple(itertools.product(STATEMENTS, ("theorem", "secant"), ("printed", "corrected")))
_LEAST_ROUNDS = 30
SIGMAS, SEEDS, PLANS = (5.0, 0.3), tuple(range(100, 110)), 20
"""The Dirichlet parameters, the seeds, and the number of plans for each pair of both."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One random plan: its job, and the quantities that could have predicted its accuracy."""

    facts: dict[str, Any]
    job: Job
    key: str


def reading_name(reading: tuple[tuple[str, str], str, str]) -> str:
    """The name of a reading, such as ``size_normalised mixture, secant, corrected``."""
    (statement, aggregation), sensitivity, constants = reading
    return f"{statement} {aggregation}, {sensitivity}, {constants}"


def samples(experiment: Experiment, dataset: Dataset, count: int) -> Iterator[Sample]:
    """Draw ``count`` random plans within the experiment's budgets, each with its θ under every reading.

    The number of clients is uniform over 1..N, and the clients are drawn uniformly; pruning ratios are within 0.1 of
    each other around a uniform level; powers are log-uniform over two decades below the maximum, frequencies uniform
    over the upper half of their range. The number of rounds is a uniform share, between a half and all, of what the
    budgets allow. Round 0 is unpruned."""
    divided = divide(experiment, dataset)
    problems = {}
    for reading in READINGS:
        (statement, aggregation), sensitivity, constants = reading
        changed = experiment.with_overrides([f"statement={statement}", f"aggregation={aggregation}",
                                             f"sensitivity={sensitivity}", f"constants={constants}"])
        problems[reading_name(reading)] = Problem.of(divide(changed, dataset)[2])
    problem, (_, parts, scenario) = Problem.of(divided[2]), divided
    target = smoothed(np.asarray(scenario.target_counts))
    for number in range(count):
        segments = _draw(problem, np.random.Generator(stream(experiment.seed, "pilot", 7, number).bit_generator))
        rounds = sum(segment.rounds for segment in segments)
        shortened = experiment.with_overrides([f"rounds={rounds}"])
        shortened_divided = divide(shortened, dataset)
        plan = Plan("feasible", "proposed", "random", rounds, segments, np.inf, {}, problem.energy(segments),
                    problem.delay(segments), scenario_hash=shortened_divided[2].hash())
        job = prepare(shortened, plan, dataset, divided=shortened_divided).job
        main = segments[-1]
        pooled = parts.label_counts[main.selected].sum(axis=0)
        theta = {name: float(f"{p.with_rounds(rounds).objective(segments).theta:.6g}") for name, p in problems.items()}
        facts: dict[str, Any] = {"seed": experiment.seed, "sigma": experiment.partition.concentration, "plan": number,
                 "run": training_key(job), "rounds": rounds, "clients": int(main.selected.sum()),
                 "pruning_ratio": round(float(main.pruning_ratio[main.selected].mean()), 4),
                 "pooled_divergence": float(f"{divergence(smoothed(pooled), target):.5g}"), "theta": theta}
        yield Sample(facts, job, facts["run"])


def _draw(problem: Problem, random: np.random.Generator) -> tuple[Segment, ...]:
    while True:
        size, fleet = problem.size, problem.fleet
        selected = np.zeros(size, dtype=np.bool_)
        selected[random.choice(size, random.integers(1, size + 1), replace=False)] = True
        level = random.uniform(0.0, 1.0) * fleet.max_ratio
        ratio = np.clip(level + random.uniform(-0.05, 0.05, size), 0.0, fleet.max_ratio)
        power = fleet.max_power_w * 10.0 ** random.uniform(-2.0, 0.0, size)
        frequency = fleet.max_frequency_hz * random.uniform(0.5, 1.0, size)
        share = random.uniform(0.5, 1.0)
        zeroed = [np.where(selected, values, 0.0) for values in (ratio, power, frequency)]
        dense = Segment(1, selected, np.zeros(size), *zeroed[1:])
        one_round = Segment(1, selected, *zeroed)
        left = (problem.energy_j - problem.energy([dense]), problem.delay_s - problem.delay([dense]))
        most = int(min(left[0] / problem.energy([one_round]), left[1] / problem.delay([one_round])))
        rounds = int(share * most)
        if rounds >= _LEAST_ROUNDS:
            return dense, Segment(rounds, selected, *zeroed)


DEFAULT = "size_normalised mixture, secant, corrected"
"""The reading of θ in the mode ``repaired``."""
MEASURED, NO_LABELS = "measured: (1 + 10·KL + 1/k + λ/5)/R", "the same without labels: (1 + 2/k + λ/5)/R"
WEIGHTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Weights of the divergence that are tried, to show how much the choice matters."""


def measured(facts: dict[str, Any], weight: float = DIVERGENCE) -> float:
    """The objective of the scheme ``measured`` for a plan."""
    few, pruned = FEW_CLIENTS / facts["clients"], PRUNING * facts["pruning_ratio"]
    return float((1.0 + weight * facts["pooled_divergence"] + few + pruned) / facts["rounds"])


def predictors(facts: dict[str, Any]) -> dict[str, float]:
    """Quantities that might predict the accuracy of a plan, each the smaller the better: θ by reading, and simpler
    guides."""
    work = facts["rounds"] * facts["clients"]
    without = 1.0 + 2.0 * FEW_CLIENTS / facts["clients"] + PRUNING * facts["pruning_ratio"]
    return {**facts["theta"], "fewest rounds last (−R)": -facts["rounds"],
            "fewest samples last (−R·k)": -work,
            "fewest kept weights last (−R·k·(1 − λ))": -work * (1.0 - facts["pruning_ratio"]),
            "pooled divergence": facts["pooled_divergence"], "fewest clients last (−k)": -facts["clients"],
            "mean pruning ratio": facts["pruning_ratio"], MEASURED: measured(facts),
            NO_LABELS: without / facts["rounds"]}


Guide = Callable[[dict[str, Any]], float]


def named(name: str) -> Guide:
    """The guide with this name among ``predictors``."""
    return lambda facts: predictors(facts)[name]


def _by_seed(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["seed"], []).append(row)
    return list(groups.values())


def ranks(rows: Sequence[dict[str, Any]], guide: Guide) -> list[float]:
    """Spearman's rank correlation of a guide with the error 1 − accuracy among the plans of each seed (of one σ).

    1 would be a perfect guide, 0 a useless one.
    """
    from scipy.stats import spearmanr

    correlations = []
    for group in _by_seed(rows):
        values = [guide(row) for row in group]
        error = [1.0 - row["accuracy"] for row in group]
        correlations.append(float(spearmanr(values, error).statistic) if len(set(values)) > 1 else 0.0)
    return correlations


def regrets(rows: Sequence[dict[str, Any]], guide: Guide) -> list[float]:
    """For each seed, how many points the plan that the guide ranks first is below the best accuracy."""
    return [100.0 * (max(row["accuracy"] for row in group) - min(group, key=guide)["accuracy"])
            for group in _by_seed(rows)]


def left_out(rows: Sequence[dict[str, Any]]) -> dict[float, list[float]]:
    """Rank correlations by σ of the measured guide when its weight is chosen, for each seed, on the other seeds
    only."""
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    table = {weight: {sigma: ranks([row for row in rows if row["sigma"] == sigma],
                                   partial(measured, weight=weight)) for sigma in sigmas}
             for weight in WEIGHTS}
    seeds = range(len(table[WEIGHTS[0]][sigmas[0]]))

    def others(weight: float, seed: int) -> float:
        return sum(value for sigma in sigmas for i, value in enumerate(table[weight][sigma]) if i != seed)

    chosen = [max(WEIGHTS, key=partial(others, seed=seed)) for seed in seeds]
    return {sigma: [table[chosen[seed]][sigma][seed] for seed in seeds] for sigma in sigmas}


def judged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each σ, the rank correlation of every guide, and the measured guide compared with θ, with 95 % intervals."""
    held, blocks = left_out(rows), []
    for sigma in dict.fromkeys(row["sigma"] for row in rows):
        sigma_rows = [row for row in rows if row["sigma"] == sigma]
        values = {name: ranks(sigma_rows, named(name)) for name in predictors(sigma_rows[0])}
        better = [a - b for a, b in zip(values[MEASURED], values[DEFAULT], strict=True)]
        blocks.append({
            "title": f"σ = {sigma:g}: {len(sigma_rows)} plans, {len(better)} seeds", "sigma": sigma,
            "of": {name: _written(interval(correlations)) for name, correlations in values.items()},
            "measured_less_theta": _written(interval(better)),
            "measured_weight_from_other_seeds": _written(interval(held[sigma])),
            "missed_points": {name: _written(interval(regrets(sigma_rows, named(name))))
                              for name in (DEFAULT, MEASURED)}})
    return blocks


def _written(value: Interval) -> dict[str, float]:
    assert value.half is not None
    return {"mean": float(f"{value.mean:.4g}"), "half": float(f"{value.half:.3g}")}


def plans(shop: Workshop) -> list[dict[str, Any]]:
    """Make and train the random plans for all of :data:`SIGMAS` and :data:`SEEDS`; returns each with the accuracy that
    it reaches."""
    drawn: list[Sample] = []
    for sigma, seed in itertools.product(SIGMAS, SEEDS):
        case = Experiment.load("mnist", [f"seed={seed}", f"partition.concentration={sigma}", "evaluate_every=1000"])
        drawn += samples(case, shop.dataset("mnist"), PLANS)
        print(f"σ = {sigma:g}, seed {seed}: {PLANS} plans", flush=True)
    jobs = {sample.key: sample.job for sample in drawn if sample.key not in shop.store}
    for number, _ in enumerate(train_new(jobs, "mnist", shop), 1):
        print(f"{number} of {len(jobs)} trained", flush=True)
    return [sample.facts | {"accuracy": shop.store[sample.key]["test_accuracy"][-1]} for sample in drawn]


def main(arguments: Sequence[str]) -> int:
    """Judge the committed plans again from their accuracies and θ; with --data, make and train them first."""
    from tools.guide_picture import draw_guide

    parser = argparse.ArgumentParser(prog="python -m tools.guide", description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder of MNIST's files")
    parser.add_argument("--out", type=Path, default=EXPERIMENTS)
    given = parser.parse_args(arguments)
    path = given.out / "guide" / "results.json"
    results = json.loads((EXPERIMENTS / "guide" / "results.json").read_text(encoding="utf-8"))
    if given.data is not None:
        results["rows"] = plans(Workshop(given.out, "paper", given.data, workers=1))
    results["correlations"] = judged(results["rows"])
    write(results, path)
    draw_guide(results, path.parent / "guide.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
