"""A range test of the learning rate: short trainings at several rates; the rate with the smallest loss on validation
samples wins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedgap.config import Experiment
from fedgap.errors import InputError
from fedgap.planning import Plan, Segment
from fedgap.running.loop import Rounds
from fedgap.running.prepare import divide, make_job

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The clients' learning rates that are tried, in steps of half a decade."""
VALIDATION = 0.1
"""The share of the training samples that is held out if the experiment holds out none."""
MOST_CLIENTS = 10
"""Maximum number of clients per round; the best rate depends on model and optimiser, not on the fleet."""
AMPLE = 1e12
"""A budget, in joules or seconds, that no range test uses up."""


@dataclass(frozen=True)
class RateSearch:
    """The result of a range test of the learning rate."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Loss on the validation samples after the last round, for each rate; infinite if the training diverged."""
    rounds: int
    samples: int
    """Number of validation samples."""

    @property
    def best(self) -> float:
        """The rate with the smallest loss."""
        return self.rates[int(np.argmin(self.losses))]


def find_rate(experiment: Experiment, *, rates: tuple[float, ...] = RATES, rounds: int = 20) -> RateSearch:
    """Train without pruning from the same initial weights at each rate, with the experiment's learner, and return all
    losses.

    The loss is measured on samples held out of the training data (``data.validation``, or a tenth); the test set is not
    used. All clients take part, or ten of them, evenly spaced. All rates are trained in one computation."""
    held_out = experiment.data.validation or VALIDATION
    short = experiment.with_overrides([
        f"data.validation={held_out}", f"rounds={rounds}", f"budget.energy_j={AMPLE}", f"budget.delay_s={AMPLE}",
        f"evaluate_every={rounds}", "stop=",
    ])
    dataset, parts, scenario = divide(short)
    assert dataset.validation_x is not None
    assert dataset.validation_y is not None
    fleet = scenario.fleet()
    selected = np.zeros(scenario.size, dtype=np.bool_)
    selected[np.linspace(0, scenario.size - 1, min(scenario.size, MOST_CLIENTS)).round().astype(int)] = True
    everybody = Segment(rounds, selected, np.zeros(scenario.size), fleet.max_power_w, fleet.max_frequency_hz,
                        local_steps=scenario.learning.usual_local_steps)
    plan = Plan(status="feasible", scheme="range test", solver="", rounds=rounds, segments=(everybody,), theta=math.inf,
                terms={}, energy_j=0.0, delay_s=0.0)
    job = replace(make_job(short, scenario, plan, dataset, parts), stop={})
    training = Rounds([replace(job, learning_rate=rate) for rate in rates], dataset)
    for _ in range(rounds):
        training.step()
    weights = torch.stack([training.shipped(row) for row in range(len(rates))])
    found = training.engine.evaluate(weights, training.model.buffers, dataset.validation_x, dataset.validation_y)
    losses = tuple(float(test.loss) if math.isfinite(test.loss) else math.inf for test in found)
    if not any(map(math.isfinite, losses)):
        raise InputError(f"learning.rate: training diverged at all rates tried, {rates[0]:g} to {rates[-1]:g}; set a "
                         "smaller one yourself")
    return RateSearch(rates, losses, rounds, len(dataset.validation_y))
