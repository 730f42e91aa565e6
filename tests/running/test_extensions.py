"""An aggregator and an importance rule from outside: in both engines, with measured uploads, and resumed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgap.learning.contract import RoundInput
from fedgap.learning.masks import mask
from fedgap.learning.reference import gradients
from fedgap.running.loop import Rounds
from fedgap.running.prepare import divide, prepare
from tests.running.plans import by_hand

__fedgap__ = ["own_mean"]
TRIMMED = "tests.learning.test_aggregators:trimmed_mean"
MEAN = "tests.running.test_extensions:own_mean"
RULE = {"rule": "tests.learning.test_importance_rules:RULE", "current_weights": True, "remember": True}


def own_mean(updates, kept):
    return updates.mean(0)


@pytest.fixture
def ready(small):
    experiment = small("rounds=6", "evaluate_every=100")
    _, _, scenario = divide(experiment)
    return prepare(experiment, by_hand(scenario, (1, range(10), 0.0), (5, [0, 2, 5, 7], 0.25)))


def trained(jobs, dataset, steps=4):
    rounds = Rounds(jobs, dataset)
    for _ in range(steps):
        rounds.step()
    rounds.drain()
    return rounds


@pytest.mark.parametrize("settings", [{"engine": "stacked"}, {"engine": "loop"}, {"accounting": "measured"}])
def test_a_mean_from_outside_trains_as_the_one_of_fedgap(ready, settings):
    ours, theirs = (trained([replace(ready.job, aggregator=name, **settings)], ready.dataset).model.weights
                    for name in ("mean", MEAN))
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{"engine": "stacked"}, {"engine": "loop"}, {"accounting": "measured"}])
def test_a_pruned_round_of_a_trimmed_mean_is_that_of_the_clients_gradients(ready, settings):
    rounds = trained([replace(ready.job, aggregator=TRIMMED, **settings)], ready.dataset, steps=1)
    job, account = ready.job, rounds.accounts[0]
    before, clients = rounds.model.weights.clone(), np.flatnonzero(job.selected[1])
    ranks = rounds.model.rank(True)
    batches = rounds.clients._batches.take(1)
    ratios = job.ratio[1, clients].tolist()
    given = RoundInput(before, ranks, rounds.model.buffers, (0,) * len(clients), ratios, batches.inputs,
                       batches.labels)
    updates = gradients(rounds.engine.module, given).client_gradients
    assert all(torch.count_nonzero(row) <= mask(ranks[0], ratios[0]).sum() for row in updates)
    middle = updates.sort(dim=0).values[1:-1].mean(dim=0)
    rounds.step()
    torch.testing.assert_close(rounds.model.weights[0], before[0] - job.learning_rate * middle, rtol=1e-4, atol=1e-6)
    assert account.ledger.energy_j > 0.0


def test_runs_with_other_aggregators_are_not_trained_together(ready):
    assert ready.job.kind != replace(ready.job, aggregator=TRIMMED).kind


def test_both_come_back_from_a_checkpoint(ready):
    jobs = [replace(ready.job, aggregator=TRIMMED, importance=RULE, seed=seed) for seed in (0, 3)]
    whole, half, again = trained(jobs, ready.dataset, 5), trained(jobs, ready.dataset, 2), Rounds(jobs, ready.dataset)
    again.load([half.state(row) for row in range(2)])
    for _ in range(3):
        again.step()
    assert torch.equal(again.model.weights, whole.model.weights)
    alone = trained(jobs[1:], ready.dataset, 5)
    torch.testing.assert_close(alone.model.weights, whole.model.weights[1:], rtol=1e-4, atol=1e-6)


def test_a_saved_job_names_its_aggregator_and_one_of_0_1_has_none(ready, tmp_path):
    job = replace(ready.job, aggregator=TRIMMED)
    job.save(tmp_path / "job")
    assert type(job).load(tmp_path / "job").aggregator == TRIMMED
    plain = json.loads((tmp_path / "job" / "job.json").read_text())
    del plain["aggregator"]
    (tmp_path / "job" / "job.json").write_text(json.dumps(plain))
    assert type(job).load(tmp_path / "job").aggregator == "mean"
