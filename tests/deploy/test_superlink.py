"""The gate before Flower's real SuperLink app: other machines reach nodes' requests alone, and those are bounded."""

import base64
import contextlib
import datetime
import inspect
import io
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
from types import SimpleNamespace

import pytest
from flwr.proto.control_pb2 import ListRunsRequest, ListRunsResponse, RegisterNodeRequest
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate.in_memory_corestate import InMemoryCoreState
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink import extensions
from flwr.superlink.grid import http_grid
from flwr.superlink.main import create_app
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from fedgap.deploy import admission, client_app, connection_owner, flower_patches
from fedgap.deploy.child_processes import DeployError, flwr
from fedgap.deploy.connection_owner import owner_of
from fedgap.deploy.flower_patches import PULL, check_version, pull_soon, register_nodes, run_only, wait_for_slow_starts
from fedgap.deploy.keys import make_certificates, make_node_key, node_id, read_public_keys
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


@pytest.fixture
def ours(monkeypatch):
    """Every connection belongs to the account that runs the tests."""
    monkeypatch.setattr(connection_owner, "owner_of", lambda client, server: os.getuid())


def test_only_this_machine_starts_runs_and_registers_keys(superlink, ours):
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
    ("192.0.2.1", "192.0.2.1", True),  # by the machine's own name, whose address is not a loopback address
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
    assert str(caught.value) == ("flwr: must be version 1.41.x; 1.50.2 is installed. Install it with: "
                                 "pip install 'flwr==1.41.*'")


# --- another account of the same machine ------------------------------------------------------------------------------

CONTROL = [("/v1/control/list-runs", ListRunsRequest().SerializeToString()), ("/v1/control/start-run", b""),
           ("/v1/runtime/acquire-task", b""), ("/v1/runtime/pull-messages", b"")]


@pytest.mark.parametrize("owner", [os.getuid() + 1, None], ids=["another account", "nobody knows"])
def test_another_account_of_this_machine_controls_nothing(superlink, monkeypatch, owner):
    monkeypatch.setattr(connection_owner, "owner_of", lambda client, server: owner)
    for path, request in CONTROL:
        answer = superlink("127.0.0.1").post(path, content=request, headers=PROTOBUF)
        assert (answer.status_code, answer.text) == (403, "only the account that started the SuperLink may control it")


def test_where_the_kernel_does_not_tell_nobody_controls_until_the_user_says_so(superlink, monkeypatch, tmp_path):
    monkeypatch.setattr(connection_owner, "TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    refused = superlink("127.0.0.1").post(*CONTROL[0][:1], content=CONTROL[0][1], headers=PROTOBUF)
    assert (refused.status_code, "FEDGAP_TRUST_LOCAL_ACCOUNTS=1" in refused.text) == (403, True)
    monkeypatch.setenv("FEDGAP_TRUST_LOCAL_ACCOUNTS", "1")
    assert superlink("127.0.0.1").post(CONTROL[0][0], content=CONTROL[0][1], headers=PROTOBUF).status_code == 200


@pytest.mark.skipif(not connection_owner.TABLES[0].is_file(), reason="reads /proc/net/tcp")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_the_kernel_tells_whose_a_connection_is(family):
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        at = listener.getsockname()[:2]
        with socket.create_connection(at) as mine:
            ends = mine.getsockname()[:2], at
            assert owner_of(*ends) == os.getuid()
            with listener.accept()[0]:
                mine.close()
                assert owner_of(*ends) is None  # closed by its process: whoever it was, it counts no more
        if os.getuid() == 0:
            with other_account(at) as client:
                assert owner_of(client, at) == NOBODY


NOBODY = 65534


@contextlib.contextmanager
def other_account(at):
    """A connection to ``at`` that belongs to the account nobody; its address."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        connection = socket.socket(socket.AF_INET6 if ":" in at[0] else socket.AF_INET)
        connection.connect(at)
        os.write(tell, str(connection.getsockname()[1]).encode())
        signal.pause()
    try:
        yield at[0], int(os.read(told, 10))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# --- who is let in ----------------------------------------------------------------------------------------------------

@pytest.fixture
def admitting(monkeypatch, tmp_path):
    """admitting() → an app with the nodes a and b; it forgets nothing of them when it is made again."""
    keys = {name: make_node_key(tmp_path / "keys", name)[0] for name in "ab"}
    monkeypatch.setattr(extensions, "configure_app", extensions.configure_app)
    monkeypatch.setattr(extensions, "get_middleware", lambda: (Middleware(Gate, most_bytes=MOST),))
    register_nodes(read_public_keys(tmp_path / "keys"))
    return create_app, keys


def test_the_keys_of_the_folder_are_let_in_under_their_names_and_the_same_numbers(admitting, tmp_path):
    make, _ = admitting
    pems = read_public_keys(tmp_path / "keys")
    for app in (make(), make()):  # a SuperLink that was killed, and its successor
        nodes = app.state.linkstate_factory.state().get_node_info()
        assert {node.name: (node.node_id, node.public_key) for node in nodes} == {
            name: (node_id(pem), pem) for name, pem in pems.items()}
    (tmp_path / "keys" / "b.pub").unlink()  # revoked
    register_nodes(read_public_keys(tmp_path / "keys"))
    state = make().state.linkstate_factory.state()
    assert state.get_node_id_by_public_key(pems["b"]) is None
    assert state.get_node_id_by_public_key(pems["a"]) == node_id(pems["a"])


@pytest.mark.parametrize(("change", "says"), [
    ({}, ""),
    ({"stranger": True}, "key: the server does not know this node's key; give .*stranger.pub to its operator"),
    ({"online": True}, "key: a node with this key is connected already"),
    ({"name": "b"}, "name: the server knows this key as 'a', and the node's file says 'b'"),
    ({"ahead_s": 3600}, "clock: this machine's is 3600 s ahead of the server's.* NTP"),
    ({"ahead_s": -400}, "clock: this machine's is 400 s behind the server's"),
    ({"ahead_s": -200}, ""),  # Flower bears it
    ({"version": "0.0.9"}, "version: this node has fedgap 0.0.9 and the server .*; install the server's with: pip"),
])
def test_a_node_is_told_why_it_is_not_let_in(admitting, monkeypatch, tmp_path, change, says):
    make, keys = admitting
    app, key = make(), keys["a"]
    if change.get("stranger"):
        key, _ = make_node_key(tmp_path / "own", "stranger")
    if change.get("online"):
        app.state.linkstate_factory.state().activate_node(node_id(read_public_keys(tmp_path / "keys")["a"]), 30.0)
    real_now, real_version = admission._now, admission.metadata.version
    server = TestClient(app)

    def ask(request, timeout, context):
        """The server answers with its own clock and version, whatever the node's are."""
        with monkeypatch.context() as here:
            here.setattr(admission, "_now", real_now)
            here.setattr(admission.metadata, "version", real_version)
            answer = server.get(admission.CHECK, headers=dict(request.header_items()))
        return io.BytesIO(answer.content)

    monkeypatch.setattr(admission.urllib.request, "urlopen", ask)
    monkeypatch.setattr(admission.ssl, "create_default_context", lambda cafile: None)
    monkeypatch.setattr(admission, "_now", lambda: real_now() + datetime.timedelta(seconds=change.get("ahead_s", 0)))
    monkeypatch.setattr(admission.metadata, "version", lambda name: change.get("version") or real_version(name))
    said = admission.why_not_admitted("server.example:8000", tmp_path / "ca.crt", key, change.get("name", "a"))
    assert re.match(says, said), said
    assert bool(said) == bool(says)


def test_what_is_known_of_a_key_is_told_to_its_owner_alone(admitting, tmp_path):
    make, _ = admitting
    pem = base64.b64encode(read_public_keys(tmp_path / "keys")["a"]).decode()
    answer = TestClient(make()).get(admission.CHECK, headers={admission.KEY: pem, admission.TIME: "now",
                                                             admission.SIGNATURE: base64.b64encode(b"x").decode()})
    assert set(answer.json()) == {"fedgap", "flwr", "now"}


@pytest.mark.parametrize(("error", "says"), [
    (ConnectionRefusedError(111, "Connection refused"), r"server: nobody answers at s:1 \(Connection refused\)"),
    (TimeoutError("timed out"), "server: nobody answers at s:1 .*firewall"),
    (socket.gaierror(-2, "Name or service not known"), "server: the host name in s:1 cannot be resolved"),
    (ssl.SSLError("wrong version number"), "server: s:1 does not speak TLS"),
])
def test_a_server_that_cannot_be_reached_is_told_apart(admitting, monkeypatch, tmp_path, error, says):
    def fail(*arguments, **options):
        raise urllib.error.URLError(error)

    monkeypatch.setattr(admission.urllib.request, "urlopen", fail)
    monkeypatch.setattr(admission.ssl, "create_default_context", lambda cafile: None)
    assert re.match(says, admission.why_not_admitted("s:1", tmp_path / "ca.crt", admitting[1]["a"], "a"))


def test_an_app_that_the_server_sends_is_not_run(monkeypatch):
    """A SuperLink sends code with every run; a node answers with the installed app, whatever came."""
    from flwr.supernode.runtime import run_clientapp

    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    run_only(client_app.app)
    assert run_clientapp.install_from_fab(b"not even an archive", skip_prompt=True) is None
    load = run_clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("evil", "1.0", "hash") is client_app.app


def test_a_database_is_refused(tmp_path):
    make_certificates(tmp_path / "keys", ["127.0.0.1"])
    done = subprocess.run([sys.executable, "-m", "fedgap.deploy.superlink", "1000", str(tmp_path / "keys"),
                           "--database", str(tmp_path / "state.db")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "would keep the clients' gradients on disk" in done.stderr
    assert not (tmp_path / "state.db").exists()


def test_a_flower_command_that_hangs_is_told_in_one_line(monkeypatch):
    """Before, a busy machine ended `deploy up` with a traceback."""
    def hang(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(DeployError, match=r"^flwr run gave no answer within 7 s; perhaps this machine is too busy"):
        flwr(["run"], {}, timeout_s=7.0)


def test_a_process_that_starts_slowly_is_waited_for(monkeypatch):
    """Flower counts an app's process as lost after 30 s and starts another, on a busy computer without end."""
    monkeypatch.setattr(InMemoryCoreState, "claim_task", InMemoryCoreState.claim_task)
    state = InMemoryLinkState(federation_manager=SimpleNamespace(), object_store=None)
    before = datetime.datetime.now(datetime.UTC)
    for wait in (30.0, 130.0):
        task = state.create_task(TaskType.SERVER_APP, run_id=1)
        assert state.claim_task(task) is not None
        assert state.claim_task(task) is None  # as before: one process for one task
        assert (state.task_token_store[task].active_until - before).total_seconds() == pytest.approx(wait, abs=20.0)
        wait_for_slow_starts(100.0)
