"""The range test for the learning rate."""

import math

import pytest

from fedgap.config import Experiment, Scenario
from fedgap.running.calibrate import calibrate
from fedgap.running.rate_search import find_rate

SMALL = ["model.name=mlp", "data.train_samples=600", "engine.threads=1", "engine.device=cpu", "mode=practical",
         "partition.target_size=20", "learning.local_steps=2"]


def test_the_least_validation_loss_decides_and_extremes_lose():
    search = find_rate(Experiment.load("embedded", SMALL), rates=(1e-7, 0.03, 1e4), rounds=6)
    assert search.best == 0.03
    assert search.samples == 60
    assert search.losses[0] == pytest.approx(math.log(10), abs=1.2)  # such a rate leaves the initial model
    assert search.losses[1] < 0.7 * search.losses[0]
    assert search.losses[2] > search.losses[0]


def test_the_test_set_has_no_part_in_it():
    """Other test samples do not change a loss."""
    experiment = Experiment.load("embedded", SMALL)
    losses = find_rate(experiment, rates=(0.01, 0.03), rounds=2).losses
    other = experiment.with_overrides(["data.test_samples=500"])
    assert find_rate(other, rates=(0.01, 0.03), rounds=2).losses == losses


def test_calibrate_writes_the_rate(tmp_path):
    experiment = Experiment.load("embedded", SMALL)
    measured = calibrate(experiment, pilots=1, steps=2, forecast=False)
    assert measured.scenario.learning.rate == measured.rate.best
    assert "Range test of the learning rate" in str(measured)
    measured.save(tmp_path / "s.yaml")
    assert "learning.rate:" in (tmp_path / "s.yaml").read_text()
    assert Scenario.load(tmp_path / "s.yaml").learning.rate == measured.rate.best
    assert calibrate(experiment, pilots=1, steps=2, rate=False).rate is None
