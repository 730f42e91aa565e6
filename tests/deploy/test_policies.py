"""Policies in a deployment: they see what was measured, and plan around nodes that became slow or left."""

import json

import numpy as np
import pytest

from fedgap.config import Experiment
from fedgap.config.trace_csv import read_trace
from fedgap.deploy.measured_world import FADES, MeasuredWorld, Slowness
from fedgap.deploy.transport import Answer, Quorum
from fedgap.errors import InputError
from fedgap.running.planned_measured import planned_and_measured
from fedgap.running.train_and_resume import train
from fedgap.system.channel import slower_link_gain, uplink_rate
from tests.deploy.direct import FIRST, news
from tests.deploy.test_session import same_model

FORECAST = ("rounds=10", "scheme=forecast", "mode=practical", "learning.local_steps=2", "budget.energy_j=12",
            "budget.delay_s=6", "evaluate_every=1")
POLL_S = 0.01  # times below 10 ms of computing and 50 ms on the way are then not told apart


def clocked(nodes, slow=None, since=99):
    """Let every node say that it computed for 0.2 s; one of them ten times as long from a round on."""
    def clock(client):
        def spoil(request, answer):
            if answer.fields.get("status") == "done":
                slowed = client == slow and request.fields["round"] >= since
                answer.fields["seconds"] = 2.0 if slowed else 0.2
            return answer.to_bytes()
        return spoil

    nodes.spoil = {node - FIRST: clock(node - FIRST) for node in nodes.nodes}
    return nodes


def leaves(nodes, client, after):
    """A node goes away once it has answered a round."""
    answered = nodes.spoil[client]

    def spoil(request, answer):
        if request.fields.get("round") == after:
            nodes.offline.add(FIRST + client)
        return answered(request, answer)

    nodes.spoil[client] = spoil


def test_a_node_that_became_slow_and_one_that_left_are_planned_around_in_the_next_round(fleet, tmp_path):
    nodes = clocked(fleet(6, *FORECAST, "rounds=8", "budget.delay_s=18", "partition.concentration=1000",
                          "scenario.model.flops_per_sample=4e7", "policy=replan"), slow=1, since=4)
    leaves(nodes, client=3, after=4)
    run = nodes.session(poll_s=POLL_S).run()
    before, after = run.history[:5], run.history[5:]
    assert all({1, 3} <= set(event["clients"]) for event in before)
    assert not any("planned_again" in event for event in before)
    # 0.7 of the logarithm of ten: 10 ** 0.7 = 5.01 times slower.
    assert after[0]["speed"] == [1.0, 0.1995, 1.0, 1.0, 1.0, 1.0]
    assert after[0]["available"] == [0, 1, 2, 4, 5]
    assert after[0]["planned_again"].endswith("client 3 left; client 1 computes 5 times slower")
    as_before_s = 5.01 * run.job.compute_s[0, 1] + run.job.upload_s[0, 1]
    assert after[0]["delay_s"] < 0.5 * as_before_s
    assert all(3 not in event["clients"] for event in after)
    assert not any("dropped" in event or "late" in event for event in run.history)
    assert run.summary["energy_j"] <= 12.0 * (1 + 1e-6)
    assert run.summary["delay_s"] <= 18.0 * (1 + 1e-6)
    # What was planned, of the rounds that were decided, stands beside what was measured.
    for n, row in enumerate(planned_and_measured(run.folder).to_dict()["nodes"]):
        asked = [event["round"] for event in run.history if n in event["clients"]]
        assert row["rounds"] == len(asked)
        assert row["measured_s"] == pytest.approx(sum(2.0 if n == 1 and number >= 4 else 0.2 for number in asked))
    # The recorded world drives a simulated run to the same rounds and the same model.
    trace = read_trace("trace.csv", run.folder, run.job.names)
    assert trace.rounds == run.history[-1]["row"] + 1  # replan may pass a row
    assert trace.available[5:, 3].sum() == 0
    again = Experiment.load(run.folder / "config.yaml", [f"scenario.world.trace={run.folder / 'trace.csv'}"])
    simulated = train(again, tmp_path / "simulated")
    for ours, theirs in zip(run.history, simulated.history, strict=True):
        for key in ("clients", "pruning_ratio", "available", "energy_total_j", "delay_total_s", "train_loss"):
            assert ours[key] == theirs[key], key
    same_model(run.folder, simulated.folder)


def test_a_static_policy_in_a_still_world_does_what_the_plan_alone_does(fleet, tmp_path):
    nodes = clocked(fleet(4, "rounds=6", "budget.energy_j=0.9", "budget.delay_s=2.6"))
    plain = nodes.session("plain").run()
    experiment = Experiment.load(nodes.folder / "experiment.yaml", ["policy=static"])
    experiment.save(nodes.folder / "experiment.yaml")
    static = nodes.session("static", poll_s=POLL_S).run()
    same_model(plain.folder, static.folder)
    for ours, theirs in zip(static.history, plain.history, strict=True):
        assert ours["masks"] == theirs["masks"]
        assert ours["energy_total_j"] == pytest.approx(theirs["energy_total_j"], rel=1e-6)
        assert ours["delay_total_s"] == pytest.approx(theirs["delay_total_s"], rel=1e-6)
        assert "gain" not in ours
        assert "speed" not in ours
    assert any(ratio > 0.1 for event in static.history for ratio in event["pruning_ratio"])


def test_a_killed_server_resumes_with_its_policy_and_its_world(fleet):
    nodes = clocked(fleet(3, *FORECAST, "policy=replan", "evaluate_every=3"), slow=1, since=3)

    def killed(job, event):
        if event["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nodes.session(poll_s=POLL_S, on_event=killed).run()
    run = nodes.session(poll_s=POLL_S).run()
    events = run.history
    assert [event["round"] for event in events] == list(range(len(events)))
    # The decision that was not trained is taken back, and its row is passed; none is forgotten.
    assert [event["row"] for event in events[3:7]] == [3, 4, 6, 7]
    trace = read_trace("trace.csv", run.folder, run.job.names)
    assert trace.rounds == events[-1]["row"] + 1
    for event in events:
        assert event.get("speed", [1.0] * 3) == pytest.approx(trace.speed[event["row"]], rel=1e-3)
    state = json.loads((run.folder / "checkpoint" / "latest.json").read_bytes())["state"]
    assert state["steering"]["measured"]["processor"]["log_slower"][1] > 0.0
    assert run.summary["delay_s"] <= 6.0 * (1 + 1e-6)


def test_a_round_that_does_not_count_is_decided_again_without_the_lost_nodes(fleet):
    nodes = clocked(fleet(4, *FORECAST, "policy=replan"))
    answered = nodes.spoil[0]

    def lose(request, answer):
        if request.fields.get("round") == 3:
            nodes.errors |= {1: "Flower error 4: gone", 2: "Flower error 4: gone", 3: "Flower error 4: gone"}
            nodes.offline |= {FIRST + 1, FIRST + 2, FIRST + 3}
        return answered(request, answer)

    nodes.spoil[0] = lose
    run = nodes.session(poll_s=POLL_S, quorum=Quorum(share=1.0)).run()
    fourth = run.history[3]
    assert fourth["available"] == [0]
    assert fourth["clients"] == [0]
    assert "1 of 4 needed updates arrived" in fourth["uncounted"][0]["reason"]
    assert fourth["row"] > 3  # the row of the lost round is passed, and replan may wait for others to come back
    assert run.summary["energy_j"] == pytest.approx(sum(event["energy_j"] for event in run.history))
    assert run.summary["energy_j"] <= 12.0 * (1 + 1e-6)


def test_a_node_that_answers_after_the_deadline_is_away_for_a_round_and_then_known_to_be_slow(fleet):
    nodes = clocked(fleet(4, *FORECAST, "policy=replan"), slow=1, since=4)
    answered, kept = nodes.spoil[1], []

    def late(request, answer):
        data = answered(request, answer)
        if request.fields.get("round") != 4:
            return data
        kept.append((str(len(nodes.requests) - 1), data))  # the ticket of this request
        return None

    nodes.spoil[1] = late

    def deliver(job, event):
        if event["round"] == 4:
            ticket, data = kept[0]
            nodes.box[ticket] = Answer(ticket, data)

    run = nodes.session(poll_s=POLL_S, round_s=0.5, on_event=deliver).run()
    assert run.history[4]["late"] == [1]
    assert 1 not in run.history[5]["available"]
    assert (5, 1, "answered round 4 after its deadline") in news(run)
    assert 1 in run.history[6]["available"]
    assert run.history[6]["speed"][1] == pytest.approx(0.1995)


def test_a_server_without_nodes_waits_and_no_budget_is_spent(fleet):
    nodes = clocked(fleet(3, "rounds=4", "policy=static"))
    for client in range(3):
        leaves(nodes, client, after=1)
    said = []

    def come_back(what):
        said.append(what)
        nodes.offline.clear()
        clocked(nodes)

    run = nodes.session(poll_s=POLL_S, round_s=0.1, on_wait=come_back).run()
    assert said == ["round 3 waits: 0 of 1 needed clients are there; missing: client 0, client 1, client 2"]
    assert [len(event["available"]) for event in run.history] == [3] * 4
    assert not any("idle_s" in event for event in run.history)
    assert any("the server waited" in what for _, _, what in news(run))


def test_a_world_that_would_be_drawn_is_refused(fleet):
    nodes = fleet(2, "policy=static", "scenario.world.fading.doppler_hz=1")
    with pytest.raises(InputError, match=r"^scenario.world.fading: leave this key out"):
        nodes.session().run()


def test_slowness_is_smoothed_faded_and_relative_to_what_is_usual():
    gauge = Slowness(2, least_s=0.1)
    for seconds in (3.0, 1.0, 1.0):  # the first round is slow on every node; the median is not
        gauge.see(0, seconds, 10.0)
    assert gauge.present().tolist() == [1.0, 1.0]
    gauge.see(0, 10.0, 10.0)
    assert gauge.present().tolist() == pytest.approx([10 ** 0.7, 1.0])
    assert gauge.present().tolist() == pytest.approx([10 ** (0.7 * FADES), 1.0])  # not measured
    gauge.see(0, 1.0, 10.0)
    assert gauge.present().tolist() == [1.0, 1.0]  # 10 ** (0.3 · 0.63) = 1.55 is not noticed
    for seconds, amount in ((0.001, 1.0), (0.09, 1.0), (0.4, 8.0)):
        gauge.see(1, seconds, amount)  # below what is told apart, and longer for more work
    assert gauge.present()[1] == 1.0


def test_a_slow_link_becomes_the_gain_at_which_the_model_is_as_slow(fleet):
    power, gain, bandwidth, noise = (np.array([value]) for value in (0.5, 8e-6, 1e5, 3.98e-21))
    for slower in (1.0, 2.0, 30.0):
        factor = slower_link_gain(np.array([slower]), power, gain, bandwidth, noise)
        slow = uplink_rate(power, factor * gain, bandwidth, noise)
        assert uplink_rate(power, gain, bandwidth, noise) / slow == pytest.approx(slower)
    nominal = fleet(2).experiment.planning_scenario(np.ones((2, 10)), np.ones(10), None, {}).fleet()
    world = MeasuredWorld(nominal, lambda: [1], least=1, poll_s=0.1)
    for seconds in (1.0, 1.0, 9.0):
        world.link.see(1, seconds, 1e5)
    gains, available, speed = world.row()
    assert available.tolist() == [False, True]
    assert speed.tolist() == [1.0, 1.0]
    assert gains[0] == 1.0
    rates = [uplink_rate(nominal.max_power_w, x * nominal.uplink_gain, nominal.bandwidth_hz,
                         nominal.uplink_noise_psd_w_hz)[1] for x in (np.ones(2), gains)]
    assert rates[0] / rates[1] == pytest.approx(9.0 ** 0.7)
    assert MeasuredWorld(nominal, lambda: [1], least=2, poll_s=0.1).row() is None
