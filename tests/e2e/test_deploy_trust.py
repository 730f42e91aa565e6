"""Real processes over Flower: whoever is not meant to take part does not, and no gradient is left on the disk."""

import json
import os
import resource
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from fedgap.deploy.child_processes import free_port, listening
from fedgap.deploy.worker_socket import SOCKET
from fedgap.learning.data import load
from tests.e2e.deployments import QUICK, deployed, said, wait_for

pytestmark = pytest.mark.skipif(os.environ.get("FEDGAP_FULL") != "1", reason="takes minutes; set FEDGAP_FULL=1")
DEPLOY = [sys.executable, "-m", "fedgap", "deploy"]
DEVICE = ("{uplink_gain: 8.0e-6, bandwidth_hz: 1.0e5, max_power_w: 0.5, max_frequency_hz: 5.0e8, flops_per_cycle: 4, "
          "pue: 1.0, capacitance: 8.8e-28}")
NOBODY = 65534


class Shops:
    """A server and nodes by their own commands, as on different machines."""

    def __init__(self, folder):
        self.folder, self.port, self.started = folder, free_port(), {}
        subprocess.run([*DEPLOY, "keys", str(folder / "keys"), "--host", "127.0.0.1"], check=True)
        data = load("embedded", train_samples=600, test_samples=200)
        np.savez(folder / "data.npz", train_x=data.train_x.numpy(), train_y=data.train_y.numpy())

    def key(self, name, admitted=True):
        """A key pair that the node makes itself; the server gets the public half, or does not."""
        subprocess.run([*DEPLOY, "key", name, str(self.folder / f"{name}-keys")], check=True)
        if admitted:
            public = (self.folder / f"{name}-keys" / f"{name}.pub").read_bytes()
            (self.folder / "keys" / f"{name}.pub").write_bytes(public)

    def node(self, process, *, name, key, **environ):
        file = self.folder / f"{process}.yaml"
        file.write_text(f"name: {name}\ndata: data.npz\nclasses: 10\ndevice: {DEVICE}\n")
        with open(self.folder / f"{process}.err", "wb") as err:
            self.started[process] = subprocess.Popen([
                *DEPLOY, "node", str(file), "--superlink", f"127.0.0.1:{self.port}", "--ca",
                str(self.folder / "keys" / "ca.crt"), "--key", str(self.folder / f"{key}-keys" / key),
                "--folder", str(self.folder / f"{process}-folder")], stderr=err, env=os.environ | environ)

    def said(self, process):
        return (self.folder / f"{process}.err").read_text()

    def server(self, out, *options):
        return subprocess.Popen([
            *DEPLOY, "server", "embedded", *QUICK, "rounds=4", "--nodes", "2", "--keys", str(self.folder / "keys"),
            "--host", "127.0.0.1", "--reach", "127.0.0.1", "--port", str(self.port), "--out", str(self.folder / out),
            *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self):
        for process in self.started.values():
            process.terminate()
        for process in self.started.values():
            process.wait(60)


@pytest.fixture
def shops(tmp_path):
    shops = Shops(tmp_path)
    yield shops
    shops.stop()


def control(port, ca):
    """What the control interface answers the account nobody, in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            context = ssl.create_default_context(cafile=ca)
            import encodings.idna  # noqa: F401  (nobody may not be able to read the interpreter's files)
            os.setuid(NOBODY)
            try:
                urllib.request.urlopen(urllib.request.Request(
                    f"https://127.0.0.1:{port}/v1/control/list-runs", data=b"",
                    headers={"content-type": "application/protobuf"}), context=context, timeout=20)
            except urllib.error.HTTPError as error:
                code = error.code % 256
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_who_is_not_meant_to_take_part_does_not(shops, tmp_path):
    """A thief of a name, a stranger, a twin and a node of another version, beside two honest nodes; then a revoked key,
    and another account of the server's machine."""
    for name in ("a", "b", "c", "old"):
        shops.key(name)
    shops.key("stranger", admitted=False)
    info = tmp_path / "other" / "fedgap-0.0.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedgap\nVersion: 0.0.9\n")
    shops.node("thief", name="a", key="c")
    shops.node("stranger", name="stranger", key="stranger")
    shops.node("old", name="old", key="old", PYTHONPATH=os.pathsep.join(
        [str(tmp_path / "other"), *filter(None, [os.environ.get("PYTHONPATH")])]))
    assert wait_for(lambda: "server: nobody answers at 127.0.0.1" in shops.said("thief"), 60)
    with shops.server("run", "--enrol-timeout", "240") as server:
        wait_for(lambda: listening("127.0.0.1", shops.port), 120)
        if os.getuid() == 0:
            assert control(shops.port, tmp_path / "keys" / "ca.crt") == 403 % 256
        assert wait_for(lambda: "does not know this node's key" in shops.said("stranger"), 120)
        shops.node("a", name="a", key="a")
        assert wait_for(lambda: said(tmp_path / "a-folder" / "supernode.log", "SuperNode ID:"), 120)
        shops.node("twin", name="a", key="a")
        assert wait_for(lambda: "a node with this key is connected already" in shops.said("twin"), 120)
        shops.node("b", name="b", key="b")
        _, err = server.communicate(timeout=400)
    assert server.returncode == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [client["name"] for client in summary["clients"]] == ["a", "b"]
    assert "its key belongs to 'c', and it calls itself 'a'" in err
    assert "'old' has fedgap 0.0.9" in err
    assert "name: the server knows this key as 'c', and the node's file says 'a'" in shops.said("thief")
    assert "version: this node has fedgap 0.0.9 and the server" in shops.said("old")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.stat().st_mode & 0o077 and path.is_file()]

    for process in ("thief", "old"):  # whoever was refused counts as answered
        shops.started[process].terminate()
        shops.started[process].wait(60)
    (tmp_path / "keys" / "b.pub").unlink()  # revoked: a and b still run
    with shops.server("again", "--enrol-timeout", "60") as server:
        _, err = server.communicate(timeout=400)
    assert server.returncode == 2, err
    assert "nodes: 1 of 2 enrolled within 60 s" in err
    assert "does not know this node's key" in shops.said("b")


def test_no_gradient_is_left_on_the_disk(tmp_path):
    """Before, five of five runs left the clients' gradients in the SuperLink's database."""
    out, sent = tmp_path / "run", tmp_path / "sent"
    sent.mkdir()
    with deployed(out, 2, "rounds=3", round_s=30.0) as deployment:
        node = deployment.nodes[1]
        node.processes[0].kill()
        (node.folder / SOCKET).unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-m", "tests.e2e.recording_worker", str(node.folder), str(sent)],
                                   cwd=Path(__file__).parents[2])
        try:
            wait_for((node.folder / SOCKET).exists)
            run = deployment.run()
            uploads = [path.read_bytes() for path in sent.iterdir()]
            assert len(uploads) == 3
            left = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        finally:
            process.kill()
            process.wait()
    assert len(run.history) == 3
    for upload in uploads:
        assert len(upload) > 10_000
        middle = upload[len(upload) // 2:][:64]  # a database may split it into pages
        assert not [path for path, data in left.items() if middle in data]
    assert all(path.stat().st_mode & 0o077 == 0 for path in out.rglob("*.log"))


def test_a_full_disk_is_told_in_one_line_and_the_same_command_continues(tmp_path):
    command = [*DEPLOY, "up", "embedded", *QUICK, "rounds=3", "--local", "2", "--out", str(tmp_path / "run"), "--json"]

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # the model has 200 kB

    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, preexec_fn=small_files)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "cannot be written or read (File too large); free some space, then continue with the" in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3
