"""Runs trained together equal the same runs on their own, whatever their lengths, budgets and selections."""

import signal

import pytest
import torch
from safetensors.torch import load_file

from fedgap.running.job import Job
from fedgap.running.prepare import divide, prepare
from fedgap.running.run import Run, execute
from fedgap.running.stacked_runs import train_together
from fedgap.running.train_and_resume import train, write_run
from tests.running.plans import by_hand

VARIANTS = [  # further overrides, segments: other lengths, selections, ratios, rates, seeds; one stops by its budget
    (("seed=0", "rounds=9"), [(1, range(10), 0.0), (8, [0, 1, 2], 0.4)]),
    (("seed=1", "rounds=6"), [(1, range(10), 0.0), (5, range(10), 0.2)]),
    (("seed=0", "rounds=11", "scenario.learning.rate=0.05"), [(11, [4], 0.0)]),
    (("seed=2", "rounds=10", "budget.delay_s=2.5", "faults.dropout_probability=0.4"), [(10, range(10), 0.3)]),
    (("seed=1", "rounds=8", "mode=as_printed", "faults.dropout_probability=0.7"), [(8, [3, 6], 0.3)]),
    (("seed=0", "rounds=5", "pruning.importance=random"), [(5, range(4), 0.5)]),
]


@pytest.fixture(scope="module")
def alone(small, tmp_path_factory):
    """Each variant trained alone."""
    runs, folder = [], tmp_path_factory.mktemp("alone")
    for number, (overrides, segments) in enumerate(VARIANTS):
        # In float64, lest rounding move a weight across the cut, after which two runs part.
        experiment = small("model.name=lenet5", "engine.precision=float64", *overrides)
        _, _, scenario = divide(experiment)
        plan = by_hand(scenario, *segments)
        runs.append((train(experiment, folder / str(number), plan=plan), prepare(experiment, plan)))
    return runs


@pytest.fixture
def together(alone, tmp_path):
    """Each variant alone, and prepared once more to be trained together."""
    folders = [write_run(prepared, tmp_path / f"together{n}") for n, (_, prepared) in enumerate(alone)]
    return [run for run, _ in alone], folders


def assert_same(run: Run, alone: Run) -> None:
    ours, theirs = run.history, alone.history
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for key in ("clients", "energy_total_j", "delay_total_s", "pruning_ratio"):
            assert a[key] == b[key]
        assert a["train_loss"] == (b["train_loss"] and pytest.approx(b["train_loss"], rel=1e-4))
        if "test_loss" in a:
            assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-4)
    for name, tensor in load_file(alone.folder / "model.safetensors").items():
        torch.testing.assert_close(load_file(run.folder / "model.safetensors")[name], tensor, rtol=1e-3, atol=1e-5)
    assert run.summary["ended"] == alone.summary["ended"]


def test_together_is_as_alone(together):
    alone, folders = together
    assert len({Job.load(folder / "job").kind for folder in folders}) == 1
    for run, single in zip(train_together(folders), alone, strict=True):
        assert_same(run, single)
    assert alone[3].summary["ended"] == "the delay budget is spent"
    assert alone[3].summary["rounds"] < 10
    assert alone[4].history[0]["train_loss"] is None  # nobody was heard in its first round


def test_an_interrupted_stack_goes_on(together):
    alone, folders = together

    def interrupt(position, job, events):
        if position == 2 and events[-1]["round"] == 7:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        execute(folders, on_events=interrupt)
    assert [Run(folder).finished for folder in folders] == [False, True, False, True, True, True]
    for run, single in zip(execute(folders), alone, strict=True):
        assert_same(run, single)


def test_what_cannot_be_stacked_is_not(small, tmp_path):
    jobs = []
    for overrides in (("seed=0",), ("seed=1",), ("model.name=lenet5",), ("pruning.accounting=measured",)):
        experiment = small("rounds=2", *overrides)
        _, _, scenario = divide(experiment)
        jobs.append(prepare(experiment, by_hand(scenario, (2, [0], 0.0))).job)
    kinds = [job.kind for job in jobs]
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 3
