"""The pilot of a forecast: short trainings that vary everything that the forecast depends on, evaluated on validation
samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Bools
from fedgap.config import Experiment, Scenario
from fedgap.learning.data import Dataset
from fedgap.planning import Plan, Segment
from fedgap.planning.objectives.forecast_tangent import plan_features
from fedgap.planning.problem import Problem
from fedgap.running.job import Job
from fedgap.running.prepare import divide, make_job
from fedgap.running.rate_search import AMPLE, VALIDATION
from fedgap.running.train_stack import train_stack
from fedgap.streams import stream
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import PlanFeatures
from fedgap.theory.forecast_fit import FEWEST_RUNS, fit

RUNS = 32
"""Number of runs of a pilot."""
SHARE = 1.0
"""Training samples of a pilot, as a multiple of those of one run in which all clients take part in all rounds."""
AT_ONCE = 32
"""Maximum number of runs that are trained in one computation."""
LOCAL_STEPS = (1, 2, 4, 8, 16, 32)
LARGEST_TO_LEAST = 30.0
"""Samples of the largest run divided by those of the smallest, so that the effect of rounds can be estimated."""
FEWEST_ROUNDS = 6
SHARE_OF_FEWEST = 0.12
"""Minimum number of clients of a pilot run, as a share of the fleet (but at least three)."""
UNPRUNED_SHARE, WIDE_SHARE = 0.4, 0.8
"""The share of runs without pruning, and the share of runs with 32-bit uploads."""


@dataclass(frozen=True, eq=False)
class PilotRun:
    """One short training: its clients, rounds, local steps, pruning ratio and upload bits."""

    rounds: int
    local_steps: int
    upload_bits: int
    pruning: float
    """λ of every selected client from the second round on."""
    selected: Bools

    def overrides(self) -> list[str]:
        """The overrides that turn the experiment into this run."""
        return [f"rounds={self.rounds}", f"learning.local_steps={self.local_steps}",
                f"learning.upload_bits={self.upload_bits}"]


def design(scenario: Scenario, samples: float, *, runs: int, seed: int) -> list[PilotRun]:
    """Design pilot runs that together process at most ``samples`` training samples.

    The sizes of the runs grow geometrically, so that a few are long and most are cheap. The numbers of local steps
    alternate; the numbers of clients are log-uniform, the clients are drawn uniformly, and so are the pruning ratios of
    runs that prune."""
    random = stream(seed, "pilot", 1)
    sizes = np.geomspace(1.0, LARGEST_TO_LEAST, runs)
    sizes = random.permutation(sizes * samples / sizes.sum())
    largest = max(scenario.learning.batch_size, 1)
    fewest = _fewest_clients(scenario)
    designed = []
    for number, size in enumerate(sizes):
        count = round(float(np.exp(random.uniform(np.log(fewest), np.log(scenario.size)))))
        steps = LOCAL_STEPS[number % len(LOCAL_STEPS)]
        while steps > 1 and size / (largest * steps * count) < FEWEST_ROUNDS:
            steps //= 2
        while count > fewest and size / (largest * steps * count) < FEWEST_ROUNDS:
            count -= 1
        bits = 32 if random.random() < WIDE_SHARE else int(random.choice([8, 4]))
        pruning = 0.0 if random.random() < UNPRUNED_SHARE else random.uniform(0.0, scenario.pruning.max_ratio)
        chosen = np.isin(np.arange(scenario.size), random.choice(scenario.size, count, replace=False))
        rounds = int(size / (largest * steps * count))
        if rounds >= 2:
            designed.append(PilotRun(rounds, steps, bits, float(pruning), chosen))
    return designed


def least_samples(scenario: Scenario, runs: int) -> float:
    """The number of samples with which the smallest run of a design has two rounds."""
    sizes = np.geomspace(1.0, LARGEST_TO_LEAST, runs)
    return 2.0 * _fewest_clients(scenario) * scenario.learning.batch_size * float(sizes.sum())


def _fewest_clients(scenario: Scenario) -> int:
    return min(scenario.size, max(3, math.ceil(SHARE_OF_FEWEST * scenario.size)))


def pilot_experiment(experiment: Experiment) -> Experiment:
    """The experiment with unlimited budgets, and with validation samples held out of the training data."""
    held_out = experiment.data.validation or VALIDATION
    return experiment.with_overrides([f"data.validation={held_out}", f"budget.energy_j={AMPLE}",
                                      f"budget.delay_s={AMPLE}", "stop="])


def pilot_plan(run: PilotRun, scenario: Scenario) -> Plan:
    """The run as a plan with full powers and clocks. The first round is unpruned if the scenario has
    ``dense_first``."""
    fleet = scenario.fleet()
    dense = 1 if scenario.pruning.dense_first else 0
    ratio = np.where(run.selected, run.pruning, 0.0)
    limits = (np.where(run.selected, fleet.max_power_w, 0.0), np.where(run.selected, fleet.max_frequency_hz, 0.0))
    segments = [Segment(count, run.selected, ratios, *limits, local_steps=run.local_steps)
                for count, ratios in ((dense, np.zeros_like(ratio)), (run.rounds - dense, ratio)) if count]
    return Plan(status="feasible", scheme="pilot", solver="", rounds=run.rounds, segments=tuple(segments),
                theta=math.inf, terms={}, energy_j=0.0, delay_s=0.0)


def samples_processed(job: Job) -> int:
    """The number of training samples that a run processes: Σ over its rounds and selected clients of τ·Z_n."""
    return int((job.selected[job.schedule] * job.batch_size).sum()) * job.local_steps


@dataclass(frozen=True, eq=False)
class ForecastPilot:
    """The results of a pilot, and the forecast fitted to them."""

    fitted: FittedForecast
    features: tuple[PlanFeatures, ...]
    accuracies: tuple[float, ...]
    """Accuracy of each run on the validation samples after its last round."""
    samples: int
    """Number of training samples that the pilot processed."""
    full_run_samples: int
    """Number of training samples of one run in which all clients take part in all rounds of the scenario."""
    seconds: float
    validation_samples: int
    data: str
    interrupted: bool
    """Whether the pilot was stopped before its last run."""

    @property
    def cost(self) -> str:
        """The cost of the pilot, in words."""
        return (f"{len(self.features)} runs, {self.samples:,} training samples "
                f"({self.samples / self.full_run_samples:.0%} of a run with all clients and rounds), "
                f"{self.seconds:.0f} s")


def run_pilot(experiment: Experiment, *, share: float = SHARE, runs: int = RUNS, stand_in: str | None = None,
              done: Callable[[], None] | None = None) -> ForecastPilot:
    """Train a pilot and fit the forecast to its validation accuracies. The test set is not used.

    Ctrl-C ends the pilot; the finished runs are used if they are enough for a fit.

    :param share: training samples of the pilot, as a multiple of those of one run in which all clients take part in all
        rounds; more are used if some runs would otherwise have less than two rounds;
    :param runs: number of short trainings into which they are divided;
    :param stand_in: the name of another data set to train on, if the clients' data cannot be used;
    :param done: called after each run.
    """
    began = time.monotonic()
    wanted = pilot_experiment(experiment if stand_in is None else standing_in(experiment, stand_in))
    dataset, parts, scenario = divide(wanted)
    full = full_run_samples(scenario)
    designed = design(scenario, max(share * full, least_samples(scenario, runs)), runs=runs, seed=wanted.seed)
    jobs, features = [], []
    for run in designed:
        changed = wanted.with_overrides([*run.overrides(), f"evaluate_every={run.rounds}"])
        planned = changed.planning_scenario(parts.label_counts, dataset.label_counts()[1], parts.target_counts)
        plan = pilot_plan(run, planned)
        jobs.append(replace(make_job(changed, planned, plan, dataset, parts), stop={}))
        features.append(plan_features(Problem.of(planned), plan.segments))
    accuracies, interrupted = _train(jobs, _judged_on_validation(dataset), done or (lambda: None))
    finished = [position for position, accuracy in enumerate(accuracies) if accuracy is not None]
    if len(finished) < FEWEST_RUNS:
        raise KeyboardInterrupt
    samples = sum(samples_processed(jobs[position]) for position in finished)
    seen = [features[position] for position in finished]
    reached = [accuracy for accuracy in accuracies if accuracy is not None]
    where = f"{wanted.model.name} on {dataset.name}, {scenario.size} clients, {wanted.partition.kind} partition"
    origin = (f"fedgap calibrate: {len(finished)} pilot runs, {samples:,} samples of {where}"
              f"{' (a stand-in)' if stand_in else ''}")
    fitted = fit(seen, [1.0 - accuracy for accuracy in reached], origin=origin)
    assert dataset.validation_y is not None
    return ForecastPilot(fitted, tuple(seen), tuple(reached), samples, full, time.monotonic() - began,
                         len(dataset.validation_y), dataset.name, interrupted)


def full_run_samples(scenario: Scenario) -> int:
    """The number of training samples of a run in which all clients take part in all rounds."""
    fleet = scenario.fleet()
    return int(scenario.rounds * (fleet.local_steps * fleet.batch_size).sum())


def standing_in(experiment: Experiment, name: str) -> Experiment:
    """The experiment on another data set, with new random labels for its clients; a partition from a file is replaced
    by a Dirichlet one."""
    overrides = [f"data.name={name}", "data.folder=", "data.train_samples=", "data.test_samples="]
    if experiment.partition.kind == "file":
        overrides += ["partition.kind=dirichlet", "partition.file="]
    return experiment.with_overrides(overrides)


def _judged_on_validation(dataset: Dataset) -> Dataset:
    """The data set with the validation samples in place of the test set, so that the test set cannot be used."""
    assert dataset.validation_x is not None
    assert dataset.validation_y is not None
    return replace(dataset, test_x=dataset.validation_x, test_y=dataset.validation_y, validation_x=None,
                   validation_y=None)


def _train(jobs: Sequence[Job], dataset: Dataset, done: Callable[[], None]) -> tuple[list[float | None], bool]:
    """Train the jobs; returns each one's last accuracy (None if it was not trained), and whether Ctrl-C ended the
    training."""
    groups: dict[str, list[int]] = {}
    for position in sorted(range(len(jobs)), key=lambda position: jobs[position].rounds):
        groups.setdefault(jobs[position].kind, []).append(position)
    accuracies: list[float | None] = [None] * len(jobs)
    try:
        for group in groups.values():
            for start in range(0, len(group), AT_ONCE):
                together = group[start:start + AT_ONCE]
                events, _ = train_stack([jobs[position] for position in together], dataset)
                for position, evaluated in zip(together, events, strict=True):
                    accuracies[position] = float(evaluated[-1]["test_accuracy"])
                    done()
    except KeyboardInterrupt:
        return accuracies, True
    return accuracies, False
