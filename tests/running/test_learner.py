"""Local steps, server optimisers, matched batches, small uploads and early stops, in the loop and its run folders."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedgap.errors import InputError
from fedgap.learning.data import batch_indices, batch_keys
from fedgap.learning.data.label_sampling import count_labels
from fedgap.learning.masks import keep_count
from fedgap.running.job import Job
from fedgap.running.label_probabilities import label_sampling
from fedgap.running.loop import Rounds
from fedgap.running.prepare import divide, prepare
from fedgap.running.sweep import sweep
from fedgap.running.train_and_resume import resume, train
from fedgap.theory.label_matching import label_divergence
from fedgap.upload_size import upload_bytes
from tests.running.plans import by_hand
from tests.running.test_run import results

__fedgap__ = ["softmax_regression"]
OPTIMISERS = ("sgd", "momentum", "nesterov", "adam", "yogi")


def softmax_regression(classes):
    """A model whose gradient is written down below."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes, bias=False))


def planned(experiment, *segments):
    return by_hand(divide(experiment)[2], *segments)


def pruned(experiment):
    """One dense round, then clients that prune differently."""
    rounds = int(experiment.rounds)
    return planned(experiment, (1, range(10), 0.0), (rounds - 1, range(10), np.linspace(0.1, 0.5, 10)))


def stepped(jobs, dataset, steps):
    rounds = Rounds(jobs, dataset)
    for _ in range(steps):
        rounds.step()
    rounds.drain()
    return rounds


# --- the round, by hand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_two_clients_two_steps_and_server_momentum_by_hand(small, tmp_path, engine, weighting):
    """Three rounds against numpy: w ← w − η·∇L in each step, u = Σ ∇L, v ← 0.5·v + η·ū, ω ← ω − v."""
    experiment = small("rounds=3", "engine.precision=float64", f"engine.kind={engine}", "learning.local_steps=2",
                       "learning.rate=0.05", "learning.server.optimiser=momentum", "learning.server.momentum=0.5",
                       f"learning.weighting={weighting}", "partition.kind=quantity", "partition.concentration=1",
                       "model.name=tests.running.test_learner:softmax_regression")
    clients = [0, 3]
    data, parts, _ = divide(experiment)
    ready = prepare(experiment, planned(experiment, (3, clients, 0.0)))
    rounds = Rounds([ready.job], data)
    share = parts.sizes[clients] / parts.sizes[clients].sum() if weighting == "samples" else np.array([0.5, 0.5])
    assert parts.sizes[0] != parts.sizes[3]
    omega = rounds.model.weights[0].numpy().reshape(10, 784).copy()
    velocity = np.zeros_like(omega)
    for s in range(3):
        updates, losses = [], []
        position = batch_indices(batch_keys(0, clients), np.array([s]), parts.sizes[clients], 32, 2)[0]
        for i, n in enumerate(clients):
            w, update = omega.copy(), np.zeros_like(omega)
            for step in range(2):
                index = parts.train[n][position[i, step]]
                x, y = data.train_x[index].double().flatten(1).numpy(), data.train_y[index].numpy()
                logits = x @ w.T
                p = np.exp(logits - logits.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
                losses.append(-np.log(p[np.arange(32), y]).mean())
                p[np.arange(32), y] -= 1.0
                gradient = p.T @ x / 32
                w, update = w - 0.05 * gradient, update + gradient
            updates.append(update)
        velocity = 0.5 * velocity + 0.05 * (share[0] * updates[0] + share[1] * updates[1])
        omega = omega - velocity
        rounds.step()
        ((event,),) = rounds.drain()
        assert event["train_loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    np.testing.assert_allclose(rounds.model.weights[0].numpy().reshape(10, 784), omega, rtol=1e-10, atol=1e-14)


def test_importance_sees_the_mean_direction_of_a_step(small):
    """One step and four equal ones (rate 0 moves nothing) of one whole batch give the same remembered gradient."""
    remembered = []
    for steps in (1, 4):
        experiment = small("rounds=2", f"learning.local_steps={steps}", "learning.rate=1e-30",
                           "scenario.learning.batch_size=80")
        job = prepare(experiment, planned(experiment, (2, [4], 0.0))).job
        job = replace(job, batch_size=np.where(np.arange(10) == 4, job.sizes, job.batch_size))
        rounds = stepped([job], divide(experiment)[0], 1)
        remembered.append(rounds.model.state(0)["importance.gradient"])
    torch.testing.assert_close(remembered[1], remembered[0], rtol=1e-3, atol=1e-6)


# --- stacked, in a loop, resumed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_killed_run_ends_as_a_whole_one(small, tmp_path, optimiser):
    experiment = small("rounds=10", "learning.local_steps=2", f"learning.server.optimiser={optimiser}",
                       "learning.schedule=warm_up_cosine", "learning.batches=balanced", "learning.upload_bits=8",
                       "learning.client.momentum=0.5", "faults.dropout_probability=0.2", "data.validation=0.1",
                       "stop.patience=30")
    plan = pruned(experiment)
    whole = train(experiment, tmp_path / "whole", plan=plan)

    class KilledError(Exception):
        pass

    def kill(position, job, events):
        if events and events[-1]["round"] >= 6:
            raise KilledError

    with pytest.raises(KilledError):
        train(experiment, tmp_path / "killed", plan=plan, on_events=kill)
    again = resume(tmp_path / "killed")
    assert results(again.folder) == results(whole.folder)


@pytest.mark.parametrize("settings", [
    {"server": {"optimiser": "adam", "rate": 0.01, "momentum": 0.9}, "upload_bits": 4},
    {"server": {"optimiser": "nesterov", "rate": 1.0, "momentum": 0.9}, "weighting": "samples"},
    {"client": {"momentum": 0.5, "proximal": 0.1, "clip_norm": 1.0}, "accounting": "measured"}])
def test_stacked_runs_are_the_separate_ones_and_the_loop_is_near(small, settings):
    experiment = small("rounds=8", "learning.local_steps=3", "learning.batches=target", "partition.concentration=0.3")
    ready = prepare(experiment, pruned(experiment))
    first = replace(ready.job, **settings)
    faster = {**first.server, "rate": 2 * first.server["rate"]}
    jobs = [first, replace(first, learning_rate=0.02, seed=5, rate_schedule="cosine"), replace(first, server=faster)]
    assert len({job.kind for job in jobs}) == 1
    together = stepped(jobs, ready.dataset, 4)
    for row, job in enumerate(jobs):
        alone = stepped([job], ready.dataset, 4)
        torch.testing.assert_close(alone.model.weights[0], together.model.weights[row], rtol=1e-5, atol=1e-6)
        if "upload_bits" not in settings:  # a difference in the last digit may round to another whole number
            loop = stepped([replace(job, engine="loop")], ready.dataset, 4)
            torch.testing.assert_close(loop.model.weights[0], together.model.weights[row], rtol=1e-3, atol=1e-5)
    assert not torch.equal(together.model.weights[0], together.model.weights[2])


def test_what_cannot_be_stacked_has_another_kind(small):
    job = prepare(small("rounds=2"), planned(small("rounds=2"), (2, [0, 1], 0.0))).job
    others = [replace(job, local_steps=2), replace(job, upload_bits=8), replace(job, weighting="samples"),
              replace(job, batches="balanced"), replace(job, server={**job.server, "optimiser": "adam"}),
              replace(job, client={**job.client, "proximal": 0.1})]
    assert len({other.kind for other in [job, *others]}) == 7


def test_a_job_of_0_1_loads_as_fedsgd(small, tmp_path):
    job = prepare(small("rounds=2"), planned(small("rounds=2"), (2, [0, 1], 0.3))).job
    job.save(tmp_path)
    new = [f.name for f in dataclasses.fields(Job) if f.default_factory is not dataclasses.MISSING
           or f.default is not dataclasses.MISSING]
    plain = json.loads((tmp_path / "job.json").read_bytes())
    (tmp_path / "job.json").write_text(json.dumps({k: v for k, v in plain.items() if k not in new or k == "extra"}))
    with np.load(tmp_path / "arrays.npz") as file:
        arrays = {name: file[name] for name in file.files if name not in new}
    np.savez(tmp_path / "arrays.npz", **arrays)
    old = Job.load(tmp_path)
    assert old.kind == job.kind
    assert old.learner == job.learner
    assert (old.stop, old.weights) == ({}, None)


def test_a_sweep_over_optimisers_trains_each_kind_together(small, tmp_path):
    experiment = small("rounds=4", "learning.local_steps=2", "scheme=all_clients")
    result = sweep(experiment, {"learning.server.optimiser": ["sgd", "momentum", "yogi"], "seed": [0, 1]}, tmp_path,
                   stacked=True)
    assert len(result.rows) == 3
    accuracies = [json.loads(path.read_bytes())["test_loss"] for path in sorted(tmp_path.glob("runs/*/summary.json"))]
    assert len(set(accuracies)) == 6


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_round_that_nobody_delivers_freezes_the_optimiser(small):
    experiment = small("rounds=12", "learning.local_steps=2", "learning.server.optimiser=momentum",
                       "faults.dropout_probability=0.6")
    ready = prepare(experiment, planned(experiment, (12, [0, 1], 0.3)))
    rounds, frozen, moved = Rounds([ready.job], ready.dataset), 0, 0
    for _ in range(12):
        before = rounds.model.state(0)
        rounds.step()
        after = rounds.model.state(0)
        ((event,),) = rounds.drain()
        nobody = len(event.get("dropped", [])) == 2
        frozen, moved = frozen + nobody, moved + (not nobody)
        for name in ("weights", "optimiser.velocity"):
            assert torch.equal(before[name], after[name]) == nobody
    assert min(frozen, moved) > 0


def test_a_client_that_is_not_finite_is_rejected_with_its_local_steps(small):
    experiment = small("rounds=3", "learning.local_steps=2", "learning.upload_bits=8", "learning.weighting=samples",
                       "partition.kind=iid")  # so that no sample belongs to two clients
    ready = prepare(experiment, planned(experiment, (3, [0, 1, 2], 0.0)))
    bad = ready.dataset.train_x.clone()
    first = ready.job.offsets[1]
    bad[torch.from_numpy(ready.job.indices[first:first + ready.job.sizes[1]])] = float("nan")
    rounds = Rounds([ready.job], replace(ready.dataset, train_x=bad))
    rounds.step()
    ((event,),) = rounds.drain()
    assert event["rejected"] == [1]
    assert bool(rounds.model.weights.isfinite().all())


# --- small uploads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_the_ledger_charges_what_is_uploaded(small, tmp_path, bits):
    size = 50890
    for accounting in ("as_printed", "measured"):
        experiment = small("rounds=2", f"learning.upload_bits={bits}", f"pruning.accounting={accounting}")
        run = train(experiment, tmp_path / accounting, plan=planned(experiment, (2, [0, 1], 0.25)))
        job, event = run.job, run.history[0]
        if accounting == "measured":
            expected = 2 * 8 * upload_bytes(keep_count(0.25, size), bits)
        else:
            expected = 0.75 * job.gradient_bits[:2].sum() * {32: 1.0, 8: 8.125 / 32, 4: 4.125 / 32}[bits]
            assert event["client_energy_j"] == pytest.approx((job.compute_j + job.upload_j)[0, :2])
        assert event["uploaded_bits"] == pytest.approx(expected, rel=1e-12)
        per_client = (job.upload_s_bit[0, :2] * expected / 2).tolist()
        if len(set(job.gradient_bits)) == 1:
            assert job.work(0, np.full(10, expected / 2)).upload_s[:2] == pytest.approx(per_client)
    printed = json.loads((tmp_path / "as_printed" / "summary.json").read_bytes())
    assert printed["local_steps"] == 1


@pytest.mark.full
def test_eight_bits_learn_as_well_as_32(small, tmp_path):
    found = {}
    for bits in (32, 8):
        experiment = small("rounds=40", "learning.local_steps=4", "learning.server.optimiser=momentum",
                           "learning.rate=0.03", f"learning.upload_bits={bits}", "data.train_samples=4000",
                           "data.test_samples=1000", "evaluate_every=40")
        found[bits] = train(experiment, tmp_path / str(bits), plan=planned(experiment, (40, range(10), 0.0))).summary
    assert found[32]["test_accuracy"] > 0.9
    assert abs(found[8]["test_accuracy"] - found[32]["test_accuracy"]) < 0.015
    assert found[8]["uploaded_bits"] == pytest.approx(found[32]["uploaded_bits"] * 8.125 / 32)


# --- labels ---------------------------------------------------------------------------------------------------------


def test_label_probabilities_by_hand():
    """Two clients with 90:10 and 10:30; the mean's target of 50:50 is reached, and 30 rounds of 40 repeat enough."""
    counts = np.array([[90, 10], [10, 30], [7, 7]])
    selected = np.array([[True, True, False], [True, False, False]])
    given = {"selected": selected, "schedule": np.array([0, 0, 0, 1]), "label_counts": counts,
             "target": np.array([0.5, 0.5]), "samples_per_round": np.full(3, 40.0), "max_repeat": 5.0}
    assert label_sampling("as_is", **given).probabilities.size == 0
    balanced = label_sampling("balanced", **given)
    np.testing.assert_allclose(balanced.probabilities, 0.5 * np.stack([selected, selected], axis=2))
    first = float(label_divergence([0.575, 0.425], [0.5, 0.5]))
    second = float(label_divergence([0.9, 0.1], [0.5, 0.5]))
    assert balanced.summary == {"label_divergence": pytest.approx(0.75 * first + 0.25 * second),
                                "drawn_label_divergence": pytest.approx(0.0)}
    target = label_sampling("target", **given)
    np.testing.assert_allclose(target.probabilities[0, :2].mean(0), [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(target.probabilities[1, 0], [0.5, 0.5], atol=1e-6)
    assert target.summary["drawn_label_divergence"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("batches", ["balanced", "target"])
def test_drawn_labels_are_nearer_to_the_target(small, tmp_path, batches):
    experiment = small("rounds=60", "learning.local_steps=2", f"learning.batches={batches}",
                       "partition.concentration=0.1", "data.train_samples=4000")
    ready = prepare(experiment, planned(experiment, (30, range(10), 0.0), (30, [0, 2, 4, 6], 0.0)))
    job, summary = ready.job, ready.job.extra["summary"]
    assert summary["drawn_label_divergence"] < 0.75 * summary["label_divergence"]
    rounds = Rounds([job], ready.dataset)
    taken = [rounds.clients._batches.take(s) for s in range(60)]
    drawn = np.stack([count_labels(batch.labels.flatten(1), 10).numpy().sum(0) for batch in taken])
    for segment in (0, 1):
        chosen = job.selected[segment]
        expected = job.label_probabilities[segment, chosen].mean(0)
        share = drawn[job.schedule == segment].sum(0) / drawn[job.schedule == segment].sum()
        assert np.abs(share - expected).max() < 5 * np.sqrt(0.25 / drawn[job.schedule == segment].sum())


# --- validation, stopping, initial weights --------------------------------------------------------------------------


def test_a_target_accuracy_leaves_the_budgets_unspent_and_resumes_alike(small, tmp_path):
    experiment = small("rounds=30", "learning.local_steps=4", "learning.server.optimiser=momentum",
                       "data.validation=0.25", "stop.accuracy=0.6", "evaluate_every=2")
    plan = planned(experiment, (30, range(10), 0.0))
    run = train(experiment, tmp_path / "run", plan=plan)
    evaluated = [event for event in run.history if "validation_accuracy" in event]
    assert run.summary["ended"].endswith("reached the target of 60.00%")
    assert len(run.history) == run.summary["rounds"] < 30
    assert [event["validation_accuracy"] >= 0.6 for event in evaluated] == [False] * (len(evaluated) - 1) + [True]
    assert all(("test_accuracy" in event) == ("validation_loss" in event) for event in run.history)
    assert run.summary["energy_left_j"] > 0.0
    last = len(run.history) - 1

    def kill(position, job, events):
        if events and events[-1]["round"] == last - 1:
            raise KeyError

    with pytest.raises(KeyError):
        train(experiment, tmp_path / "killed", plan=plan, on_events=kill)
    assert results(resume(tmp_path / "killed").folder) == results(run.folder)


def test_a_training_that_diverges_stops_and_says_what_to_change(small, tmp_path):
    experiment = small("rounds=60", "learning.rate=30", "learning.local_steps=4", "learning.server.optimiser=momentum",
                       "model.name=tests.running.test_learner:softmax_regression")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (60, range(10), 0.0)))
    assert run.summary["ended"].startswith("training diverged: ")
    assert "scenario.learning.rate=10 instead of 30" in run.summary["ended"]
    assert run.summary["rounds"] < 60


def test_stopping_needs_validation_samples_and_samples_need_the_mean(small):
    wrong = {"stop.accuracy=0.9": "stop.accuracy: needs validation samples; hold some out, for example data",
             "learning.weighting=samples": "learning.weighting: must be equal with the aggregator"}
    for key, message in wrong.items():
        experiment = small("rounds=2", key, "learning.aggregator=tests.learning.test_aggregators:trimmed_mean")
        with pytest.raises(InputError, match=message):
            prepare(experiment, planned(experiment, (2, [0, 1], 0.0)))


def test_training_starts_from_the_weights_in_a_file(small, tmp_path):
    experiment = small("rounds=6", "learning.local_steps=4")
    plan = planned(experiment, (6, range(10), 0.0))
    first = train(experiment, tmp_path / "first", plan=plan)
    further = small("rounds=1", "learning.rate=1e-12", "learning.local_steps=4", "seed=7",
                    f"model.weights={first.folder / 'model.safetensors'}")
    second = train(further, tmp_path / "second", plan=planned(further, (1, range(10), 0.0)))
    assert second.summary["test_accuracy"] == first.summary["test_accuracy"]
    assert second.summary["test_loss"] == pytest.approx(first.summary["test_loss"], rel=1e-6)
    missing = small("rounds=1", "model.weights=nowhere.safetensors")
    with pytest.raises(InputError, match=r"model.weights: nowhere.safetensors cannot be read"):
        prepare(missing, planned(missing, (1, [0], 0.0)))
