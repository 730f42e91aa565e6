"""What is trained once: the training key, the bundle for another machine, and the store that is continued."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgap.config import Experiment
from fedgap.errors import FedgapError
from fedgap.evidence.bundle import main, pack, unpack
from fedgap.evidence.store import Store
from fedgap.evidence.training import stacks, train, training_key
from fedgap.learning.data import Dataset, load
from fedgap.running.job import Job
from fedgap.running.prepare import prepare

SHORT = ["rounds=6", "budget.energy_j=3.75", "budget.delay_s=2.25", "evaluate_every=3", "engine.threads=1",
         "data.train_samples=400", "data.test_samples=100"]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("embedded", train_samples=400, test_samples=100)


@pytest.fixture(scope="module")
def job(data: Dataset) -> Job:
    return prepare(Experiment.load("embedded", SHORT), dataset=data).job


def test_the_key_forgets_power_and_budgets_only(job: Job) -> None:
    key = training_key(job)
    assert training_key(replace(job, upload_s=2 * job.upload_s, compute_j=3 * job.compute_j)) == key
    assert training_key(replace(job, energy_budget_j=1e9, scheme="other", device="cuda")) == key
    assert training_key(replace(job, ratio=job.ratio * (1 + 1e-12))) == key  # as many weights are kept
    for other in (replace(job, seed=1), replace(job, schedule=job.schedule[:-1]), replace(job, ratio=job.ratio * 0.5),
                  replace(job, selected=np.roll(job.selected, 1, axis=1), ratio=np.roll(job.ratio, 1, axis=1)),
                  replace(job, evaluate_pruned=not job.evaluate_pruned), replace(job, indices=job.indices[::-1]),
                  replace(job, local_steps=2), replace(job, upload_bits=8), replace(job, rate_schedule="cosine"),
                  replace(job, server={**job.server, "optimiser": "adam"}), replace(job, weighting="samples"),
                  replace(job, label_probabilities=np.full((len(job.ratio), len(job.names), 10), 0.1))):
        assert training_key(other) != key


def test_an_unpruned_run_does_not_depend_on_how_it_would_prune(job: Job) -> None:
    dense = replace(job, ratio=0 * job.ratio)
    assert training_key(dense) == training_key(replace(dense, evaluate_pruned=False))


def test_a_bundle_comes_back_whole(job: Job, tmp_path: Path) -> None:
    other = replace(job, seed=3)
    pack({"a": job, "b": other}, tmp_path)
    back = unpack(tmp_path)
    assert back["a"].indices is back["b"].indices  # one partition, stored once
    for name in ("a", "b"):
        assert training_key(back[name]) == training_key({"a": job, "b": other}[name])
        assert np.array_equal(back[name].upload_s, job.upload_s)
        assert back[name].names == job.names


def test_stacked_runs_equal_runs_of_their_own(job: Job, data: Dataset) -> None:
    jobs = {"a": job, "b": replace(job, seed=5), "c": replace(job, schedule=job.schedule[:4])}
    together = {r["key"]: r for r in train(jobs, data, at_once=3)}
    alone = {r["key"]: r for r in train(jobs, data)}
    for key in jobs:
        assert together[key]["round"] == alone[key]["round"] == ([3, 6] if key != "c" else [3, 4])
        assert together[key]["test_loss"] == pytest.approx(alone[key]["test_loss"], rel=1e-3)


def test_a_run_that_ends_early_says_why(job: Job, data: Dataset) -> None:
    """Six rounds, evaluated after the third and the sixth."""
    for changed, says in (
        (replace(job, learning_rate=1e6),
         "proposed, seed 0: its training ended early, before round 3 of 6: training diverged: "),
        (replace(job, energy_budget_j=0.5 * job.energy_budget_j),
         "proposed, seed 0: its plan exceeds a budget, before round 3 of 6: "),
    ):
        with pytest.raises(FedgapError, match=f"^{says}"):
            list(train({"a": changed}, data))


def test_runs_whose_selections_alternate_are_stacked_with_their_like(job: Job) -> None:
    def scheduled(*segments: int) -> Job:
        return replace(job, schedule=np.array(segments), selected=np.tile(job.selected[:1], (2, 1)),
                       ratio=np.tile(job.ratio[:1], (2, 1)))

    jobs = {"a": scheduled(0, 1, 1, 1), "b": scheduled(0, 0, 0, 0), "c": scheduled(0, 1, 0, 1),
            "d": scheduled(0, 1, 0, 1), "e": scheduled(0, 0, 1, 0)}
    assert sorted(map(sorted, stacks(jobs, 16))) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_store_keeps_what_is_whole_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Store(path).add([{"key": "a", "x": 1}])
    with path.open("a") as file:
        file.write('{"key": "b", "x"')  # torn by a crash
    store = Store(path)
    assert "a" in store
    assert "b" not in store
    store.add([{"key": "a", "x": 2}, {"key": "c", "x": 3}])
    assert [(r["key"], r["x"]) for r in Store(path)] == [("a", 1), ("c", 3)]


def test_a_box_skips_what_it_has(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack({training_key(job): job}, tmp_path / "bundle")
    arguments = [str(tmp_path / "bundle"), "--out", str(tmp_path / "r.jsonl"), "--device", "cpu"]
    assert main(arguments) == 0
    (record,) = Store(tmp_path / "r.jsonl")
    assert record["rounds"] == job.rounds
    assert main(arguments) == 0
    assert "0 runs to train" in capsys.readouterr().out
