"""The loop: against plain SGD written here, twice the same, faults and bad gradients, evaluation and shipping."""

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from fedgap.errors import InputError
from fedgap.learning.data import batch_indices, batch_keys, from_arrays, load
from fedgap.learning.models import build
from fedgap.planning import rescore
from fedgap.planning.plan import Plan
from fedgap.running import loop
from fedgap.running.job import Job
from fedgap.running.prepare import divide, prepare
from fedgap.running.run import Run, execute, main
from fedgap.running.train_and_resume import resume, train, write_run
from fedgap.streams import stream_seed
from fedgap.upload_size import upload_bytes
from tests.running.plans import by_hand

FILES = ["checkpoint", "config.yaml", "job", "model.safetensors", "model_card.md", "plan.json", "rounds.jsonl",
         "scenario.yaml", "summary.json", "versions.json"]


def results(folder: Path) -> tuple[bytes, bytes, dict]:
    summary = json.loads((folder / "summary.json").read_bytes())
    del summary["wall_s"]
    return (folder / "model.safetensors").read_bytes(), (folder / "rounds.jsonl").read_bytes(), summary


def planned(experiment, *segments):
    _, _, scenario = divide(experiment)
    return by_hand(scenario, *segments)


def test_without_pruning_it_is_plain_sgd_on_the_clients_union_batch(small, tmp_path):
    experiment = small("rounds=5", "engine.precision=float64", "engine.kind=loop")
    plan = planned(experiment, (5, [0, 3, 7], 0.0))
    run = train(experiment, tmp_path / "run", plan=plan)
    data, parts, _ = divide(experiment)
    model = build("mlp", input_shape=data.shape, classes=10, seed=stream_seed(0, "model")).double()
    clients = [0, 3, 7]
    for s, event in enumerate(run.history):
        position = batch_indices(batch_keys(0, clients), np.array([s]), parts.sizes[clients], 32)[0]
        index = np.concatenate([parts.train[n][position[i]] for i, n in enumerate(clients)])
        loss = functional.cross_entropy(model(data.train_x[index].double()), data.train_y[index])
        assert event["train_loss"] == pytest.approx(float(loss.detach()), rel=1e-12)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), grads, strict=True):
                parameter -= 0.01 * gradient
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(load_file(run.folder / "model.safetensors")[name], parameter.detach().float(),
                                   rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        logits = run.model(data.test_x)
    assert float((logits.argmax(1) == data.test_y).float().mean()) == pytest.approx(run.summary["test_accuracy"])
    assert float(functional.cross_entropy(logits, data.test_y)) == pytest.approx(run.summary["test_loss"], rel=1e-5)


def test_two_runs_of_one_seed_are_bit_identical_and_another_seed_differs(small, tmp_path):
    experiment = small("rounds=9", "model.name=lenet5", "faults.dropout_probability=0.2")
    plan = planned(experiment, (1, range(10), 0.0), (5, range(10), 0.4), (3, [1, 2, 4], 0.2))
    first, second = (results(train(experiment, tmp_path / name, plan=plan).folder) for name in ("a", "b"))
    assert first == second
    other = small("rounds=9", "seed=1", "model.name=lenet5", "faults.dropout_probability=0.2")
    third = train(other, tmp_path / "c", plan=planned(other, (1, range(10), 0.0), (8, range(10), 0.4)))
    assert results(third.folder)[0] != first[0]


def test_the_folder_has_the_contracts_files_and_keys(small, tmp_path):
    experiment = small("rounds=7")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (7, [0, 1], 0.3)))
    assert sorted(p.name for p in run.folder.iterdir()) == FILES
    required = ["round", "clients", "pruning_ratio", "energy_j", "delay_s", "energy_total_j", "delay_total_s",
                "train_loss"]
    for s, event in enumerate(run.history):
        assert list(event)[:8] == required
        assert event["round"] == s
        assert ("test_accuracy" in event) == (s + 1 in (3, 6, 7))
        assert ("test_loss" in event) == ("generalization_gap" in event) == ("test_accuracy" in event)
        if "test_loss" in event:
            assert event["generalization_gap"] == pytest.approx(event["training_set_loss"] - event["test_loss"])
    assert run.plan.segments[0].rounds == 7
    assert Run(str(run.folder)).history == run.history  # as a person would write it
    assert run.history[0]["statement"] == pytest.approx(float(run.job.statement[0]))
    assert not list(run.folder.rglob("*.part"))
    assert not list(run.folder.rglob("*.pkl"))
    versions = json.loads((run.folder / "versions.json").read_bytes())
    assert versions["torch"] == torch.__version__


def test_the_pruned_model_is_evaluated_and_shipped_unless_as_printed(small, tmp_path):
    sizes = {}
    for mode in ("repaired", "as_printed"):
        experiment = small("rounds=4", f"mode={mode}")
        dense = [(1, range(10), 0.0)] if mode == "repaired" else []
        run = train(experiment, tmp_path / mode, plan=planned(experiment, *dense, (4 - len(dense), range(10), 0.5)))
        sizes[mode] = run.summary["kept_weights"] / run.summary["weights"]
        assert run.job.importance == {"rule": "taylor", "remember": mode == "repaired",
                                      "current_weights": mode == "repaired"}
    assert sizes["repaired"] <= 0.5
    assert sizes["as_printed"] > 0.9


def test_without_remembering_the_dense_round_decides_the_mask_for_good(small, tmp_path):
    """A weight that everybody pruned in the second round has no gradient after it, and never comes back."""
    moved = {}
    for remember in (True, False):
        kept = []
        for rounds in (3, 12):
            experiment = small(f"rounds={rounds}", f"pruning.remember={remember}")
            plan = planned(experiment, (1, range(10), 0.0), (rounds - 1, range(10), 0.5))
            run = train(experiment, tmp_path / f"{remember}-{rounds}", plan=plan)
            tensors = load_file(run.folder / "model.safetensors")
            kept.append(torch.cat([tensor.ravel() != 0 for tensor in tensors.values()]))
        moved[remember] = int((kept[1] & ~kept[0]).sum())
    assert moved[False] == 0
    assert moved[True] > 0


def test_dropouts_and_stragglers_are_left_out_and_the_run_goes_on(small, tmp_path):
    experiment = small("rounds=12", "faults.dropout_probability=0.5", "faults.straggler_probability=0.5",
                       "faults.straggler_slowdown=50")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (12, [0, 1, 2], 0.2)))
    history, clean = run.history, tmp_path / "clean"
    assert len(history) == 12
    assert any(len(e.get("dropped", [])) + len(e.get("late", [])) == 3 for e in history)  # a round with nobody
    assert any(e["train_loss"] is None for e in history)
    counted = sum(len(e.get("dropped", [])) for e in history), sum(len(e.get("late", [])) for e in history)
    assert counted == tuple(sum(c[key] for c in run.summary["clients"]) for key in ("dropped", "late"))
    assert min(counted) > 0
    reliable = small("rounds=12")
    whole = train(reliable, clean, plan=planned(reliable, (12, [0, 1, 2], 0.2)))
    assert run.summary["energy_j"] < whole.summary["energy_j"]
    assert run.summary["delay_s"] == pytest.approx(whole.summary["delay_s"])  # the server waits for the deadline


def test_a_gradient_that_is_not_finite_is_rejected_named_and_counted(small, tmp_path):
    """Client 2's samples are poisoned: the others' training must be as if it had sent nothing."""
    experiment = small("rounds=4")
    data, parts, scenario = divide(experiment)
    poisoned = data.train_x.clone()
    alone = parts.train[2][~np.isin(parts.train[2], np.concatenate([parts.train[0], parts.train[1]]))]
    poisoned[alone] = float("nan")
    bad = dataclasses.replace(data, train_x=poisoned)
    run = train(experiment, tmp_path / "bad", plan=by_hand(scenario, (4, [0, 1, 2], 0.0)), dataset=bad)
    without = train(experiment, tmp_path / "good", plan=by_hand(scenario, (4, [0, 1], 0.0)))
    assert [e["rejected"] for e in run.history] == [[2]] * 4
    assert [c["rejected"] for c in run.summary["clients"]][:4] == [0, 0, 4, 0]
    ours, theirs = (load_file(r.folder / "model.safetensors") for r in (run, without))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
    assert run.summary["energy_j"] > without.summary["energy_j"]  # it spent its joules all the same
    assert run.history[0]["train_loss"] == pytest.approx(without.history[0]["train_loss"], rel=1e-5)


def test_clients_may_have_batch_sizes_of_their_own(small, tmp_path):
    experiment = small("rounds=2", "scenario.clients[0].batch_size=8")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (2, [0, 1], 0.0)))
    assert run.job.batch_size[:2].tolist() == [8, 32]
    assert run.summary["rounds"] == 2


def test_ones_own_data_is_trained_on_and_kept_for_resuming(small, tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(300, 12)), np.arange(300) % 3
    x[np.arange(300), y] += 4.0
    own = from_arrays(x[:240], y[:240], x[240:], y[240:])
    experiment = small("rounds=30", "partition.kind=iid", "scenario.learning.rate=0.1")
    _, _, scenario = divide(experiment, own)
    run = train(experiment, tmp_path / "run", plan=by_hand(scenario, (30, range(10), 0.0)), dataset=own)
    assert run.summary["test_accuracy"] > 0.85
    (run.folder / "summary.json").unlink()
    assert results(resume(run.folder).folder) == results(run.folder)


def test_a_plan_for_another_scenario_and_a_taken_folder_are_refused(small, tmp_path):
    experiment = small("rounds=3")
    plan = planned(experiment, (3, [0], 0.0))
    other = small("rounds=3", "budget.energy_j=5")
    with pytest.raises(InputError, match="plan: was made for another scenario"):
        train(other, tmp_path / "x", plan=plan)
    assert not (tmp_path / "x").exists()
    train(experiment, tmp_path / "run", plan=plan)
    with pytest.raises(InputError, match="holds a run already; continue with `fedgap resume"):
        train(experiment, tmp_path / "run", plan=plan)
    with pytest.raises(InputError, match="holds no run"):
        resume(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        train(experiment, tmp_path / "file", plan=plan)


def test_other_data_than_the_run_began_with_is_refused(small, tmp_path):
    experiment = small("rounds=3")
    ready = prepare(experiment, planned(experiment, (3, [0], 0.0)))
    write_run(ready, tmp_path / "run")
    with pytest.raises(InputError, match="is not the data that this run began with"):
        execute([tmp_path / "run"], dataset=load("embedded"))


def test_a_job_survives_saving_and_needs_no_configuration_to_run(small, tmp_path):
    """The saved job is executed by an interpreter in which the solver's and configuration's packages do not exist."""
    experiment = small("rounds=5", "faults.dropout_probability=0.1")
    ready = prepare(experiment, planned(experiment, (1, range(10), 0.0), (4, range(5), 0.3)))
    write_run(ready, tmp_path / "here")
    write_run(ready, tmp_path / "there", copy_data=True)
    again = Job.load(tmp_path / "here" / "job")
    for field in dataclasses.fields(Job):
        a, b = getattr(ready.job, field.name), getattr(again, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name
    execute([tmp_path / "here"])
    script = ("import sys\nfor name in ('pydantic', 'cvxpy', 'clarabel', 'scipy', 'mlxtend', 'pooch', 'typer', "
              "'matplotlib'):\n    sys.modules[name] = None\n"
              "from fedgap.running.run import main\nsys.exit(main(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "there")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stderr
    assert results(tmp_path / "there") == results(tmp_path / "here")


def interrupt_after(number):
    """Presses Ctrl-C after the round of this number."""

    def interrupt(position, job, events):
        if events[-1]["round"] == number:
            signal.raise_signal(signal.SIGINT)

    return interrupt


def test_interrupting_leaves_everything_on_disk_and_resuming_ends_bit_identically(small, tmp_path):
    experiment = small("rounds=11", "checkpoint_every=100")
    plan = planned(experiment, (1, range(10), 0.0), (10, range(6), 0.4))
    whole, before = train(experiment, tmp_path / "whole", plan=plan), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "cut", plan=plan, on_events=interrupt_after(4))
    cut = Run(tmp_path / "cut")
    assert len(cut.history) == 5
    assert not cut.finished
    with pytest.raises(InputError, match="has not finished; continue with"):
        _ = cut.summary
    assert signal.getsignal(signal.SIGINT) is before  # ignored where a shell runs the tests in the background
    assert results(resume(cut.folder).folder) == results(whole.folder)
    assert results(resume(cut.folder).folder) == results(whole.folder)  # a finished run is returned as it is


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_with_channels_a_run_resumes_bit_identically(small, tmp_path, engine):
    """Local steps, server momentum, small uploads, clients of several sizes. Nobody keeps all of the model."""
    experiment = small("rounds=7", "checkpoint_every=100", "mode=practical", "pruning.structure=channels",
                       "learning.local_steps=2", "learning.upload_bits=8", f"engine.kind={engine}",
                       "pruning.accounting=measured")
    plan = planned(experiment, (1, range(10), 0.0), (6, range(4), [0.3, 0.3, 0.45, 0.5] + 6 * [0.0]))
    whole = train(experiment, tmp_path / "whole", plan=plan)
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "cut", plan=plan, on_events=interrupt_after(3))
    assert results(resume(tmp_path / "cut").folder) == results(whole.folder)
    # 784 - 64 - 10 with h of 64 neurons has 795·h + 10 weights; λ = 0.3 leaves 44 and λ = 0.5 leaves 31.
    assert whole.summary["kept_weights"] == 795 * 44 + 10
    assert whole.history[-1]["uploaded_bits"] == sum(8 * upload_bytes(795 * h + 10, 8) for h in (44, 44, 35, 31))


def test_losses_may_stay_on_the_device_for_some_rounds(small, tmp_path, monkeypatch):
    """What an accelerator does (events read in blocks) gives the same files."""
    experiment = small("rounds=11")
    plan = planned(experiment, (11, range(6), 0.4))
    at_once = train(experiment, tmp_path / "a", plan=plan)
    monkeypatch.setattr(loop.Rounds, "ready", lambda self: len(self._pending) >= 3)
    assert results(train(experiment, tmp_path / "b", plan=plan).folder) == results(at_once.folder)


def test_infeasible_and_unfinished_plans(small, tmp_path):
    experiment = small("rounds=3")
    _, _, scenario = divide(experiment)
    nothing = Plan(status="infeasible", scheme="proposed", solver="hand", rounds=0, segments=(), theta=float("inf"),
                   terms={}, energy_j=0.0, delay_s=0.0, reason="the delay budget is too small",
                   scenario_hash=scenario.hash())
    with pytest.raises(Exception, match="delay budget is too small") as caught:
        train(experiment, tmp_path / "run", plan=nothing)
    assert caught.value.exit_code == 3
    scored = rescore(by_hand(scenario, (2, [0], 0.0)), scenario)
    shorter = dataclasses.replace(scored, theta=float("inf"))  # as a plan of fewer rounds than asked for has it
    run = train(experiment, tmp_path / "short", plan=shorter)  # re-planned at fewer rounds: trained that long
    assert run.summary["rounds"] == 2
    assert run.summary["theta"] is None


def test_the_pruned_model_is_that_of_the_selected_even_where_everybody_vanished(small, tmp_path):
    """Nobody is ever heard: the weights stay as drawn, and the half of least magnitude is pruned, not the last half."""
    experiment = small("rounds=2", "faults.dropout_probability=1")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (1, [0, 1], 0.0), (1, [0, 1], 0.5)))
    assert [event["train_loss"] for event in run.history] == [None, None]
    drawn = build("mlp", input_shape=(1, 28, 28), classes=10, seed=stream_seed(0, "model"))
    whole = torch.cat([parameter.detach().flatten() for parameter in drawn.parameters()])
    cut = whole.abs().sort(descending=True).values[len(whole) // 2]
    shipped = load_file(run.folder / "model.safetensors")
    for name, parameter in drawn.named_parameters():
        torch.testing.assert_close(shipped[name], torch.where(parameter.abs() > cut, parameter.detach(), 0.0))
    assert run.summary["kept_weights"] == round(0.5 * len(whole))


def test_weights_that_happen_to_be_zero_are_kept_all_the_same(small, tmp_path):
    experiment = small("rounds=1", "faults.dropout_probability=1")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (1, [0], 0.0)))
    assert not load_file(run.folder / "model.safetensors")["layers.1.bias"].any()  # biases are drawn 0
    assert run.summary["kept_weights"] == run.summary["weights"]


FROZEN = """
__fedgap__ = ["Half"]
import torch
from torch import nn

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(784, 16), nn.Linear(16, 10)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))
"""


def test_frozen_parameters_are_shipped_too(small, tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text(FROZEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    folders = []
    for seed in (3, 4):
        experiment = small("rounds=2", f"seed={seed}", "model.name=half:Half")
        folders.append(write_run(prepare(experiment, planned(experiment, (2, [0], 0.0))), tmp_path / f"seed{seed}"))
    with pytest.raises(InputError, match="frozen parameters differ"):
        execute(folders)
    run, = execute(folders[:1])
    data, _, _ = divide(experiment)
    with torch.no_grad():
        right = (run.model(data.test_x).argmax(1) == data.test_y).float().mean()
    assert float(right) == pytest.approx(run.summary["test_accuracy"])
    assert sorted(load_file(run.folder / "model.safetensors")) == ["first.bias", "first.weight", "last.bias",
                                                                  "last.weight"]


MODELS = """
__fedgap__ = ["few", "narrow", "empty", "drops", "missing", "single"]
from torch import nn

def few():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 5))

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(100, 10))

def empty():
    return nn.Flatten()

def single():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def drops():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10))
"""


@pytest.mark.parametrize(("override", "says"), [
    ("model.name=unfit:few", r"model: unfit:few must return one logit for each of 10 classes.* it returned \(2, 5\)"),
    ("model.name=unfit:narrow", r"model: unfit:narrow cannot take inputs of shape \(2, 1, 28, 28\)"),
    ("model.name=unfit:empty", "model: unfit:empty has no parameters to train"),
    ("model.name=unfit:drops", "model: layer 1 is dropout"),
    ("model.name=unfit:missing", "model.name: unfit:missing cannot be imported"),
    ("pruning.structure=channels model.name=unfit:single", "pruning.structure: channels needs a convolution or linear"),
    ("pruning.structure=channels scenario.pruning.max_ratio=0.99",
     "scenario.pruning.max_ratio: must be at most 0.9842"),
    ("model.arguments={hiden: 3}", "model.arguments.hiden: mlp takes no such argument"),
])
def test_a_model_that_does_not_fit_is_named_before_anything_is_written(small, tmp_path, monkeypatch, override, says):
    (tmp_path / "unfit.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("unfit", None)
    experiment = small("rounds=2", *([override] if "{" in override else override.split()))
    with pytest.raises(InputError, match=says):
        train(experiment, tmp_path / "run", plan=planned(experiment, (2, [0], 0.0)))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_named(small, tmp_path):
    experiment = small("rounds=2", "engine.device=cuda")
    with pytest.raises(InputError, match=r"engine\.device: torch finds no CUDA device"):
        train(experiment, tmp_path / "run", plan=planned(experiment, (2, [0], 0.0)))


def test_a_folder_that_cannot_be_made_is_named(small, tmp_path):
    (tmp_path / "file").write_text("")
    experiment = small("rounds=2")
    with pytest.raises(InputError, match="cannot be created"):
        train(experiment, tmp_path / "file" / "run", plan=planned(experiment, (2, [0], 0.0)))


def test_runs_that_differ_are_not_trained_as_one(small, tmp_path):
    """Were they, the second would silently learn from the first's data."""
    folders = []
    for number, samples in enumerate((800, 900)):
        experiment = small("rounds=2", f"data.train_samples={samples}")
        folders.append(write_run(prepare(experiment, planned(experiment, (2, [0], 0.0))), tmp_path / f"run{number}"))
    with pytest.raises(InputError, match="cannot be trained together"):
        execute(folders)
    assert main([str(folder) for folder in folders]) == 0
    assert all(Run(folder).finished for folder in folders)


def test_a_second_process_on_a_run_is_refused(small, tmp_path):
    experiment = small("rounds=4")
    folder = write_run(prepare(experiment, planned(experiment, (4, [0], 0.0))), tmp_path / "run", copy_data=True)

    def meanwhile(position, job, events):
        if events[-1]["round"] == 1:
            done = subprocess.run([sys.executable, "-m", "fedgap.running.run", str(folder)], capture_output=True,
                                  text=True)
            assert done.returncode == 2
            assert "is using this folder" in done.stderr

    run, = execute([folder], on_events=meanwhile)
    assert [event["round"] for event in run.history] == [0, 1, 2, 3]
