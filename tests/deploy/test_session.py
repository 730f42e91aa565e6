"""Server and nodes without Flower: equal to the simulator, and unmoved by nodes that fail, lie, vanish and return."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedgap.config import Experiment
from fedgap.deploy.node_clients import NodeClients
from fedgap.deploy.packet import Packet
from fedgap.errors import InfeasibleError, InputError
from fedgap.learning import codec
from fedgap.learning.codec import HEADER_BYTES, encode
from fedgap.learning.importance import _SILENT
from fedgap.learning.masks import digest, keep_count
from fedgap.learning.models import build
from fedgap.running.loop import Rounds
from fedgap.running.run import DEPLOY_COMMAND
from fedgap.running.train_and_resume import resume, train
from fedgap.upload_size import upload_bytes
from tests.deploy.direct import FIRST, news

__fedgap__ = ["Normalised", "Wide", "Silent"]


class Normalised(nn.Module):
    """A small model with BatchNorm, whose statistics must travel too."""

    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 5, stride=3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(192, classes))

    def forward(self, x):
        return self.layers(x)


class Silent(nn.Module):
    """A unit that never fires and has the largest weights: they are kept, and their gradient is 0."""

    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.ReLU(), nn.Linear(12, classes))
        with torch.no_grad():
            self.layers[1].weight[0] = 1.0
            self.layers[1].bias[0] = -1e5

    def forward(self, x):
        return self.layers(x)


class Wide(nn.Module):
    """BatchNorm on channels that can be removed."""

    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 5, stride=3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(512, 12), nn.ReLU(), nn.Linear(12, classes))

    def forward(self, x):
        return self.layers(x)


def masks_of(folder):
    """The masks' digests of every round of a simulated run, by stepping through it again."""
    from fedgap.running.run import Run, open_data

    run = Run(folder)
    rounds, found = Rounds([run.job], open_data(run)), []
    for s in range(run.job.rounds):
        rounds.step()
        g = run.job.schedule[s]
        found.append([digest(rounds.model.ranks[0] < rounds.structure.keep_count(float(run.job.ratio[g, n]))).hex()
                      for n in np.flatnonzero(run.job.selected[g])])
        rounds.drain()
    return found


def same_model(ours, theirs, tolerance=0.0):
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("model", ["lenet5", "mlp", "tests.deploy.test_session:Normalised"])
def test_it_is_the_simulator_bit_for_bit(fleet, tmp_path, model):
    rounds = 20 if model == "lenet5" else 6
    nodes = fleet(4, f"rounds={rounds}", f"model.name={model}", f"budget.energy_j={0.15 * rounds}",
                  f"budget.delay_s={0.43 * rounds}", "model.initialisation=own")
    run = nodes.session().run()
    simulated = train(Experiment.load(run.folder / "config.yaml"), tmp_path / "simulated")
    assert run.plan.scenario_hash == simulated.plan.scenario_hash
    assert [e["clients"] for e in run.history] == [e["clients"] for e in simulated.history]
    assert [e["masks"] for e in run.history] == masks_of(simulated.folder)
    assert any(ratio > 0.1 for e in run.history for ratio in e["pruning_ratio"])
    same_model(run.folder, simulated.folder)
    for ours, theirs in zip(run.history, simulated.history, strict=True):
        for key in ("train_loss", "energy_total_j", "delay_total_s", "uploaded_bits", "statement"):
            assert ours[key] == theirs[key], key
        assert ours.get("test_accuracy") == theirs.get("test_accuracy")
    skipped = {"wall_s", "generalization_gap"}
    assert {k: v for k, v in run.summary.items() if k not in skipped} == {
        k: v for k, v in simulated.summary.items() if k not in skipped}


@pytest.mark.parametrize(("model", "bits", "aggregator"), [
    pytest.param("lenet5", 32, "mean", marks=pytest.mark.full), ("tests.deploy.test_session:Wide", 8, "mean"),
    pytest.param("tests.deploy.test_session:Wide", 8, "coordinate_trimmed_mean", marks=pytest.mark.full)])
def test_channels_are_the_simulators_bit_for_bit(fleet, tmp_path, model, bits, aggregator):
    """Local steps, server momentum and statistics of channels that some clients removed included. A node that loses its
    copy in round 2 is sent the state, and continues with the same small model."""
    bytes_of = {"lenet5": 44426}
    nodes = fleet(4, "pruning.structure=channels", f"model.name={model}", "mode=practical", "scheme=proposed",
                  "learning.local_steps=2", f"learning.upload_bits={bits}", "budget.energy_j=0.9",
                  f"learning.aggregator={aggregator}", f"budget.delay_s={2.6 if bits == 32 else 1.4}")

    def forget(request, answer):
        if request.fields.get("round") == 2:
            nodes.nodes[FIRST + 2] = nodes.fresh(2)
        return answer.to_bytes()

    nodes.spoil[2] = forget
    run = nodes.session().run()
    simulated = train(Experiment.load(run.folder / "config.yaml"), tmp_path / "simulated")
    assert len({ratio for e in run.history for ratio in e["pruning_ratio"] if ratio > 0.05}) > 1
    assert [e["masks"] for e in run.history] == masks_of(simulated.folder)
    same_model(run.folder, simulated.folder)
    for event in run.history:
        assert "rejected" not in event
        assert "indices" not in event
        for ratio, sent in zip(event["pruning_ratio"], event["client_uploaded_bytes"], strict=True):
            assert model not in bytes_of or sent <= HEADER_BYTES + 4 * keep_count(ratio, bytes_of[model])


def test_an_aggregator_and_an_importance_rule_from_outside_are_the_simulators_bit_for_bit(fleet, tmp_path):
    """Also for a node that loses its copy, and is sent the rule's memory."""
    nodes = fleet(4, "scheme=all_clients", "budget.energy_j=1.1", "budget.delay_s=2.9",
                  "learning.aggregator=tests.learning.test_aggregators:trimmed_mean",
                  "pruning.importance=tests.learning.test_importance_rules:RULE")
    nodes.restart_after(client=2, round=2)
    run = nodes.session().run()
    assert (3, 2, "was behind, and is sent the state") in news(run)
    assert any(ratio > 0.1 for e in run.history for ratio in e["pruning_ratio"])
    assert not any("rejected" in e or "indices" in e for e in run.history)
    same_model(run.folder, train(Experiment.load(run.folder / "config.yaml"), tmp_path / "simulated").folder)


def test_bytes_on_the_wire_are_those_that_the_paper_counts(fleet):
    run = fleet(4, "model.name=lenet5", "budget.energy_j=0.9", "budget.delay_s=2.6").session().run()
    for event in run.history:
        for ratio, sent in zip(event["pruning_ratio"], event["client_uploaded_bytes"], strict=True):
            assert sent == HEADER_BYTES + 4 * keep_count(ratio, 44426)
            assert abs(sent - HEADER_BYTES - (1 - ratio) * 44426 * 4) <= 4


def test_the_stacked_engine_stays_near_the_deployment(fleet, tmp_path):
    """Nodes compute one by one, the stacked engine all at once, so that sums are rounded differently. Measured with
    six seeds after these six rounds: 2.4e-8 to 2.9e-8 of the model's norm. docs/how-to/deploy.md says it."""
    nodes = fleet(4, "engine.kind=stacked", "mode=practical", "scheme=all_clients", "learning.local_steps=4",
                  "budget.energy_j=1.1", "budget.delay_s=2.9")
    run = nodes.session().run()
    simulated = train(Experiment.load(run.folder / "config.yaml"), tmp_path / "simulated")
    assert simulated.job.engine == "stacked"
    assert simulated.job.server["optimiser"] == "momentum"
    assert any(ratio > 0.1 for e in run.history for ratio in e["pruning_ratio"])
    ours, theirs = (torch.cat([value.flatten() for _, value in sorted(load_file(folder / "model.safetensors").items())])
                    for folder in (run.folder, simulated.folder))
    assert 0 < float((ours - theirs).norm() / theirs.norm()) < 3e-7


SMALL_UPLOADS = ["budget.energy_j=0.5", "budget.delay_s=1.2"]  # budgets at which clients still prune
LEARNERS = {
    "fedavg": ["learning.local_steps=3", "model.name=lenet5"],
    "fedavgm": ["learning.local_steps=2", "learning.server.optimiser=momentum", "learning.schedule=warm_up_cosine"],
    "nesterov": ["learning.server.optimiser=nesterov", "learning.weighting=samples", "partition.kind=quantity",
                 "partition.concentration=1"],
    "fedadam": ["learning.local_steps=2", "learning.server.optimiser=adam", "learning.batches=balanced"],
    "fedyogi": ["learning.local_steps=2", "learning.server.optimiser=yogi", "learning.batches=target",
                "partition.concentration=0.3", "learning.upload_bits=4", *SMALL_UPLOADS],
    "fedprox": ["learning.local_steps=3", "learning.client.proximal=0.1", "learning.client.momentum=0.5",
                "learning.client.clip_norm=1", "learning.upload_bits=8", "data.validation=0.1", *SMALL_UPLOADS],
    "batch_norm": ["learning.local_steps=3", "learning.server.optimiser=momentum",
                   "model.name=tests.deploy.test_session:Normalised"],
}


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_is_the_simulators_bit_for_bit(fleet, tmp_path, name):
    """Also for a node that loses its copy, and is sent the optimiser's state."""
    nodes = fleet(4, "rounds=7", "scheme=all_clients", "budget.energy_j=1.4", "budget.delay_s=3.4", *LEARNERS[name])
    nodes.restart_after(client=2, round=3)
    run = nodes.session().run()
    simulated = train(Experiment.load(run.folder / "config.yaml"), tmp_path / "simulated")
    assert (4, 2, "was behind, and is sent the state") in news(run)
    assert any(ratio > 0.1 for e in run.history for ratio in e["pruning_ratio"])
    same_model(run.folder, simulated.folder)
    assert len(run.history) >= 5
    for ours, theirs in zip(run.history, simulated.history, strict=True):
        for key in ("train_loss", "energy_total_j", "uploaded_bits", "test_accuracy", "validation_accuracy"):
            assert ours.get(key) == theirs.get(key), key
        for ratio, sent in zip(ours["pruning_ratio"], ours["client_uploaded_bytes"], strict=True):
            size = run.summary["weights"]
            buffers = 4 * 6 if name == "batch_norm" else 0
            assert sent == upload_bytes(keep_count(ratio, size), run.job.upload_bits) + buffers


# --- answers of five kinds that must not be taken ------------------------------------------------------------------


def wrong_shape(request, answer):
    gradient, kept = torch.zeros(17), torch.ones(17, dtype=torch.bool)
    return Packet(answer.fields, {"upload": encode(gradient, kept, round=request.fields["round"],
                                                   plan=request.fields["plan"])})


def not_a_number(request, answer):
    raw = bytearray(answer.blobs["upload"])
    raw[HEADER_BYTES:HEADER_BYTES + 4] = np.float32("nan").tobytes()
    *fields, _ = codec._HEADER.unpack_from(raw)
    body = bytes(raw[HEADER_BYTES:])
    return Packet(answer.fields, {"upload": codec._HEADER.pack(*fields, codec._checksum(tuple(fields), body)) + body})


def wrong_round(request, answer):
    return Packet({**answer.fields, "round": request.fields["round"] + 1}, answer.blobs)


def other_plan(request, answer):
    size = model_size()
    kept = torch.zeros(size, dtype=torch.bool)
    kept[:5] = True
    return Packet(answer.fields, {"upload": encode(torch.zeros(size), kept, round=request.fields["round"],
                                                   plan="another", nested=False)})


def oversized(request, answer):
    return Packet(answer.fields, {**answer.blobs, "more": bytes(2**20)})


def no_packet(request, answer):
    return b"\x80\x04garbage"


@pytest.mark.parametrize(("spoil", "reason"), [
    (wrong_shape, "17 parameters"), (not_a_number, "must be finite"), (wrong_round, "round"),
    (other_plan, "another plan"), (oversized, "at most"), (no_packet, "not a packet")])
def test_garbage_is_refused_named_and_left_out(fleet, tmp_path, spoil, reason):
    nodes = fleet(3, "scheme=all_clients")

    def spoiled(request, answer):
        if answer.fields["status"] != "done" or request.fields["round"] not in (1, 2):
            return answer.to_bytes()
        changed = spoil(request, answer)
        return changed if isinstance(changed, bytes) else changed.to_bytes()

    nodes.spoil[1] = spoiled
    run = nodes.session().run()
    assert [e.get("rejected") for e in run.history] == [None, [1], [1], None, None, None]
    told = [what for _, client, what in news(run) if client == 1]
    assert len(told) == 2
    assert all(what.startswith("answer refused: ") and reason in what for what in told), told
    assert run.summary["clients"][1]["rejected"] == 2
    honest = fleet(3, "scheme=all_clients")
    honest.spoil[1] = lambda request, answer: None if request.fields.get("round") in (1, 2) else answer.to_bytes()
    without = honest.session("without", round_s=0.2).run()
    assert run.history[1]["train_loss"] == pytest.approx(without.history[1]["train_loss"])


def model_size():
    return sum(p.numel() for p in build("mlp", input_shape=(1, 28, 28), classes=10, seed=0).parameters())


# --- nodes that go and come ----------------------------------------------------------------------------------------


def test_a_node_that_hangs_costs_one_deadline_and_comes_back_up_to_date(fleet, tmp_path):
    nodes = fleet(3, "scheme=all_clients", "rounds=8")
    held = {}

    def hang(request, answer):
        if request.fields["kind"] == "round" and request.fields["round"] == 2:
            held["round"] = True
            return None
        if held and request.fields["kind"] == "hello" and len(held) < 3:
            held[len(held)] = True
            nodes.nodes[FIRST + 1] = nodes.fresh(1)  # it was restarted: its copy of the model is gone
        return answer.to_bytes()

    nodes.spoil[1] = hang
    run = nodes.session(round_s=0.3).run()
    assert len(run.history) == 8
    assert run.history[2]["late"] == [1]
    assert run.history[2]["measured_s"] >= 0.3
    told = [what for _, client, what in news(run) if client == 1]
    assert told[0] == "gave no answer within 0.3 s"
    assert "is back" in told
    back = next(e["round"] for e in run.history if any(n["what"] == "is back" for n in e.get("news", [])))
    assert back <= 5
    assert all("dropped" not in e and "late" not in e for e in run.history[back:])
    states = [request.fields["round"] for client, request in nodes.requests
              if client == 1 and "state" in request.blobs]
    assert states == [0, back]  # once at the start, once to be brought up to date
    assert not [n for n in news(run) if "refused" in n[2]]


def test_a_copy_that_lost_step_is_noticed_and_sent_the_state_in_the_same_round(fleet):
    nodes = fleet(3, "scheme=all_clients")
    nodes.restart_after(client=2, round=2)
    run = nodes.session().run()
    assert (3, 2, "was behind, and is sent the state") in news(run)
    assert all("late" not in e and "dropped" not in e for e in run.history)


def test_a_node_that_is_offline_is_not_waited_for(fleet):
    nodes = fleet(3, "scheme=all_clients")
    session = nodes.session(round_s=30.0, on_event=lambda job, event: (
        nodes.offline.add(FIRST) if event["round"] == 1 else nodes.offline.discard(FIRST) if event["round"] == 3
        else None))
    run = session.run()
    assert [e.get("dropped") for e in run.history] == [None, None, [0], [0], None, None]
    assert not any("late" in e for e in run.history)
    assert (2, 0, "is offline") in news(run)
    whole = fleet(3, "scheme=all_clients").session("whole").run()
    assert run.summary["energy_j"] < whole.summary["energy_j"]


def test_an_error_of_flowers_is_a_loss_with_its_reason(fleet):
    nodes = fleet(3, "scheme=all_clients")
    session = nodes.session(on_event=lambda job, event: (
        nodes.errors.update({1: "Flower error 3: NODE_UNAVAILABLE"}) if event["round"] == 0
        else nodes.errors.clear()))
    run = session.run()
    assert run.history[1]["dropped"] == [1]
    assert (1, 1, "was lost: Flower error 3: NODE_UNAVAILABLE") in news(run)
    assert len(run.history) == 6


def test_a_server_killed_at_any_round_goes_on_and_ends_the_same(fleet, tmp_path):
    whole = fleet(3).session("whole").run()

    class Killed(BaseException):
        pass

    def die(job, event):
        if event["round"] == 2:
            raise Killed

    nodes = fleet(3)
    with pytest.raises(Killed):
        nodes.session("cut", on_event=die).run()
    with open(tmp_path / "cut" / "rounds.jsonl", "ab") as log:
        log.write(b'{"round": 3, "torn')
    run = nodes.session("cut").run()
    assert [e["round"] for e in run.history] == list(range(6))
    same_model(run.folder, whole.folder)
    assert any("resumed from its checkpoint after 3 rounds" in what for _, _, what in news(run))


@pytest.mark.parametrize("other", [0, 1])
def test_a_node_whose_floats_differ_sends_indices_and_the_ledger_says_so(fleet, other):
    """Client 0 prunes least, so that its mask decides of which weights the global gradient is known."""
    nodes = fleet(3, "scheme=all_clients", "budget.energy_j=0.9", "budget.delay_s=2.9",
                  "model.name=lenet5")

    class Different(type(nodes.nodes[FIRST])):
        def _follow(self, request, number, plan):
            copy = super()._follow(request, number, plan)
            if "state" in request.blobs:
                noise = torch.randn(copy.model.weights.shape, generator=torch.Generator().manual_seed(1))
                copy.model.weights = copy.model.weights * (1 + 1e-3 * noise)
            return copy

    nodes.nodes[FIRST + other] = Different(nodes.nodes[FIRST + other]._data)
    run = nodes.session().run()
    assert any(e.get("indices") == [other] for e in run.history)
    assert not any("rejected" in e or "late" in e or "dropped" in e for e in run.history)
    assert not news(run)  # nobody else falls behind for it
    ratios = run.history[1]["pruning_ratio"]
    assert ratios[0] == min(ratios) < ratios[1]
    with_indices = next(e for e in run.history if e.get("indices") == [other])
    kept = keep_count(with_indices["pruning_ratio"][other], 44426)
    assert with_indices["client_uploaded_bytes"][other] == HEADER_BYTES + 4 * kept + (44426 + 7) // 8


@pytest.mark.parametrize("weights", ["current", "previous"])
def test_a_silent_unit_has_one_rank_on_server_and_nodes(fleet, monkeypatch, weights):
    """Without dense_first a kept weight of gradient 0 ranks before all that everybody pruned, on both sides."""
    nodes = fleet(3, "scheme=all_clients", "scenario.pruning.dense_first=false",
                  f"importance_weights={weights}",
                  "model.name=tests.deploy.test_session:Silent", "model.initialisation=own", "budget.energy_j=1",
                  "budget.delay_s=2.9")
    servers, theirs, silent = {}, {}, []
    work = NodeClients.work

    def work_and_note(clients, model, accounts):
        servers[model.round] = model.ranks[0].clone()
        gradient = model.importance.state(0).get("gradient")
        silent.append(0 if gradient is None else int((gradient == _SILENT).sum()))
        return work(clients, model, accounts)

    def note(client):
        def noted(request, answer):
            if answer.fields["status"] == "done":
                model = nodes.nodes[FIRST + client]._copy.model
                theirs[client, model.round] = model.ranks[0].clone()
                if (client, model.round) == (2, 2):
                    nodes.nodes[FIRST + 2] = nodes.fresh(2)  # it is sent the state in the next round
            return answer.to_bytes()
        return noted

    monkeypatch.setattr(NodeClients, "work", work_and_note)
    for client in range(3):
        nodes.spoil[client] = note(client)
    run = nodes.session().run()
    assert silent[0] == 0
    assert all(count >= 784 for count in silent[1:]), silent
    assert all(ratio > 0 for e in run.history for ratio in e["pruning_ratio"])
    assert (3, 2, "was behind, and is sent the state") in news(run)
    assert len(theirs) == 3 * len(run.history) == 18
    for (_, number), own in theirs.items():
        assert torch.equal(own, servers[number])


# --- enrolment -----------------------------------------------------------------------------------------------------


def test_too_few_nodes_are_named_in_one_line(fleet):
    nodes = fleet(3)
    nodes.offline.add(FIRST)
    with pytest.raises(InputError, match=r"nodes: 2 of 3 enrolled within 0.2 s"):
        nodes.session(enrol_s=0.2).run()


def test_a_second_node_of_one_name_is_refused(fleet):
    nodes = fleet(2)
    nodes.nodes[FIRST + 7] = nodes.fresh(0)
    session = nodes.session()
    session.nodes = 2
    run = session.run()
    assert any("is enrolled already" in what for _, _, what in news(run))


def test_budgets_that_nothing_fits_are_infeasible(fleet):
    with pytest.raises(InfeasibleError):
        fleet(2, "budget.delay_s=1e-6").session().run()


def test_the_simulator_refuses_to_go_on_with_a_deployed_run(fleet):
    nodes = fleet(2)
    session = nodes.session(on_event=lambda job, event: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        session.run()
    with pytest.raises(InputError, match=r"this run is a deployment; continue it with: flwr run"):
        resume(session.folder)
    (session.folder / DEPLOY_COMMAND).parent.mkdir()
    (session.folder / DEPLOY_COMMAND).write_text("fedgap deploy up x --out y\n")
    with pytest.raises(InputError, match=r"continue it with: fedgap deploy up x --out y$"):
        resume(session.folder)


def test_every_node_gets_the_gradient_and_only_the_selected_a_ratio(fleet):
    nodes = fleet(4, "rounds=8", "budget.energy_j=1.2", "budget.delay_s=3.6")
    run = nodes.session().run()
    asked = [(client, request) for client, request in nodes.requests if request.fields["kind"] == "round"]
    for event in run.history:
        mine = {client: request for client, request in asked if request.fields["round"] == event["round"]}
        assert sorted(mine) == [0, 1, 2, 3]
        assert [client for client, r in sorted(mine.items()) if "ratio" in r.fields] == event["clients"]
        for client, request in mine.items():
            assert set(request.blobs) == ({"state"} if event["round"] == 0 else {"gradient"})
            if client in event["clients"]:
                assert request.fields["power_w"] > 0
                assert request.fields["frequency_hz"] > 0
    assert any(len(e["clients"]) < 4 for e in run.history)


def test_a_message_holds_no_sample(fleet):
    """Nothing but JSON fields and the three named byte strings leaves a node."""
    nodes = fleet(2)
    seen = []
    for client in (0, 1):
        nodes.spoil[client] = lambda request, answer: seen.append(answer) or answer.to_bytes()
    nodes.session().run()
    assert {name for answer in seen for name in answer.blobs} == {"upload"}
    fields = {key for answer in seen for key in answer.fields}
    assert fields <= {"status", "round", "loss", "seconds", "name", "client", "label_counts", "target_counts", "device",
                      "fedgap"}  # its version
    assert all(len(json.dumps(answer.fields)) < 2000 for answer in seen)
    assert dataclasses.is_dataclass(seen[0])
