"""A simulated training whose loss becomes infinite is taken back once, at half the rate, and then fails."""

import json

import pytest

from fedgap.errors import RunFailedError
from fedgap.running.run import Run, execute, main
from fedgap.running.train_and_resume import resume, train, write_run
from tests.running.test_learner import planned

STEEP = ("rounds=24", "evaluate_every=2", "model.arguments={hidden: [16]}", "data.train_samples=500",
         "data.test_samples=100")
"""Two layers, whose product leaves float32 where the weights are of the order 1e25."""


@pytest.fixture
def steep(small):
    """steep(rate) → an experiment and its plan, whose training becomes infinite at a large rate."""
    def make(rate):
        experiment = small(*STEEP, f"learning.rate={rate}")
        return experiment, planned(experiment, (24, range(4), 0.0))
    return make


def test_it_is_taken_back_once_and_fails_the_second_time(steep, tmp_path):
    experiment, plan = steep(1e25)
    run = train(experiment, tmp_path / "run", plan=plan)
    assert run.summary["failed"] is True
    assert run.failure.startswith("training diverged: the loss is no longer finite")
    assert run.summary["taken_back"]["rate_factor"] == 0.5
    (spent,) = run.history[0]["uncounted"]
    assert spent["changed"] == "the rate was halved from 1e+25 to 5e+24"
    assert spent["reason"] == "training diverged: the loss is no longer finite"
    assert [event["round"] for event in run.history] == list(range(len(run.history)))
    assert run.summary["energy_j"] == pytest.approx(sum(event["energy_j"] for event in run.history))
    assert main([str(run.folder)]) == RunFailedError.exit_code == 4
    assert resume(run.folder).summary == run.summary


def test_one_of_two_runs_is_taken_back_and_the_other_does_not_notice(steep, tmp_path):
    folders = []
    for rate in (0.01, 1e25):
        experiment, plan = steep(rate)
        folders.append(prepared(experiment, plan, tmp_path / f"{rate:g}"))
    good, bad = execute(folders)
    assert not good.failure
    assert good.summary["rounds"] == 24
    assert "taken_back" not in good.summary
    assert bad.failure
    experiment, plan = steep(0.01)
    alone = train(experiment, tmp_path / "alone", plan=plan)
    assert [e["energy_total_j"] for e in good.history] == [e["energy_total_j"] for e in alone.history]


def prepared(experiment, plan, folder):
    from fedgap.running.prepare import prepare

    return write_run(prepare(experiment, plan), folder)


def test_half_the_rate_may_be_enough(steep, tmp_path, monkeypatch):
    """The first evaluation after round 6 is declared infinite; the rest is trained at half the rate from there."""
    from fedgap.running.stopping import DivergenceRule

    reason, done = DivergenceRule.reason, []

    def once(rule, first, losses, rate, key="scenario.learning.rate"):
        if len(losses) == 3 and not done:
            done.append(True)
            losses[-1] = None
        return reason(rule, first, losses, rate, key)

    monkeypatch.setattr(DivergenceRule, "reason", once)
    experiment, plan = steep(0.01)
    run = train(experiment, tmp_path / "run", plan=plan)
    assert not run.failure
    assert run.summary["rounds"] == 24
    assert [event["round"] for event in run.history] == list(range(24))
    spent = run.history[4]["uncounted"][0]
    assert spent["rounds"] == [4, 5]
    assert spent["energy_j"] == pytest.approx(run.history[0]["energy_j"] + run.history[1]["energy_j"])
    assert json.loads((Run(run.folder).folder / "summary.json").read_text())["taken_back"]["rate_factor"] == 0.5
