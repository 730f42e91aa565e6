"""The gate before Flower's real SuperLink app: other machines reach nodes' requests alone, and those are bounded."""

import inspect
import time

import pytest
from flwr.proto.control_pb2 import ListRunsRequest, ListRunsResponse, RegisterNodeRequest
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink import extensions
from flwr.superlink.grid import http_grid
from flwr.superlink.main import create_app
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from fedgap.deploy import flower_patches
from fedgap.deploy.flower_patches import PULL, check_version, pull_soon
from fedgap.deploy.packet import Packet
from fedgap.deploy.server_app import GridTransport
from fedgap.deploy.superlink import Gate, from_here
from fedgap.errors import InputError

MOST = 10_000
PROTOBUF = {"content-type": "application/protobuf"}


@pytest.fixture
def superlink(monkeypatch):
    """superlink(address) → a client at that address of a SuperLink in this process."""
    monkeypatch.setattr(extensions, "get_middleware", lambda: (Middleware(Gate, most_bytes=MOST),))
    app = create_app()
    return lambda address: TestClient(app, client=(address, 40_000), raise_server_exceptions=False)


def test_only_this_machine_starts_runs_and_registers_keys(superlink):
    asked = ListRunsRequest().SerializeToString()
    ours = superlink("127.0.0.1").post("/v1/control/list-runs", content=asked, headers=PROTOBUF)
    assert ours.status_code == 200
    assert not ListRunsResponse.FromString(ours.content).run_dict
    stranger = superlink("203.0.113.7")
    for path, request in (("/v1/control/list-runs", asked),
                          ("/v1/control/register-node", RegisterNodeRequest(public_key=b"x").SerializeToString()),
                          ("/v1/control/start-run", b""), ("/v1/runtime/pull-messages", b""), ("/docs", None)):
        answer = (stranger.get(path) if request is None
                  else stranger.post(path, content=request, headers=PROTOBUF))
        assert (answer.status_code, answer.text) == (403, "nodes only"), path


def test_nodes_of_other_machines_are_answered_by_flower(superlink):
    request = RegisterNodeFleetRequest(public_key=b"x").SerializeToString()
    ours, theirs = (superlink(address).post("/v1/fleet/register-node", content=request, headers=PROTOBUF)
                    for address in ("127.0.0.1", "203.0.113.7"))
    assert theirs.status_code == ours.status_code != 403
    assert theirs.text == ours.text


def test_requests_are_bounded_whether_they_say_their_length_or_not(superlink):
    path = "/v1/fleet/push-object"
    for address in ("127.0.0.1", "203.0.113.7"):
        client = superlink(address)
        assert client.post(path, content=bytes(MOST + 1), headers=PROTOBUF).status_code == 413
        in_parts = client.post(path, content=(bytes(1000) for _ in range(MOST // 1000 + 1)), headers=PROTOBUF)
        assert "content-length" not in in_parts.request.headers
        assert in_parts.status_code == 413
        assert client.post(path, content=bytes(MOST), headers=PROTOBUF).status_code != 413


@pytest.mark.parametrize(("client", "server", "here"), [
    ("127.0.0.1", "127.0.0.1", True), ("::1", "::1", True), ("::ffff:127.0.0.1", "::", True),
    ("192.0.2.1", "192.0.2.1", True),  # by the machine's own name, whose address is no loopback one
    ("192.0.2.2", "192.0.2.1", False), ("192.0.2.2", "127.0.0.1", False), ("fe80::1", "::1", False),
    ("", "", False), ("testclient", "testclient", False)])
def test_who_is_here(client, server, here):
    assert from_here({"client": (client, 1), "server": (server, 2)}) is here
    assert not from_here({"client": None, "server": (server, 2)})


def test_an_answer_that_was_announced_and_never_comes_is_given_up_with_its_round(monkeypatch):
    """Flower would ask for its parts for two hours, and all other nodes' answers would wait behind it."""
    monkeypatch.setattr(http_grid, "pull_objects", pull_objects)
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)  # as in a process of Flower's

    class Grid:
        def push_messages(self, messages):
            return ["ticket" for _ in messages]

    transport = GridTransport(Grid())
    transport.send({7: Packet({"kind": "round", "round": 0})}, 2.0)
    tries = []

    def never(object_id):
        tries.append(time.monotonic())
        raise ObjectUnavailableError("not there")

    with pytest.raises(ObjectPullError):
        http_grid.pull_objects(["part"], pull_object_fn=never)
    assert tries[-1] - tries[0] >= 1.0  # until the message is void, and not before
    assert len(tries) > 3
    transport.send({7: Packet({"kind": "hello"})}, 600.0)  # a question in the background is nothing to wait for
    assert transport._until < time.monotonic() + 2.0


def test_parts_of_messages_are_asked_for_soon_again(monkeypatch):
    monkeypatch.setattr(pull_objects, "__kwdefaults__", dict(pull_objects.__kwdefaults__))
    pull_soon()
    assert {name: inspect.signature(pull_objects).parameters[name].default for name in PULL} == PULL


def test_an_unknown_version_of_flower_is_refused_in_one_line_that_says_what_to_install(monkeypatch):
    check_version()
    monkeypatch.setattr(flower_patches.metadata, "version", lambda name: "1.50.2")
    with pytest.raises(InputError) as caught:
        pull_soon()
    assert str(caught.value) == ("flwr: version 1.50.2 is installed, and fedgap knows 1.41.x only; install that with: "
                                 "pip install 'flwr==1.41.*'")
