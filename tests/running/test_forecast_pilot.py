"""The forecast's pilot: what it trains, what it may see, and what is written."""

import numpy as np
import pytest

import fedgap.running.forecast_pilot as forecast_pilot
from fedgap.config import Experiment, Scenario
from fedgap.running.calibrate import calibrate
from fedgap.running.forecast_pilot import design, full_run_samples, least_samples, pilot_plan, run_pilot, standing_in
from fedgap.running.prepare import divide, prepare
from fedgap.running.train_stack import train_stack
from fedgap.theory.forecast import PlanFeatures

SMALL = ["model.name=mlp", "data.train_samples=600", "engine.threads=1", "engine.device=cpu", "mode=practical",
         "rounds=20", "learning.local_steps=4", "partition.concentration=0.5"]


@pytest.fixture(scope="module")
def experiment():
    return Experiment.load("embedded", SMALL)


@pytest.fixture(scope="module")
def pilot(experiment):
    return run_pilot(experiment)


def test_a_design_keeps_its_samples_and_varies_everything(experiment):
    scenario = divide(experiment)[2]
    runs = design(scenario, 200_000, runs=32, seed=0)
    batch = scenario.learning.batch_size
    assert 0.8 * 200_000 < sum(r.rounds * r.local_steps * batch * r.selected.sum() for r in runs) <= 200_000
    assert {run.local_steps for run in runs} >= {1, 2, 4, 8}
    assert {32} < {run.upload_bits for run in runs} <= {32, 8, 4}
    assert max(run.pruning for run in runs) <= scenario.pruning.max_ratio
    assert 0 < sum(run.pruning == 0.0 for run in runs) < len(runs)
    assert max(run.rounds for run in runs) > 5 * min(run.rounds for run in runs)
    assert len({int(run.selected.sum()) for run in runs}) > 4


def test_a_pilot_run_is_a_plan_with_a_dense_first_round(experiment):
    scenario = divide(experiment)[2]
    run = next(run for run in design(scenario, 200_000, runs=32, seed=0) if run.pruning > 0.0)
    plan = pilot_plan(run, scenario)
    assert [segment.rounds for segment in plan.segments] == [1, run.rounds - 1]
    assert plan.segments[0].pruning_ratio.max() == 0.0
    assert set(plan.segments[1].pruning_ratio[run.selected]) == {run.pruning}


def test_the_cost_is_stated_by_hand(experiment, pilot):
    # 20 rounds of 10 clients with 4 steps of 32 samples are 25,600 samples.
    assert full_run_samples(divide(experiment)[2]) == 25_600
    assert pilot.full_run_samples == 25_600
    # That is less than two rounds of three clients and one step for the smallest run: the least possible is taken.
    assert 25_600 < pilot.samples <= least_samples(divide(experiment)[2], 32)
    assert pilot.validation_samples == 60
    assert f"{len(pilot.features)} runs, {pilot.samples:,} training samples" in pilot.cost


def test_the_test_set_has_no_part_in_it(experiment, pilot, monkeypatch):
    """With other test labels the pilot sees the same accuracies."""
    whole = divide

    def other_labels(wanted):
        dataset, parts, scenario = whole(wanted)
        return forecast_pilot.replace(dataset, test_x=dataset.test_x.flip(0)), parts, scenario

    monkeypatch.setattr(forecast_pilot, "divide", other_labels)
    assert run_pilot(experiment).accuracies == pilot.accuracies


def test_an_interrupted_pilot_uses_what_is_finished(experiment, pilot):
    seen = []

    def stop_at_ten():
        seen.append(1)
        if len(seen) == 10:
            raise KeyboardInterrupt

    short = run_pilot(experiment, done=stop_at_ten)
    assert short.interrupted
    assert len(short.features) == 10
    assert set(short.accuracies) <= set(pilot.accuracies)
    with pytest.raises(KeyboardInterrupt):
        run_pilot(experiment, done=lambda: (_ for _ in ()).throw(KeyboardInterrupt))


def test_the_least_pilot_has_two_rounds_in_every_run(experiment):
    scenario = divide(experiment)[2]
    runs = design(scenario, least_samples(scenario, 32), runs=32, seed=0)
    assert len(runs) == 32
    assert min(run.rounds for run in runs) == 2


def test_a_stand_in_replaces_the_data_and_a_partition_from_a_file(experiment):
    assert standing_in(experiment, "fashion-mnist").data.name == "fashion-mnist"
    other = run_pilot(Experiment.load("mnist", [*SMALL[:1], *SMALL[2:]]), stand_in="embedded", share=0.5)
    assert other.data == "embedded"
    assert other.fitted.origin.endswith("(a stand-in)")


def test_calibrate_writes_the_forecast(experiment, pilot, tmp_path):
    found = calibrate(experiment, pilots=1, steps=2, rate=False)
    path = tmp_path / "scenario.yaml"
    found.save(path)
    read = Scenario.load(path).fitted_forecast()
    assert read.origin == pilot.fitted.origin
    assert read.runs == len(pilot.features)
    for plan in pilot.features[:5]:
        assert read.predict(plan).accuracy == pytest.approx(pilot.fitted.predict(plan).accuracy, abs=2e-3)
        assert read.outside(plan) == () or np.isfinite(read.spread)
    assert "forecast.start" in str(found)
    assert calibrate(experiment, pilots=1, steps=2, rate=False, forecast=False).forecast is None


def test_a_run_with_validation_samples_corrects_its_forecast():
    keys = [*SMALL, "data.validation=0.1", "rounds=30", "evaluate_every=15", "scenario.forecast.like=lenet5-mnist"]
    prepared = prepare(Experiment.load("embedded", keys))
    (rounds,), _ = train_stack([prepared.job], prepared.dataset)
    assert [event["round"] for event in rounds] == [14, 29]
    for event in rounds:
        assert event["forecast"].keys() == {"accuracy", "low", "high", "confidence"}
        assert event["forecast"]["low"] < event["forecast"]["accuracy"] < event["forecast"]["high"]
    # At the end the validation accuracy, of 60 samples, counts beside the forecast.
    plain = prepared.scenario.fitted_forecast().predict(PlanFeatures(**prepared.job.extra["forecast"]["plan"])).accuracy
    ends = sorted([plain, rounds[-1]["validation_accuracy"]])
    assert ends[0] <= rounds[-1]["forecast"]["accuracy"] <= ends[1]
    other = prepare(Experiment.load("embedded", [*keys[:-1], "mode=repaired"]))
    assert "forecast" not in other.job.extra
