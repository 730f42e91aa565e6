"""One node of a deployment sends what no honest node would: it is named, and costs nobody else anything."""

import json
import os
import random
import struct
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest

from fedgap.deploy.collected_updates import CollectedUpdates
from fedgap.deploy.enrol import CLAIM_LIMIT, Profile, limited_claims
from fedgap.deploy.label_claims import nearest_shares
from fedgap.deploy.outliers import Outliers
from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.transport import Answer
from fedgap.errors import FedgapError, RunFailedError
from fedgap.running.loop import Rounds
from tests.deploy.direct import FIRST, make_fleet, news
from tests.deploy.hostile import TRAINING, claims, enormous, scaled, with_buffers

FULL = os.environ.get("FEDGAP_FULL") == "1"
SEEDS = (0, 1, 2) if FULL else (0,)
FUZZED = 100_000 if FULL else 1_500


SMALL = ("scheme=all_clients", "model.arguments={hidden: [8]}")


def packed(head: str, *blobs: bytes) -> bytes:
    """A packet with any text for its JSON."""
    return struct.pack("<4sI", b"FGP1", len(head.encode())) + head.encode() + b"".join(blobs)


def with_field(key, text):
    """A node that puts a raw JSON text in place of a field of its answer."""
    def spoil(request, answer):
        if answer.fields["status"] != "done":
            return answer.to_bytes()
        rest = {name: value for name, value in answer.fields.items() if name != key}
        blobs = [[name, len(blob)] for name, blob in answer.blobs.items()]
        head = f'{{"fields":{json.dumps(rest)[:-1]},"{key}":{text}}},"blobs":{json.dumps(blobs)}}}'
        return packed(head, *answer.blobs.values())
    return spoil


def one_infinite_length(request, answer):
    """Some 40 bytes that announce an endless byte string."""
    if answer.fields["status"] != "done":
        return answer.to_bytes()
    return packed('{"fields":{},"blobs":[["u",1e999]]}')


ABSURD_ANSWERS = [
    one_infinite_length, with_field("loss", "1" + "0" * 400), with_field("loss", "1e308"), with_field("loss", "-1"),
    with_field("loss", "NaN"), with_field("loss", "[]"), with_field("seconds", "1e300"), with_field("round", "1e400"),
    with_field("status", '"\\u001b[2J"')]


def test_an_absurd_answer_costs_its_sender_only(fleet):
    """A different one in each round."""
    rounds = len(ABSURD_ANSWERS)
    nodes = fleet(3, *SMALL, f"rounds={rounds}")
    nodes.spoil[1] = lambda request, answer: ABSURD_ANSWERS[request.fields.get("round", 0)](request, answer)
    run = nodes.session().run()
    assert [event.get("rejected") for event in run.history] == [[1]] * rounds
    assert {number for number, _, _ in news(run)} == set(range(rounds))
    assert all(client == 1 and what.startswith("answer refused: ") for _, client, what in news(run))
    assert all(what.isprintable() for _, _, what in news(run))
    assert all(event["client_norm"][1] is None and event["client_norm"][0] > 0 for event in run.history)
    assert all(event["client_loss"][0] is not None for event in run.history)


def test_a_node_that_is_behind_for_ever_is_refused_in_each_round(fleet):
    """Before, it was sent the whole state again and again until the round's deadline."""
    nodes = fleet(3, *SMALL, "rounds=3")
    nodes.spoil[1] = lambda request, answer: (Packet({"status": "behind", "round": -1}) if "ratio" in request.fields
                                              else answer).to_bytes()
    run = nodes.session(round_s=30.0).run()
    assert [event["rejected"] for event in run.history] == [[1]] * 3
    asked = [request for client, request in nodes.requests if client == 1 and request.fields["kind"] == "round"]
    assert len(asked) <= 2 * 3


ABSURD_PROFILES = [
    ({"label_counts": [10**9] * 10}, "label_counts: must add up to"),
    ({"label_counts": [10] * 5}, "label_counts: must have the 10 classes of the experiment's data; it has 5"),
    ({"label_counts": [0] * 10}, "label_counts: must add up to"),
    ({"target_counts": [1, 2]}, "target_counts: must have the 10 classes"),
    ({"device": {"uplink_gain": -1e-6}}, "uplink_gain"),
    ({"device": {"phi": 0.0}}, "device: must be a mapping"), ({"device": 7}, "device: must be a mapping"),
    ({"epsilon": -1}, "epsilon: must be positive"), ({"name": "\x1b[2Jshop"}, "name: must be a text"),
    ({"client": 2**70}, "client: must be a whole number"), ({"name": 5}, "name: must be a text"),
    ({"label_counts": [-1] * 10}, "label_counts: must be whole numbers"), ({"label_counts": "many"}, "must be a list"),
    ({"device": {}}, "uplink_gain"), ({"device": {"uplink_gain": "high"}}, "uplink_gain")]


def test_an_absurd_profile_costs_its_sender_only(fleet):
    """The node tries one after another; the run begins without it."""
    nodes = fleet(3, *SMALL, "rounds=2")
    session = nodes.session(enrol_s=5.0)
    for change, says in ABSURD_PROFILES:
        def spoil(request, answer, change=change):
            if request.fields["kind"] != "enrol":
                return answer.to_bytes()
            device = change.get("device")
            if isinstance(device, dict) and "uplink_gain" in device:
                return Packet({**answer.fields, "device": {**answer.fields["device"], **device}}).to_bytes()
            return Packet({**answer.fields, **change}).to_bytes()

        nodes.spoil[1] = spoil
        session._refused.clear()
        session._news.items.clear()
        session._greet()
        assert set(session.profiles) == {FIRST, FIRST + 2}
        (told,) = session._news.items
        assert told["what"].startswith("node 101 was refused: ")
        assert says in told["what"]
    run = session.run()
    assert run.job.names == ("client 0", "client 2")
    assert news(run) == [(0, None, told["what"])]


def test_a_node_that_hears_nothing_does_not_make_the_plan_infeasible(fleet):
    """Everybody receives the broadcast, so its seconds are those of the worst downlink."""
    nodes = fleet(3, *SMALL, "rounds=2")

    def deaf(request, answer):
        if request.fields["kind"] != "enrol":
            return answer.to_bytes()
        return claims(device={**answer.fields["device"], "downlink_gain": 1e-30})(request, answer)

    nodes.spoil[1] = deaf
    run = nodes.session().run()
    assert run.job.names == ("client 0", "client 2")
    assert any("('client 1') was refused: the broadcasts to it" in what for _, _, what in news(run))


def test_a_node_that_was_mended_and_comes_back_is_asked_again(fleet):
    nodes = fleet(3, *SMALL, "rounds=2")
    session = nodes.session()
    session._refused = {FIRST + 1}
    nodes.offline.add(FIRST + 1)
    session._greet()
    nodes.offline.clear()
    session._greet()
    assert FIRST + 1 in session.profiles


# --- fuzzing -------------------------------------------------------------------------------------------------------

VALUES = [None, True, -1, 0, 2**31, 2**63, 2**64, -(2**70), 10**400, 1e308, -0.0, 1e-320, "", "x" * 5000, "\ud800",
          [], {}, [[]] * 50, {"a": {"b": 1}}, [0] * 10, [10**9] * 10, [1, 2], [-1] * 10]
NOT_JSON = ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "[" * 3000]


def fuzzed(valid: Packet, rng: random.Random) -> bytes:
    """Bytes near a valid packet: one or two things changed, at the level of bytes, of JSON or of fields."""
    raw, kind = valid.to_bytes(), rng.randrange(6)
    if kind == 0:
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(min(len(damaged), 400))] ^= rng.randint(1, 255)
        return bytes(damaged)
    if kind == 1:
        return raw[:rng.randrange(len(raw))] if rng.random() < 0.7 else raw + rng.randbytes(rng.randint(1, 64))
    if kind == 2:
        return rng.randbytes(rng.randint(0, 200)) if rng.random() < 0.5 else raw[:8] + rng.randbytes(60)
    fields, blobs = dict(valid.fields), dict(valid.blobs)
    if kind in (3, 4) or not blobs:
        for _ in range(rng.randint(1, 2)):
            key = rng.choice([*fields, "more"])
            inner = fields.get(key)
            if isinstance(inner, dict) and inner and rng.random() < 0.8:
                fields[key] = {**inner, rng.choice(list(inner)): rng.choice(VALUES)}
            elif rng.random() < 0.1:
                fields.pop(key, None)
            else:
                fields[key] = rng.choice(VALUES)
        head = json.dumps({"fields": fields, "blobs": [[name, len(blob)] for name, blob in blobs.items()]})
        if rng.random() < 0.2:
            head = head.replace("0", rng.choice(NOT_JSON), 1)
        return packed(head, *blobs.values())
    name = rng.choice(list(blobs))
    blob = bytearray(blobs[name])
    if rng.random() < 0.3:
        at = rng.randrange(len(blob) // 4) * 4
        blob[at:at + 4] = struct.pack("<f", rng.choice([np.nan, np.inf, 3.3e38, -1.0]))
    else:
        blob[rng.randrange(min(len(blob), 60))] ^= rng.randint(1, 255)
    return Packet(fields, {**blobs, name: bytes(blob)}).to_bytes()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_no_fuzzed_answer_or_profile_raises_or_takes_memory(fleet):
    nodes = fleet(2, *SMALL, "rounds=2")
    seen = {}

    def note(request, answer):
        seen.setdefault(request.fields["kind"], (request, answer))
        return answer.to_bytes()

    nodes.spoil[1] = note
    session = nodes.session()
    run = session.run()
    clients = session._clients
    job, (_, valid) = run.job, seen["round"]
    rounds = Rounds([job], session.dataset, clients)
    rounds.model.rank(rounds.accounts[0].prunes(0))
    rng, before, refused, accepted = random.Random(18), None, 0, 0
    for number in range(FUZZED):
        session._news.items.clear()
        if number % 8:
            clients.peers[1].tickets = {"t": 0}
            outcome = clients._read(rounds.model, 1, Answer("t", fuzzed(valid, rng)))
            refused, accepted = refused + (outcome == "refused"), accepted + (outcome not in ("refused", None))
            if outcome == "refused":
                assert session._news.items[-1]["client"] == 1
        else:
            session.profiles.pop(FIRST + 1, None)
            session._refused.clear()
            session._asked = {"t": FIRST + 1}
            nodes.box["t"] = Answer("t", fuzzed(seen["enrol"][1], rng))
            session._greet()
            session._asked.clear()
            assert FIRST + 1 in session.profiles or f"node {FIRST + 1}" in session._news.items[-1]["what"]
            nodes.requests.clear()
        json.dumps(session._news.items)
        if number == FUZZED // 10:
            before = resident_bytes()
    assert refused > FUZZED / 2
    assert resident_bytes() - before < 50 * 2**20


def test_a_run_finishes_with_the_others_whatever_one_node_sends(fleet):
    nodes, rng = fleet(3, *SMALL, "rounds=12"), random.Random(3)
    nodes.spoil[1] = lambda request, answer: (
        answer.to_bytes() if answer.fields["status"] != "done" else fuzzed(answer, rng))
    run = nodes.session().run()
    assert len(run.history) == 12
    named = {client for _, client, what in news(run) if "refused" in what}
    assert named == {1}
    assert all(0 not in event.get("rejected", []) and 2 not in event.get("rejected", []) for event in run.history)


# --- memory --------------------------------------------------------------------------------------------------------


def test_updates_wait_in_bounded_number_for_those_before_them(fleet, monkeypatch):
    """Client 0 answers last; of the others two at a time are fetched until two wait. The sums have the same bits."""
    keys = (*SMALL, "rounds=2")
    whole = fleet(6, *keys).session("whole").run()
    monkeypatch.setattr("fedgap.deploy.collected_updates.MOST_HELD", 2)
    monkeypatch.setattr("fedgap.deploy.node_clients.FETCHED_AT_ONCE", 2)
    nodes, most, looks = fleet(6, *keys), [], {}
    collect, add = nodes.collect, CollectedUpdates.add

    def slow_first(tickets):
        """Client 0's answers come when they are looked for the fifth time."""
        slow = [ticket for ticket in tickets if nodes.requests[int(ticket)][0] == 0]
        for ticket in slow:
            looks[ticket] = looks.get(ticket, 0) + 1
        return collect([ticket for ticket in tickets if looks.get(ticket, 5) >= 5])

    def counted(updates, client, update):
        add(updates, client, update)
        most.append(len(updates._held))

    nodes.collect = slow_first
    monkeypatch.setattr(CollectedUpdates, "add", counted)
    run = nodes.session("slow", round_s=30.0).run()
    assert 2 <= max(most) <= 3
    assert (run.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    assert not any("late" in event for event in run.history)


# --- gradients that are wrong on purpose ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """honest(seed) → a run of four honest nodes with the plain mean; it is trained once."""
    return lru_cache(lambda seed: trained(partial(make_fleet, tmp_path_factory.mktemp("honest")), seed, "mean"))


def trained(fleet, seed, aggregator, spoil=None, extra=()):
    nodes = fleet(4, *TRAINING, f"seed={seed}", f"learning.aggregator={aggregator}", *extra)
    if spoil is not None:
        nodes.spoil[1] = spoil
    return nodes.session(f"{aggregator}-{seed}-{spoil is not None}", round_s=30.0).run()


def named_in(run, client=1):
    return min((number for number, who, what in news(run) if who == client), default=None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spoil", [scaled(-10.0), enormous], ids=["minus ten", "3.3e38"])
def test_one_of_four_hostile_nodes_is_named_and_costs_little(fleet, honest, seed, spoil):
    assert honest(seed).summary["test_accuracy"] > 0.7
    assert not news(honest(seed))
    run = trained(fleet, seed, "coordinate_trimmed_mean", spoil)
    assert run.summary["test_accuracy"] > honest(seed).summary["test_accuracy"] - 0.05
    assert named_in(run) <= 2
    assert {client for _, client, _ in news(run)} == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_without_attackers_clipping_changes_nothing(fleet, honest, seed):
    plain, clipping = honest(seed), trained(fleet, seed, "clipped_mean")
    assert (plain.folder / "model.safetensors").read_bytes() == (clipping.folder / "model.safetensors").read_bytes()
    assert not news(clipping)


def test_an_enormous_gradient_in_a_plain_mean_is_taken_back_and_its_sender_left_out(fleet):
    nodes = fleet(3, *SMALL, "rounds=5")
    nodes.spoil[1] = lambda request, answer: (enormous(request, answer) if request.fields.get("round") == 2
                                              else answer.to_bytes())
    run = nodes.session().run()
    assert run.summary["ended"] == "the delay budget is spent"  # plans use all of it, and one round was done twice
    assert run.summary["taken_back"]["left_out"] == [1]
    again = run.history[2]
    (spent,) = again["uncounted"]
    assert spent["reason"] == "after round 2 the model or its loss would not have been finite"
    assert spent["changed"] == "left out: client 1, whose update is an outlier"
    assert spent["rounds"] == [2]
    assert spent["energy_j"] > 0
    assert [event.get("dropped") for event in run.history] == [None, None, [1], [1]]
    assert all(event["train_loss"] is not None for event in run.history)
    assert run.summary["energy_j"] == pytest.approx(sum(event["energy_j"] for event in run.history))
    resumed = nodes.session().run()
    assert resumed.summary == run.summary


def test_a_model_that_becomes_infinite_again_fails_the_run(fleet):
    """Before, it ended with exit code 0. A rate this large cannot work; half of it neither."""
    nodes = fleet(3, *SMALL, "rounds=6", "learning.rate=1e30")
    session = nodes.session()
    with pytest.raises(RunFailedError, match="would not have been finite, and it was taken back before"):
        session.run()
    assert not (session.folder / "summary.json").exists()


def test_a_rate_that_is_halved_is_halved_for_nodes_and_server_alike(fleet, monkeypatch):
    """One round is declared infinite; the rest is the training at half the rate, on both sides."""
    advance, failed = Rounds._advance_if_finite, []

    def fail_once(rounds, update):
        if rounds.round == 0 and not failed:
            failed.append(True)
            return False
        return advance(rounds, update)

    keys = (*SMALL, "rounds=4", "learning.local_steps=2")
    half = fleet(3, *keys, "learning.rate=0.05").session("half").run()
    monkeypatch.setattr(Rounds, "_advance_if_finite", fail_once)
    run = fleet(3, *keys, "learning.rate=0.1").session("run").run()
    assert run.history[0]["uncounted"][0]["changed"] == "the rate was halved from 0.1 to 0.05"
    assert [e["train_loss"] for e in run.history] == [e["train_loss"] for e in half.history[:3]]
    assert not any("rejected" in event or "indices" in event for event in run.history)


NORMALISED = ("scheme=all_clients", "model.name=tests.deploy.test_session:Normalised", "model.initialisation=own")


@pytest.mark.parametrize(("change", "says"), [
    (lambda buffers: -buffers, "buffers: a variance must not be negative"),
    (lambda buffers: buffers[1:], "buffers: must have 24 bytes; got 20"),
    (lambda buffers: buffers * np.nan, "buffers: must be finite")], ids=["negative", "short", "not a number"])
def test_batch_statistics_that_cannot_be_are_refused(fleet, change, says):
    nodes = fleet(3, *NORMALISED, "rounds=2")
    nodes.spoil[1] = with_buffers(change)
    run = nodes.session().run()
    assert [event["rejected"] for event in run.history] == [[1], [1]]
    assert {(client, what) for _, client, what in news(run)} == {(1, f"answer refused: {says}")}


@pytest.mark.parametrize("value", [1e4, pytest.param(3.3e38, marks=pytest.mark.full)])
@pytest.mark.parametrize("aggregator", ["clipped_mean", "coordinate_trimmed_mean", "coordinate_median"])
def test_batch_statistics_of_a_hostile_node_do_not_break_the_model(fleet, aggregator, value):
    """With ``mean``, 1e4 for every mean and variance makes all answers alike."""
    keys = (*NORMALISED, "rounds=12", "learning.rate=0.2", f"learning.aggregator={aggregator}", "evaluate_every=12",
            "budget.energy_j=1000", "budget.delay_s=1000")
    honest = fleet(4, *keys).session("honest").run()
    assert honest.summary["test_accuracy"] > 0.5
    assert not news(honest)
    nodes = fleet(4, *keys)
    nodes.spoil[1] = with_buffers(lambda buffers: buffers * 0 + value)
    run = nodes.session("hostile").run()
    assert run.summary["test_accuracy"] > honest.summary["test_accuracy"] - 0.05
    assert "taken_back" not in run.summary
    assert news(run)[0][:2] == (0, 1)
    assert "the change of its BatchNorm statistics is" in news(run)[0][2]


def test_batch_statistics_that_make_a_mean_infinite_cost_their_sender_only(fleet):
    """Before, the rate was halved for everybody, and the second time the run failed."""
    nodes = fleet(3, *NORMALISED, "rounds=5")
    nodes.spoil[1] = with_buffers(lambda buffers: buffers * 0 + 3.3e38)
    run = nodes.session().run()
    assert run.summary["taken_back"]["left_out"] == [1]
    assert all(event["test_loss"] is not None for event in run.history if "test_loss" in event)


def test_outliers_are_named_when_they_repeat_and_at_once_when_blatant():
    seen = Outliers()
    assert seen.see({0: 1.0, 1: 10.0, 2: 1.2, 3: 0.9}) == {}
    assert list(seen.see({0: 1.0, 1: 10.0, 2: 1.2, 3: 0.9})) == [1]
    assert seen.see({0: 1.0, 1: 10.0, 2: 1.2, 3: 0.9}) == {}  # not every round
    assert list(seen.see({0: 1.0, 2: 1e30})) == [2]  # two clients: compared with earlier rounds
    assert Outliers().see({0: 1.0, 1: 1e30}) == {}  # of two strangers nobody knows who is wrong
    assert Outliers().suspects({0: 0.0, 1: 0.0, 2: 1.0}) == []


# --- label histograms that are wrong on purpose --------------------------------------------------------------------


def test_a_claim_counts_up_to_a_multiple_of_the_others():
    counts = np.array([[50, 50], [60, 40], [10**8, 0], [30, 70]])
    limited = limited_claims(counts)
    assert limited[[0, 1, 3]].tolist() == counts[[0, 1, 3]].tolist()
    assert limited[2].tolist() == [CLAIM_LIMIT * 100, 0]
    assert limited_claims(counts[:1]).tolist() == counts[:1].tolist()


def test_the_shares_that_explain_a_gradient_are_found():
    """With an undecided model P = 1/3 everywhere, and a batch of labels q has the gradient 1/3 − q."""
    columns = np.full((3, 3), 1 / 3) - np.eye(3)
    true = np.array([0.7, 0.3, 0.0])
    found = nearest_shares(columns @ columns.T, columns @ (true @ columns), np.full(3, 1 / 3))
    assert found == pytest.approx(true, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_claims_labels_it_does_not_have_is_named(fleet, seed, steps):
    """Clients with two labels each; client 1 claims all ten."""
    shards = ("partition.kind=shards", "partition.shards=2", f"rounds={30 if FULL else 4}",
              f"learning.local_steps={steps}")
    honest = trained(fleet, seed, "coordinate_trimmed_mean", extra=shards)
    assert not news(honest)
    run = trained(fleet, seed, "coordinate_trimmed_mean", claims(label_counts=[20] * 10), shards)
    assert named_in(run) <= 2
    told = next(what for _, client, what in news(run) if client == 1)
    assert told.startswith("claims labels that its gradients do not show: ")
    assert {client for _, client, _ in news(run)} == {1}
    assert run.summary["test_accuracy"] > honest.summary["test_accuracy"] - 0.05


def test_an_enormous_claim_does_not_take_over_the_plan(fleet):
    nodes = fleet(4, "rounds=3", "budget.energy_j=0.5", "budget.delay_s=1.3")
    nodes.spoil[1] = claims(label_counts=[10**7] * 10)
    run = nodes.session().run()
    others = np.delete(run.job.label_counts.sum(axis=1), 1)
    assert run.job.label_counts[1].sum() == pytest.approx(CLAIM_LIMIT * np.median(others), rel=0.01)
    assert any("client 1 claims 100000000 samples" in what for _, _, what in news(run))


def test_a_profile_is_read_or_refused():
    with pytest.raises(PacketError):
        Profile.read(Packet({"status": "refused", "reason": "no\nthanks" * 1000}))
    with pytest.raises(FedgapError):
        Profile.read(Packet({}))
