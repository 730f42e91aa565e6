"""A deployment's plan beside what its nodes measured."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedgap import Scenario
from fedgap.config.yaml_files import write_document
from fedgap.errors import InputError
from fedgap.running import planned_measured

EVENT = {"round": 0, "clients": [0, 1], "client_measured_s": [3.0, None], "client_uploaded_bytes": [110, None],
         "delay_s": 2.0, "measured_s": 5.0}


@pytest.fixture
def run(monkeypatch):
    """Two nodes, one round: node 0 planned 1 s and 100 bytes, measured 3 s and 110 bytes; node 1 never answered."""
    job = SimpleNamespace(names=("kitchen", "shed"), schedule=np.array([0]), compute_s=np.array([[1.0, 4.0]]),
                          kept_share=np.array([[0.5, 1.0]]), gradient_bits=np.full(2, 1600.0),
                          upload_bits=32)
    history = [EVENT]
    monkeypatch.setattr(planned_measured, "Run", lambda folder: SimpleNamespace(trained_job=job, history=history))
    return history


def test_each_node_has_its_ratio(run, tmp_path):
    kitchen, shed = planned_measured.planned_and_measured(tmp_path).to_dict()["nodes"]
    assert (kitchen["seconds_ratio"], kitchen["bytes_ratio"]) == (3.0, 1.1)
    assert (shed["rounds"], shed["seconds_ratio"]) == (0.0, None)
    assert planned_measured.planned_and_measured(tmp_path).to_dict()["ratio"] == 2.5


def test_a_simulated_run_has_nothing_measured(run, tmp_path):
    run[0] = {"round": 0, "clients": [0], "delay_s": 1.0}
    with pytest.raises(InputError, match=r"was simulated"):
        planned_measured.planned_and_measured(tmp_path)


def test_the_fleet_is_corrected_by_the_ratio(run, tmp_path):
    """A node that took three times as long has a third of the speed; the other keeps its own."""
    scenario = Scenario.load("paper-mnist", ["fleet.count=2"])
    write_document({"format": 1} | scenario.to_dict(), tmp_path / "scenario.yaml")
    planned_measured.corrected_fleet(tmp_path, tmp_path / "corrected.yaml")
    old, new = (s.fleet().flops_per_cycle for s in (scenario, Scenario.load(tmp_path / "corrected.yaml")))
    assert new == pytest.approx([old[0] / 3.0, old[1]], rel=1e-3)
