"""The resident worker on a real Unix socket, and the client app that needs neither torch nor numpy."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgap.deploy import worker_socket
from fedgap.deploy.packet import Packet
from fedgap.deploy.worker_socket import SOCKET, WorkerError, ask, connect, receive_frame, send_frame

HELLO = Packet({"kind": "hello"}).to_bytes()


@pytest.fixture
def node(tmp_path):
    """A node's folder; whatever worker runs in it is ended afterwards."""
    folder = tmp_path / "node"
    folder.mkdir(mode=0o700)
    (folder / "node.yaml").write_text("experiment: embedded\nclient: 1\n")
    yield folder
    for process in _workers(folder):
        os.kill(process, signal.SIGKILL)


def _workers(folder):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"fedgap.deploy.node_worker" in command and str(folder).encode() in command:
                found.append(int(entry))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_starts_at_the_first_question_stays_hangs_and_comes_again(node):
    assert Packet.from_bytes(ask(node, {}, HELLO, 120.0), 1000).fields == {"status": "here"}
    (worker,) = _workers(node)
    assert (node / SOCKET).stat().st_mode & 0o077 == 0
    profile = Packet.from_bytes(ask(node, {}, Packet({"kind": "enrol"}).to_bytes(), 60.0), 10_000).fields
    assert (profile["name"], profile["client"], sum(profile["label_counts"])) == ("client 1", 1, 400)
    for garbage in (b"", b"\x80\x04", os.urandom(1000), Packet({"kind": "what"}).to_bytes()):
        assert Packet.from_bytes(ask(node, {}, garbage, 60.0), 10_000).fields["status"] == "refused"
    with connect(node, 5.0) as broken:
        broken.sendall(b"\xff" * 8)  # announces 2^64 bytes
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="no answer within"):
        ask(node, {}, HELLO, 0.5)
    os.kill(worker, signal.SIGCONT)
    assert ask(node, {}, HELLO, 60.0)
    assert _workers(node) == [worker]
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.2)
    assert Packet.from_bytes(ask(node, {}, HELLO, 120.0), 1000).fields == {"status": "here"}
    assert _workers(node) != [worker]


def test_a_folder_of_others_is_not_used(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(WorkerError, match="0700"):
        ask(folder, {}, HELLO, 1.0)


def test_frames_are_bounded(monkeypatch):
    here, there = socket.socketpair()
    with here, there:
        send_frame(here, b"12345")
        assert receive_frame(there) == b"12345"
        monkeypatch.setattr(worker_socket, "MOST_BYTES", 4)
        send_frame(here, b"12345")
        with pytest.raises(WorkerError, match="at most"):
            receive_frame(there)


def test_the_client_app_imports_neither_torch_nor_the_planner():
    code = ("import sys, fedgap.deploy.client_app; "
            "print(sorted({'torch', 'scipy', 'pydantic', 'cvxpy', 'safetensors'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(eval(done.stdout))
    assert "torch" not in found
    assert not found & {"scipy", "cvxpy", "safetensors"}
