"""A node's name is its key's, its version the server's, and what it computes with is what its operator allowed."""

import json
import threading

import numpy as np
import pytest

from fedgap.deploy import session as server
from fedgap.deploy.keys import make_node_key, node_id, read_public_keys
from fedgap.deploy.node import Node
from fedgap.deploy.node_data import LocalNodeData, NodeSettings
from fedgap.deploy.packet import Packet
from fedgap.errors import InputError
from fedgap.running.train_and_resume import train
from tests.deploy.direct import FIRST, news

NAMES = {FIRST: "client 0", FIRST + 1: "client 1", FIRST + 2: "client 2"}


def renamed(name):
    return lambda request, answer: (Packet({**answer.fields, "name": name}, answer.blobs) if "name" in answer.fields
                                    else answer).to_bytes()


def test_a_node_cannot_take_anothers_name(fleet):
    """Before, whoever enrolled first as 'client 1' was client 1, and the real one was refused."""
    nodes = fleet(3, "rounds=2")
    nodes.spoil[2] = renamed("client 1")
    run = nodes.session(names=NAMES).run()
    assert run.job.names == ("client 0", "client 1")
    ((_, _, told),) = news(run)
    assert told.startswith("node 102 was refused: its key belongs to 'client 2', and it calls itself 'client 1'")
    assert not any(client == 2 and request.fields["kind"] == "round" for client, request in nodes.requests)
    nodes.spoil.clear()
    assert len(nodes.session("again", names=NAMES).run().job.names) == 3


def test_who_is_refused_does_not_start_the_run_without_those_who_can_still_come(fleet):
    """Two nodes are wanted: client 2 steals a name, and client 1 comes a little later."""
    nodes = fleet(3, "rounds=2", "scheme=all_clients")
    nodes.spoil[2] = renamed("client 0")
    nodes.offline.add(FIRST + 1)
    session = nodes.session(names=NAMES, enrol_s=120.0)
    session.nodes = 2
    threading.Timer(1.0, nodes.offline.clear).start()
    assert session.run().job.names == ("client 0", "client 1")


def test_a_key_without_a_name_takes_part_under_none(fleet):
    run = fleet(2, "rounds=2").session(names={FIRST: "client 0"}).run()
    assert run.job.names == ("client 0",)
    assert "its key belongs to None, and it calls itself 'client 1'" in news(run)[0][2]


@pytest.mark.parametrize(("theirs", "said"), [("0.0.9", "0.0.9"), (None, "of an earlier version")])
def test_a_node_of_another_version_is_refused_with_what_to_install(fleet, theirs, said):
    nodes = fleet(2, "rounds=2")
    nodes.spoil[1] = lambda request, answer: Packet(
        {key: value for key, value in {**answer.fields, "fedgap": theirs}.items() if value is not None}).to_bytes()
    ours = server.metadata.version("fedgap")
    run = nodes.session().run()
    assert run.job.names == ("client 0",)
    ((_, _, told),) = news(run)
    assert f"'client 1' has fedgap {said}, the server {ours}; install" in told
    assert told.endswith(f"pip install fedgap=={ours}")


def test_two_names_for_one_key_are_refused_and_any_name_has_a_file(tmp_path):
    make_node_key(tmp_path / "keys", "client 1")
    make_node_key(tmp_path / "keys", "a/b ü%")
    keys = read_public_keys(tmp_path / "keys")
    assert set(keys) == {"client 1", "a/b ü%"}
    assert len({node_id(pem) for pem in keys.values()} - {0, 1}) == 2
    (tmp_path / "keys" / "thief.pub").write_bytes((tmp_path / "keys" / "client 1.pub").read_bytes())
    with pytest.raises(InputError, match=r"thief\.pub: is the same key as client 1\.pub, and every node needs its own"):
        read_public_keys(tmp_path / "keys")


@pytest.mark.parametrize("text", [
    "", "-----BEGIN PUBLIC KEY-----", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBS2v4QGVvBmNnIuZ7AhpTbMzCYUWPAMR0VzRW2rV"])
def test_what_is_no_key_is_named(tmp_path, text):
    (tmp_path / "a.pub").write_text(text)
    with pytest.raises(InputError, match=r"a\.pub: .*`fedgap deploy key`"):
        read_public_keys(tmp_path)


# --- what a node computes with ----------------------------------------------------------------------------------------

EVIL = "fedgap_test_evil"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that tells when it is imported."""
    (tmp_path / f"{EVIL}.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nPath('imported').touch()\n"
        "def make(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
        "RULE = None\n__fedgap__ = ['make', 'RULE']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDGAP_ALLOW", raising=False)
    return tmp_path


def own_node(folder, **more):
    draw = np.random.default_rng(0)
    np.savez(folder / "own.npz", train_x=draw.normal(size=(40, 28, 28)), train_y=draw.integers(0, 10, 40))
    device = {"uplink_gain": 8e-6, "bandwidth_hz": 1e5, "max_power_w": 0.5, "max_frequency_hz": 5e8,
              "flops_per_cycle": 4, "pue": 1.0, "capacitance": 8.8e-28}
    (folder / "own.json").write_text(json.dumps(
        {"name": "shop", "data": "own.npz", "classes": 10, "device": device, **more}))
    return Node(LocalNodeData(NodeSettings.load(folder / "own.json")))


def first_request(nodes):
    """The server's first message of a round, taken from a run."""
    nodes.session().run()
    return next(request for _, request in nodes.requests if request.fields["kind"] == "round")


@pytest.mark.parametrize(("part", "key", "reference"), [
    ("model", "name", f"{EVIL}:make"), ("model", "name", "subprocess:Popen"), ("importance", "rule", f"{EVIL}:RULE"),
    ("model", "name", ["lenet5"])])
def test_a_node_runs_only_what_its_operator_allowed(fleet, evil, part, key, reference):
    """Before, a server could have a node import and call anything. Offering a name to fedgap is not enough here."""
    honest = first_request(fleet(1, "rounds=1"))
    task = json.loads(json.dumps(honest.fields["task"]))
    task[part][key] = reference
    request = Packet({**honest.fields, "task": task}, honest.blobs)
    answer = own_node(evil).answer(request)
    assert answer.fields["status"] == "refused"
    assert "can add it to `allow` in the node's file" in answer.fields["reason"] or isinstance(reference, list)
    assert not (evil / "imported").exists()
    assert own_node(evil).answer(honest).fields["status"] == "done"


def test_a_node_runs_what_its_operator_allowed(fleet, evil):
    nodes = fleet(1, "rounds=1", f"model.name={EVIL}:make")
    request = first_request(nodes)  # its own experiment names it: that is the operator's word
    assert own_node(evil).answer(request).fields["status"] == "refused"
    assert own_node(evil, allow=[f"{EVIL}:make"]).answer(request).fields["status"] == "done"
    assert train(nodes.experiment, evil / "simulated").finished
