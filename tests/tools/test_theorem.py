"""Both sides of the paper's inequalities along a real (tiny) training: measured, judged, and written."""

from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Experiment
from fedgap.learning.data import load
from fedgap.running.prepare import prepare
from tools.theorem import analyse, summary
from tools.trajectory import measure

SHORT = ["rounds=6", "budget.energy_j=3.75", "budget.delay_s=2.25", "evaluate_every=3", "engine.threads=1",
         "data.train_samples=400", "data.test_samples=100"]


@pytest.fixture(scope="module", params=["repaired", "as_printed"])
def measured(request):
    data = load("embedded", train_samples=400, test_samples=100)
    experiment = Experiment.load("embedded", [*SHORT, f"mode={request.param}"])
    job = replace(prepare(experiment, dataset=data).job, device="cpu")
    return request.param, job, measure("key", job, data, 2)


def test_a_trajectory_has_both_sides_at_every_second_round_and_the_last(measured):
    _, job, record = measured
    assert [row["round"] for row in record["rows"]] == [0, 2, 4, 5]
    for row in record["rows"]:
        assert row["clients"] == len(row["selected"])
        assert 0.0 <= row["pruned_norm2"] <= row["norm2"]
        assert len(row["client_train_norm"]) == len(job.sizes)
    assert record["start_loss"] > 1.0


def test_judgement_by_hand(measured):
    mode, job, record = measured
    found = analyse(record, job)
    assert (found["mode"], found["measured_rounds"]) == (mode, 4)
    assert found["mean_squared_gradient"] == pytest.approx(np.mean([r["test_norm2"] for r in record["rows"]]), rel=1e-3)
    for name in ("printed", "corrected"):
        assert found["orders_loose"][name] == pytest.approx(
            np.log10(found["theta"][name] / found["mean_squared_gradient"]), abs=2e-3)
    assert found["theta"]["corrected"] >= found["theta"]["printed"]
    kept = [r["pruned_norm2"] <= r["pruning_ratio"] * r["norm2"] for r in record["rows"] if r["pruning_ratio"] > 0.0]
    assert found["assumption4_held"] == pytest.approx(np.mean(kept), abs=1e-4)
    (entry,) = summary([found, found])
    assert entry["runs"] == 2
    assert entry["lemma_held"] == {"mean": found["lemma_held"], "half": 0.0}
