"""A deployed round without enough gradients does not count: the server waits, says so, and tries it again."""

import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from fedgap.deploy.transport import WAITING, Quorum
from fedgap.errors import InputError, RunFailedError
from fedgap.running.checkpoint import Checkpoints
from tests.deploy.direct import news

SMALL = ("scheme=all_clients", "model.arguments={hidden: [8]}")


def weights(run):
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(run.folder / "model.safetensors").items())])


@pytest.mark.parametrize(("text", "selected", "needed"), [
    ("1", 4, 1), ("3", 4, 3), ("9", 4, 4), ("0.5", 4, 2), ("0.5", 5, 3), ("1.0", 5, 5), ("0.01", 5, 1), ("0.3", 10, 3)])
def test_a_quorum_is_a_number_or_a_share(text, selected, needed):
    assert Quorum.parse(text).needed(selected) == needed
    assert Quorum.parse(str(Quorum.parse(text))) == Quorum.parse(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "0.0", "half", "", "nan", "1e400"])
def test_what_is_not_a_quorum_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"^--min-clients: must be a whole number"):
        Quorum.parse(text)


def stopped_session(nodes, out, *, after, away_s, away, quorum="1", **options):
    """A session whose nodes ``away`` stand still for a while once so many rounds are done."""
    stopped = threading.Event()

    def stand_still(client):
        return lambda request, answer: None if stopped.is_set() else answer.to_bytes()

    for client in away:
        nodes.spoil[client] = stand_still(client)
    said = []

    def begin(job, event):
        if event["round"] + 1 == after:
            stopped.set()
            threading.Timer(away_s, stopped.clear).start()

    session = nodes.session(out, on_event=begin, on_wait=said.append, quorum=Quorum.parse(quorum), **options)
    return session, said


@pytest.mark.parametrize("quorum", ["1", "1.0"])
def test_all_nodes_stopped_and_continued_end_with_the_very_same_model(fleet, quorum):
    """They stand still for several deadlines: before, all rounds were done meanwhile without one gradient."""
    keys = (*SMALL, "rounds=6")
    whole = fleet(3, *keys).session("whole").run()
    session, said = stopped_session(fleet(3, *keys), "stopped", after=2, away_s=1.5, away=range(3), quorum=quorum,
                                    round_s=0.2)
    run = session.run()
    assert torch.equal(weights(run), weights(whole))
    assert [event["round"] for event in run.history] == list(range(6))
    assert all(event["train_loss"] is not None for event in run.history)
    assert len(said) == 1
    assert said[0].startswith("round 3/6 waits: 0 of ")
    assert said[0].endswith("missing: client 0, client 1, client 2")
    assert not (run.folder / WAITING).exists()
    assert any("the server waited" in what for _, _, what in news(run))
    paused = [event for event in run.history if "uncounted" in event]
    assert [event["round"] for event in paused] == [2]
    assert all(spent["reason"] == f"round 2: 0 of {Quorum.parse(quorum).needed(3)} needed updates arrived"
               and spent["energy_j"] == spent["delay_s"] == 0.0 for spent in paused[0]["uncounted"])
    assert len(paused[0]["uncounted"]) <= 2  # who is silent is not asked again
    assert run.summary["energy_j"] == whole.summary["energy_j"]
    assert run.summary["delay_s"] == whole.summary["delay_s"]


def test_a_round_counts_with_the_quorum_and_waits_below_it(fleet):
    keys = (*SMALL, "rounds=5")
    session, said = stopped_session(fleet(4, *keys), "half", after=1, away_s=1.0, away=[1, 3], quorum="0.5",
                                    round_s=0.2)
    half = session.run()
    assert not said
    assert half.history[1]["late"] == [1, 3]
    session, said = stopped_session(fleet(4, *keys), "more", after=1, away_s=1.0, away=[1, 3], quorum="3", round_s=0.2)
    more = session.run()
    assert len(said) == 1
    assert "late" not in more.history[1]
    (spent,) = more.history[1]["uncounted"]
    assert spent["reason"] == "round 1: 2 of 3 needed updates arrived"
    whole = fleet(4, *keys).session("whole").run()
    worked = whole.history[1]["client_energy_j"]
    assert spent["energy_j"] == pytest.approx(worked[0] + worked[2] + whole.history[1]["broadcast_j"])
    assert spent["delay_s"] == pytest.approx(max(whole.history[1]["client_delay_s"][n] for n in (0, 2)))
    assert more.history[1]["energy_j"] == pytest.approx(whole.history[1]["energy_j"] + spent["energy_j"])
    assert more.summary["energy_j"] == pytest.approx(sum(event["energy_j"] for event in more.history))
    assert more.summary["ended"] == "the delay budget is spent"  # plans use all of it
    assert [e["train_loss"] for e in more.history] == [e["train_loss"] for e in whole.history[:len(more.history)]]


def test_nodes_that_are_offline_are_not_charged_while_the_server_waits(fleet):
    nodes = fleet(2, *SMALL, "rounds=4")

    def leave(job, event):
        if event["round"] == 1:
            nodes.offline.update(nodes.nodes)
            threading.Timer(0.5, nodes.offline.clear).start()

    run = nodes.session(on_event=leave, round_s=0.2).run()
    assert not any("uncounted" in event for event in run.history)
    assert run.summary["energy_j"] == pytest.approx(
        fleet(2, *SMALL, "rounds=4").session("whole").run().summary["energy_j"])


def test_a_server_killed_while_it_waits_keeps_what_was_spent(fleet, tmp_path):
    nodes = fleet(2, *SMALL, "rounds=4")

    class Killed(BaseException):
        pass

    def die(what):
        raise Killed

    session, _ = stopped_session(nodes, "run", after=2, away_s=1.0, away=range(2), round_s=0.2)
    session._on_wait = die
    with pytest.raises(Killed):
        session.run()
    kept = Checkpoints(tmp_path / "run" / "checkpoint").load()[1]
    assert kept["round"] == 2
    assert len(kept["uncounted"]) == 1
    time.sleep(1.0)
    run = nodes.session("run").run()
    assert run.history[2]["uncounted"][0]["reason"] == "round 2: 0 of 1 needed updates arrived"
    whole = fleet(2, *SMALL, "rounds=4").session("whole").run()
    assert torch.equal(weights(run), weights(whole))


def test_a_model_that_the_nodes_cannot_import_fails_the_run(fleet):
    """Every answer is refused; before, the run ended as a success with the initial weights."""
    nodes = fleet(2, *SMALL)
    for client in (0, 1):
        def without_module(request, answer):
            if request.fields["kind"] == "enrol":
                return answer.to_bytes()
            return type(answer)({"status": "refused", "reason": "model: shop.models:Net cannot be imported"}).to_bytes()

        nodes.spoil[client] = without_module
    session = nodes.session()
    with pytest.raises(RunFailedError, match=r"round 0: answers were refused in each of 3.*client 1.*cannot be "
                                             "imported") as failed:
        session.run()
    assert failed.value.exit_code == 4
    assert "\n" not in str(failed.value)
    assert not (session.folder / "summary.json").exists()


def test_one_client_that_is_always_refused_ends_only_a_run_that_needs_it(fleet):
    def garbage(request, answer):
        return answer.to_bytes() if request.fields["kind"] == "enrol" else b"garbage"

    nodes = fleet(3, *SMALL)
    nodes.spoil[1] = garbage
    assert len(nodes.session("without").run().history) == 6
    nodes = fleet(3, *SMALL)
    nodes.spoil[1] = garbage
    with pytest.raises(RunFailedError, match=r"client 1: answer refused"):
        nodes.session("with", quorum=Quorum.parse("1.0")).run()


def test_a_node_that_comes_back_after_a_long_silence_is_asked_again_and_again(fleet):
    """The question whether it is there is void after a while, and must be put again."""
    nodes = fleet(2, *SMALL, "rounds=3")
    session, said = stopped_session(nodes, "run", after=1, away_s=1.2, away=range(2), round_s=0.05)
    run = session.run()
    asked = [request for _, request in nodes.requests if request.fields["kind"] == "hello"]
    assert len(asked) >= 2
    assert len(run.history) == 3
    assert len(said) == 1
