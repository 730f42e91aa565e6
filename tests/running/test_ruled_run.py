"""Runs whose clients a published rule chooses: charged for probing, resumed bit by bit, trained without a planner."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Experiment, Scenario
from fedgap.evidence.bundle import pack, unpack
from fedgap.evidence.training import train as train_jobs
from fedgap.evidence.training import training_key
from fedgap.planning.rule_plan import plan_by_rule
from fedgap.registry import RULES
from fedgap.running.prepare import prepare
from fedgap.running.run import open_data
from fedgap.running.train_and_resume import resume, train
from fedgap.system import probe_cost
from tests.running.conftest import SMALL
from tests.running.test_run import results

RULED = ("rounds=8", "scheme=forecast", "mode=practical", "budget.energy_j=6", "budget.delay_s=5",
         "learning.local_steps=1")


def test_a_probe_costs_a_forward_pass_and_a_few_bits():
    """Client 1 alone, by hand: a third of Z·e operations at full clock, then 32 bits at full power."""
    fleet = Scenario.load("paper-mnist").fleet()
    asked = np.arange(fleet.size) == 1
    cost = probe_cost(fleet, asked)
    cycles = 32 * float(fleet.flops_per_sample[1]) / 3 / float(fleet.flops_per_cycle[1])
    clock, power = float(fleet.max_frequency_hz[1]), float(fleet.max_power_w[1])
    snr = power * float(fleet.uplink_gain[1]) / (float(fleet.bandwidth_hz[1]) * float(fleet.uplink_noise_psd_w_hz))
    upload_s = 32.0 / (float(fleet.bandwidth_hz[1]) * np.log2(1.0 + snr))
    joules = float(fleet.pue[1] * fleet.capacitance[1]) * clock**2 * cycles + power * upload_s
    assert float(cost.delay_s) == pytest.approx(cycles / clock + upload_s)
    assert float(cost.energy_j) == pytest.approx(joules)
    assert not cost.client_j[~asked].any()


@pytest.fixture(scope="module")
def probing(tmp_path_factory):
    experiment = Experiment.load("embedded", [*SMALL, *RULED, "policy=power_of_choice", "checkpoint_every=2"])
    return experiment, train(experiment, tmp_path_factory.mktemp("probing") / "run")


def test_probes_are_in_the_ledger_and_in_the_events(probing):
    _, run = probing
    fleet = Scenario.load(run.folder / "scenario.yaml").fleet()
    summary = run.summary
    assert summary["rounds"] >= 3
    total_j = total_s = 0.0
    for event in run.history:
        asked = np.isin(np.arange(fleet.size), event["probed"])
        assert set(event["clients"]) <= set(event["probed"])
        cost = probe_cost(fleet, asked)
        assert (event["probe_j"], event["probe_s"]) == pytest.approx((float(cost.energy_j), float(cost.delay_s)))
        total_j, total_s = total_j + event["energy_j"] + event["probe_j"], total_s + event["delay_s"] + event["probe_s"]
        assert (event["energy_total_j"], event["delay_total_s"]) == pytest.approx((total_j, total_s))
    probes = sum(client["probe_j"] for client in summary["clients"])
    assert probes == pytest.approx(sum(event["probe_j"] for event in run.history), rel=0.2)  # the last may end the run
    assert summary["energy_j"] <= 6.0 * (1 + 1e-6)
    assert summary["delay_s"] <= 5.0 * (1 + 1e-6)


def test_the_clients_with_the_highest_present_losses_train(probing):
    """The losses that were told are those of the model before the round, so the first round's can be computed anew."""
    _, run = probing
    steering = json.loads((run.folder / "checkpoint" / "latest.json").read_bytes())["state"]["steering"]
    assert len(steering["decided"]) >= len(run.history)
    assert [entry["clients"] for entry in steering["decided"][: len(run.history)]] == [
        event["clients"] for event in run.history]
    assert all(loss is None or loss > 0.0 for loss in steering["losses"])


def test_a_ruled_run_that_is_interrupted_ends_bit_identically(probing, tmp_path):
    experiment, whole = probing

    def interrupt(position, job, events):
        if events[-1]["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "cut", plan=whole.plan, on_events=interrupt)
    assert results(resume(tmp_path / "cut").folder) == results(whole.folder)


def test_a_ruled_run_in_a_bundle_is_the_same_run(probing, tmp_path):
    _, run = probing
    job = replace(run.job, device="cpu", threads=1)
    key = training_key(job)
    pack({key: job}, tmp_path)
    (record,) = train_jobs(unpack(tmp_path), open_data(run))
    assert record["test_accuracy"][-1] == pytest.approx(run.summary["test_accuracy"], abs=1e-4)
    assert record["rounds"] == run.summary["rounds"]
    assert record["delay_total_s"][-1] == pytest.approx(run.history[-1]["delay_total_s"], rel=1e-4)
    assert training_key(replace(job, delay_budget_s=4.0)) != key


@pytest.mark.parametrize("rule", RULES.names())
def test_the_plan_of_a_rule_keeps_the_budgets_and_its_rounds_are_trained(small, rule):
    prepared = prepare(small(*RULED, f"policy={rule}"))
    plan, job = prepared.plan, prepared.job
    assert plan.feasible
    assert plan.scheme == rule
    assert plan.forecast is not None
    assert plan.energy_j <= 6.0 * (1 + 1e-6)
    assert plan.delay_s <= 5.0 * (1 + 1e-6)
    assert plan.rounds >= 2
    assert bool(job.policy) == RULES.load(rule).uses_losses
    assert plan_by_rule(prepared.scenario, rule).to_dict()["segments"] == plan.to_dict()["segments"]
