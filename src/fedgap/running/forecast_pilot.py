"""The pilot of a forecast: short trainings that differ in all that the forecast knows, stacked, and judged on
validation samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Bools
from fedgap.config import Experiment, Scenario
from fedgap.planning import Plan, Segment
from fedgap.running.job import Job
from fedgap.running.rate_search import AMPLE, VALIDATION
from fedgap.streams import stream

LOCAL_STEPS = (1, 2, 4, 8, 16, 32)
LARGEST_TO_LEAST = 30.0
"""The samples of the pilot's largest run over those of its smallest: rounds must differ for their worth to be seen."""
FEWEST_ROUNDS = 6
SHARE_OF_FEWEST = 0.12
"""The fewest clients of a pilot run, as a share of the fleet (but at least three)."""
UNPRUNED_SHARE, WIDE_SHARE = 0.4, 0.8
"""The shares of runs without pruning, and with 32-bit uploads."""


@dataclass(frozen=True, eq=False)
class PilotRun:
    """One short training: who, for how many rounds and local steps, pruned how much, with which uploads."""

    rounds: int
    local_steps: int
    upload_bits: int
    pruning: float
    """λ of every selected client from the second round on."""
    selected: Bools

    def overrides(self) -> list[str]:
        """What an experiment changes for this run."""
        return [f"rounds={self.rounds}", f"learning.local_steps={self.local_steps}",
                f"learning.upload_bits={self.upload_bits}"]


def design(scenario: Scenario, samples: float, *, runs: int, seed: int) -> list[PilotRun]:
    """Pilot runs that process at most ``samples`` training samples together.

    The runs' sizes grow geometrically, so that a few reach far and most are cheap. Local steps take turns; numbers of
    clients are log-uniform, clients uniform, and pruning ratios uniform where a run prunes at all.
    """
    random = stream(seed, "pilot", 1)
    sizes = np.geomspace(1.0, LARGEST_TO_LEAST, runs)
    sizes = random.permutation(sizes * samples / sizes.sum())
    largest = max(scenario.learning.batch_size, 1)
    fewest = min(scenario.size, max(3, math.ceil(SHARE_OF_FEWEST * scenario.size)))
    designed = []
    for number, size in enumerate(sizes):
        count = int(round(np.exp(random.uniform(np.log(fewest), np.log(scenario.size)))))
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


def pilot_experiment(experiment: Experiment) -> Experiment:
    """The experiment with budgets that no pilot spends, and with samples held out of the training data."""
    held_out = experiment.data.validation or VALIDATION
    return experiment.with_overrides([f"data.validation={held_out}", f"budget.energy_j={AMPLE}",
                                      f"budget.delay_s={AMPLE}", "stop="])


def pilot_plan(run: PilotRun, scenario: Scenario) -> Plan:
    """The run as a plan at full powers and clocks; its first round is unpruned where the scenario says so."""
    fleet = scenario.fleet()
    dense = 1 if scenario.pruning.dense_first else 0
    ratio = np.where(run.selected, run.pruning, 0.0)
    limits = (np.where(run.selected, fleet.max_power_w, 0.0), np.where(run.selected, fleet.max_frequency_hz, 0.0))
    segments = [Segment(count, run.selected, ratios, *limits, local_steps=run.local_steps)
                for count, ratios in ((dense, np.zeros_like(ratio)), (run.rounds - dense, ratio)) if count]
    return Plan(status="feasible", scheme="pilot", solver="", rounds=run.rounds, segments=tuple(segments),
                theta=math.inf, terms={}, energy_j=0.0, delay_s=0.0)


def samples_processed(job: Job) -> int:
    """Training samples of all gradients of a run: Σ over its rounds and selected clients of τ·Z_n."""
    return int((job.selected[job.schedule] * job.batch_size).sum()) * job.local_steps
