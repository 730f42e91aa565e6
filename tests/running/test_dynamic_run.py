"""Runs whose rounds a policy decides: resumed bit by bit, within budgets, and refused where that makes no sense."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.config.trace_csv import read_trace, write_trace
from fedgap.errors import InputError
from fedgap.planning.policies.policy import Decision
from fedgap.running.events import read_rounds
from fedgap.running.label_probabilities import target_changes
from fedgap.running.prepare import prepare
from fedgap.running.run import open_data
from fedgap.running.run_report import plan_changes
from fedgap.running.steering import Steering
from fedgap.running.sweep import sweep
from fedgap.running.trace_changes import clients_changes
from fedgap.running.train_and_resume import resume, train
from fedgap.running.train_stack import train_stack
from fedgap.system.trace import Trace
from tests.running.test_run import planned, results
from tests.running.test_run_folder import PAGE

__fedgap__ = ["Waiting", "Wrong"]

DYNAMIC = ("rounds=8", "scheme=forecast", "mode=practical", "scenario.world.fading.doppler_hz=0.3",
           "budget.energy_j=10", "budget.delay_s=8", "scenario.world.availability.mean_on_s=4",
           "scenario.world.availability.mean_off_s=2", "scenario.world.step_s=0.5", "learning.local_steps=1")


class Waiting:
    """A policy of somebody else: idle in every second row, then the plan's first round."""

    def __init__(self, start):
        self.start, self.state = start, {"calls": 0}

    def decide(self, view):
        self.state["calls"] += 1
        selected = self.start.plan.segments[0].selected & view.available
        if self.state["calls"] % 2 or not selected.any():
            return Decision(None)
        from fedgap.planning.policies.present_round import PresentRound

        present = PresentRound.of(self.start, view)
        return Decision(present.within(selected[present.clients], 0.2 * view.energy_j, 0.2 * view.delay_s))


class Wrong:
    """A policy whose decision is the plan's first round, changed by ``change``."""

    change = staticmethod(lambda policy, segment, view: segment)
    asks = staticmethod(lambda view: None)

    def __init__(self, start):
        self.start, self.state = start, {}

    def decide(self, view):
        segment = replace(self.start.plan.segments[0], rounds=1)
        decision = self.change(self, segment, view)
        return decision if isinstance(decision, Decision) else Decision(decision)


def _kept(policy, segment, view):
    policy.state["clients"] = {1, 2}
    return segment


WRONG = [
    (lambda policy, segment, view: "three", "must decide a Segment or None; got 'three'"),
    (lambda policy, segment, view: replace(segment, selected=segment.selected[:4]),
     "must give selected as an array with one entry for each of 10 clients"),
    (lambda policy, segment, view: replace(segment, selected=segment.selected & False),
     "must select at least one client"),
    (lambda policy, segment, view: replace(segment, power_w=np.full(10, 500.0)),
     "must keep power_w of client . from 0 to 0.5; got 500"),
    (lambda policy, segment, view: replace(segment, frequency_hz=np.full(10, np.nan)),
     "must keep frequency_hz of client . from 0 to .*; got nan"),
    (lambda policy, segment, view: replace(segment, pruning_ratio=np.ones(10)), "must keep pruning_ratio of client ."),
    (lambda policy, segment, view: replace(segment, rounds=2), "must decide a segment with one round; got 2"),
    (lambda policy, segment, view: replace(segment, local_steps=7), "must keep the plan's local_steps and upload_bits"),
    (lambda policy, segment, view: Decision(segment, reason=None), "must give its reason as text; got None"),
    (lambda policy, segment, view: Decision(segment, forecast_error="low"), "must give forecast_error as a number"),
    (lambda policy, segment, view: Decision(segment, notes={"queue": "long"}), "must give queue as a number"),
    (_kept, "must have only plain values in its state"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_a_policy_decides_wrongly_is_said_in_one_line(small, tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(Wrong, "change", staticmethod(change))
    wrong = small("rounds=3", "scheme=forecast", "mode=practical", "budget.energy_j=10", "budget.delay_s=8",
                  "learning.local_steps=1", "policy=tests.running.test_dynamic_run:Wrong")
    with pytest.raises(InputError, match=f"^policy: tests.running.test_dynamic_run:Wrong {message}") as caught:
        train(wrong, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_whom_a_policy_may_ask(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Wrong, "asks", staticmethod(lambda view: [0, 1]))
    wrong = small("rounds=3", "scheme=forecast", "mode=practical", "budget.energy_j=10", "budget.delay_s=8",
                  "learning.local_steps=1", "policy=tests.running.test_dynamic_run:Wrong")
    with pytest.raises(InputError, match=r"^policy: .*:Wrong.asks must return None or an array of 10 truth values"):
        train(wrong, tmp_path / "run")


def test_a_policy_cannot_overdraw_a_battery_or_a_budget(small, tmp_path, monkeypatch):
    """Every client transmits with full power, which a small battery cannot pay, nor a small budget."""
    def everybody(policy, segment, view):
        fleet = view.fleet
        return replace(segment, selected=view.available, pruning_ratio=np.zeros(10), power_w=fleet.max_power_w,
                       frequency_hz=fleet.max_frequency_hz)

    monkeypatch.setattr(Wrong, "change", staticmethod(everybody))
    settings = ("rounds=3", "scheme=forecast", "mode=practical", "budget.delay_s=8", "learning.local_steps=1",
                "policy=tests.running.test_dynamic_run:Wrong")
    battery = train(small(*settings, "budget.energy_j=100", "scenario.clients[4].battery_j=0.1"), tmp_path / "battery")
    assert battery.summary["ended"] == "the next round would overdraw the battery of client 4"
    assert all(row["compute_j"] + row["upload_j"] <= 0.1 for row in battery.summary["clients"][4:5])
    budget = train(small(*settings, "budget.energy_j=0.2"), tmp_path / "budget")
    assert budget.summary["rounds"] == 0
    assert budget.summary["ended"] == "the first round would exceed the energy budget"


DRIFTING = ("scenario.world.drift.who=both", "scenario.world.drift.kind=gradual",
            "scenario.world.drift.memory_rounds=3",
            "scenario.clients[0].battery_j=0.02", "scenario.clients[3].battery_j=0.02")


@pytest.mark.parametrize(("policy", "world"), [("replan", ()), ("replan", DRIFTING), ("static", DRIFTING)])
def test_a_dynamic_run_that_is_interrupted_ends_bit_identically(small, tmp_path, policy, world):
    experiment = small(*DYNAMIC, *world, f"policy={policy}")
    plan = prepare(experiment).plan
    whole = train(experiment, tmp_path / "whole", plan=plan)
    assert whole.summary["rounds"] > 6

    def interrupt(position, job, events):
        if events[-1]["round"] == 5:  # after the checkpoint of four rounds
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "cut", plan=plan, on_events=interrupt)
    assert not (tmp_path / "cut" / "summary.json").exists()
    assert results(resume(tmp_path / "cut").folder) == results(whole.folder)


def test_the_ledger_and_the_events_of_a_dynamic_run_agree(small, tmp_path):
    run = train(small(*DYNAMIC, f"policy={__name__}:Waiting"), tmp_path / "run")
    events, summary = read_rounds(run.folder / "rounds.jsonl"), run.summary
    assert summary["delay_s"] <= 8.0 * (1.0 + 1e-6)
    assert summary["energy_j"] == pytest.approx(sum(event["energy_j"] for event in events))
    trained = sum(event["delay_s"] + event.get("idle_s", 0.0) for event in events)
    assert events[-1]["delay_total_s"] == pytest.approx(trained)
    assert all(event["idle_s"] >= 0.5 for event in events)
    described = {word.rstrip("/") for word in re.findall(r"`([\w./]+)`", PAGE.read_text())}
    assert {path.name for path in run.folder.iterdir()} | set(events[-1]) <= described
    state = json.loads((run.folder / "checkpoint" / "latest.json").read_bytes())["state"]
    assert {"steering", *state["steering"]} <= described
    trace = read_trace("trace.csv", run.folder, run.job.names)
    for event in events:
        available = trace.available[trace.row(event["row"])]
        assert event["available"] == np.flatnonzero(available).tolist()
        assert set(event["clients"]) <= set(event["available"])


def still_world(rounds, clients):
    """A constant trace whose cells can be changed."""
    return Trace(*(np.ones((rounds, clients), dtype) for dtype in (float, bool, float)))


def test_the_report_says_when_and_why_the_plan_changed(small, tmp_path):
    """In every third row one client is gone and another computes four times slower. There is no time to wait."""
    keys = ("rounds=6", "scheme=forecast", "mode=practical", "policy=replan", "budget.energy_j=10", "budget.delay_s=4",
            "learning.local_steps=8")
    names = prepare(small(*keys)).job.names
    still = still_world(3, len(names))
    still.available[2:, 0], still.speed[2:, 1] = False, 0.25
    write_trace(tmp_path / "world.csv", still, names)
    run = train(small(*keys, f"scenario.world.trace={tmp_path / 'world.csv'}"), tmp_path / "run")
    first = next(event for event in run.history if "planned_again" in event)
    assert first["round"] == 2
    assert first["planned_again"].endswith(f"{names[0]} left; {names[1]} computes 4 times slower")
    assert first["speed"][:2] == [1.0, 0.25]
    assert "Round 2 was planned again: the world differs" in str(run).replace("\n", " ")
    assert run.summary["policy"] == "replan"
    assert run.summary["planned_again"] == sum("planned_again" in event for event in run.history)
    assert run.trained_job.rounds == len(run.history)
    assert [np.flatnonzero(chosen).tolist() for chosen in run.trained_job.selected] == [
        event["clients"] for event in run.history]


def test_what_changed_is_said_of_few_clients_by_name():
    trace = still_world(2, 6)
    trace.available[1, :5] = False
    trace.gain[1, 5] = 0.001
    names = [f"client {n}" for n in range(6)]
    assert clients_changes(trace, 0, names) == []
    assert clients_changes(trace, 1, names) == ["client 0, client 1, client 2 and 2 more left",
                                                "the channel of client 5 is 30 dB weaker"]
    assert clients_changes(trace, 2, names) == ["client 0, client 1, client 2 and 2 more came back",
                                                "the channel of client 5 is 30 dB stronger"]


def test_dynamic_runs_are_swept_like_others(small, tmp_path):
    sweep(small(*DYNAMIC), {"policy": ["static", "lyapunov"]}, tmp_path / "sweep")
    folders = list((tmp_path / "sweep" / "runs").iterdir())
    assert {json.loads((folder / "job" / "job.json").read_bytes())["policy"]["name"] for folder in folders} == {
        "static", "lyapunov"}


def test_what_makes_no_sense_is_refused(small, tmp_path):
    with pytest.raises(InputError, match=r"^policy: must be one of static, replan"):
        small("policy=statik")
    with pytest.raises(InputError, match=r"^policy: must be set for a scenario with a world"):
        train(small(*DYNAMIC), tmp_path / "a")
    with pytest.raises(InputError, match=r"^world.drift.classes: must be at most the number of classes, 10; got 11"):
        train(small(*DYNAMIC, "policy=static", "scenario.world.drift.classes=11"), tmp_path / "a")


def test_a_wrong_trace_leaves_no_folder_behind(small, tmp_path):
    (tmp_path / "world.csv").write_text("round,client\n0,nobody\n")
    with pytest.raises(InputError, match="'nobody' is not in the fleet"):
        train(small("policy=static", f"scenario.world.trace={tmp_path / 'world.csv'}"), tmp_path / "run")
    assert not list((tmp_path / "run").glob("*"))


def test_a_world_without_clients_ends_with_every_row_idle(small, tmp_path):
    names = prepare(small()).job.names
    away = still_world(1, len(names))
    away.available[:] = False
    write_trace(tmp_path / "world.csv", away, names)
    run = train(small("rounds=3", "policy=static", "budget.delay_s=8",
                      f"scenario.world.trace={tmp_path / 'world.csv'}"), tmp_path / "run")
    assert run.summary["ended"] == "the delay budget is spent; every row was idle"


def test_clients_whose_labels_drift_draw_by_what_they_have_collected(small, tmp_path):
    """Five of eight rounds after a sudden change, of which two rows are remembered, all mass is on the first label."""
    run = train(small(*DYNAMIC, *DRIFTING, "policy=static", "scenario.world.drift.kind=sudden",
                      "learning.batches=as_is", "scenario.world.drift.classes=1", "scenario.world.drift.mass=1.0",
                      "scenario.world.drift.memory_rounds=2"), tmp_path / "run")
    steering = Steering.of(run.folder, run.job)
    steering.load(json.loads((run.folder / "checkpoint" / "latest.json").read_bytes())["state"]["steering"])
    first, last = (steering.round_job(number) for number in (0, len(steering.decided) - 1))
    own = run.job.label_counts / run.job.label_counts.sum(axis=1, keepdims=True)
    for job, expected in ((first, own), (last, np.eye(10)[[0] * 10] * (own[:, :1] > 0.0))):
        chosen = job.selected[0] & (expected.sum(axis=1) > 0.0)
        assert chosen.any()
        np.testing.assert_allclose(job.label_probabilities[0, chosen], expected[chosen])
    events = read_rounds(run.folder / "rounds.jsonl")
    assert any(event.get("label_reports") for event in events)


def test_rounds_decided_beforehand_train_the_same_model(small, tmp_path):
    """With a constant rate, as the schedule follows the rounds in one and the budgets in the other."""
    experiment = small(*DYNAMIC, *DRIFTING, "policy=replan", "learning.schedule=constant")
    ready = prepare(experiment)
    run = train(experiment, tmp_path / "run", plan=ready.plan)
    job = Steering.in_world(ready.job, ready.scenario, ready.plan, ready.scenario.trace(0)).decided_beforehand()
    [events], _ = train_stack([job], ready.dataset)
    live = {event["round"]: event["test_accuracy"] for event in run.history if "test_accuracy" in event}
    assert {event["round"]: event["test_accuracy"] for event in events} == live
    assert all("target" in event for event in events)


def test_accuracy_counts_classes_by_the_present_target(small, tmp_path):
    """After a sudden drift to one class the accuracy is that class's."""
    drift = ("scenario.world.drift.kind=sudden", "scenario.world.drift.classes=1", "scenario.world.drift.mass=1.0")
    run = train(small("rounds=6", "scheme=forecast", "mode=practical", "policy=static", "evaluate_every=1", *drift),
                tmp_path / "run")
    last = read_rounds(run.folder / "rounds.jsonl")[-1]
    dataset = open_data(run)
    zeros = dataset.test_y == 0
    answers = run.trained.module(dataset.test_x).argmax(1)
    assert last["target"] == pytest.approx([1.0] + [0.0] * 9)
    assert last["test_accuracy"] == pytest.approx(float((answers[zeros] == 0).float().mean()))


@pytest.mark.parametrize(("batches", "same"), [("target", True), ("balanced", False)])
def test_momentum_starts_anew_where_batches_follow_another_target(small, tmp_path, batches, same):
    """With eight rounds the target changes in each of them, so that momentum is never used: the server's is then
    plain SGD. Balanced batches do not follow the target, and momentum continues."""
    drift = ("rounds=8", "learning.local_steps=2", "mode=practical", "policy=static",
             "evaluate_every=1", "scenario.world.drift.kind=recurring", f"learning.batches={batches}")
    accuracies = []
    for optimiser in ("momentum", "sgd"):
        experiment = small(*drift, f"learning.server.optimiser={optimiser}")
        run = train(experiment, tmp_path / optimiser, plan=planned(experiment, (8, range(10), 0.2)))
        accuracies.append([event["test_accuracy"] for event in run.history])
    assert (accuracies[0] == accuracies[1]) is same


def test_a_target_changes_where_it_has_moved_far_enough_since_the_last_change():
    """Shares of the first of two classes: the total variation is their difference."""
    shares = (0.5, 0.55, 0.58, 0.61, 0.65, 0.72, 0.5, 0.5)
    assert target_changes([np.array([share, 1.0 - share]) for share in shares]) == [3, 5, 6]


def test_a_dynamic_run_is_charged_by_the_cost_curve_at_its_own_ratios(small, tmp_path):
    experiment = small(*DYNAMIC, "policy=static", "pruning.structure=channels", "budget.energy_j=1e6",
                       "budget.delay_s=1e6")
    run = train(experiment, tmp_path / "run", plan=planned(experiment, (1, range(10), 0.0), (7, range(10), 0.4)))
    curve = Scenario.load(run.folder / "scenario.yaml").fleet().cost_curve
    assert run.history[-1]["pruning_ratio"][0] == 0.4
    for event in run.history:
        share = curve.share_at(np.array(event["pruning_ratio"])).sum()
        assert event["uploaded_bits"] == pytest.approx(share * run.job.gradient_bits[0])


@pytest.mark.parametrize(("changes", "last"), [
    (4, "Round 3 was planned again: reason 3."),
    (5, "1 later round was also planned again; `planned_again` in rounds.jsonl says why."),
    (6, "2 later rounds were also planned again; `planned_again` in rounds.jsonl says why."),
])
def test_the_report_counts_the_changes_that_it_does_not_describe(changes, last):
    assert plan_changes([{"round": n, "planned_again": f"reason {n}"} for n in range(changes)])[-1] == last
