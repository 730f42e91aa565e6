"""Start and stop a SuperLink (with TLS and node authentication) and nodes, and run the app on them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from fedgap.deploy.child_processes import (
    DeployError,
    Process,
    environment,
    flwr,
    free_port,
    last_words,
    listening,
    wait_until,
)
from fedgap.deploy.flower_patches import check_version
from fedgap.deploy.keys import private_folder
from fedgap.deploy.transport import WAITING, Patience
from fedgap.deploy.worker_socket import SOCKET
from fedgap.errors import FedgapError, InfeasibleError, InputError, RunFailedError
from fedgap.files import write_text
from fedgap.running.events import Event, read_rounds
from fedgap.running.run import Run

CONNECTION = "fedgap"
LOCK = "server.lock"
"""File in the run's folder that the server app locks while it is running; it contains the process id."""
FAILED = "failed.json"
"""File in the run's folder that says why the run failed."""
APP = """\
[project]
name = "fedgap-app"
version = "{version}"
description = "Generalization-aware federated edge learning within an energy and a delay budget"
license = {{text = "Apache-2.0"}}
dependencies = ["fedgap[deploy]"]

[tool.flwr.app]
publisher = "fedgap"

[tool.flwr.app.components]
serverapp = "fedgap.deploy.server_app:app"
clientapp = "fedgap.deploy.client_app:app"

[tool.flwr.app.config]
experiment = "embedded"   # an experiment's file (an absolute path), or a preset
folder = "runs/deployed"  # the run's folder on the server; a run that was killed continues there
nodes = 4                 # how many must enrol before planning
keys = ""                 # the folder with the nodes' public keys, NAME.pub: each may take its own name only
round-timeout = 60.0      # seconds the server waits for a round's answers
enrol-timeout = 180.0     # seconds it waits for all nodes to enrol
profile = false           # whether the nodes measure how long they take, before planning
min-clients = "1"         # gradients that a round needs to count; a share such as "0.5" is of its selected clients
"""
"""The Flower app. Its code is the installed fedgap, so the app consists of this file alone."""


def write_app(folder: Path) -> Path:
    """Write the folder of the Flower app, for ``flwr run``, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    version = metadata.version("fedgap")
    write_text(folder / "pyproject.toml", APP.format(version=version))
    return folder


class SuperLink:
    """A SuperLink with its files in ``folder`` (home/, logs/). The nodes whose public keys are in ``keys`` may take
    part."""

    def __init__(self, folder: Path, *, host: str, port: int, keys: Path, most_bytes: int,
                 reach: str | None = None) -> None:
        """``host`` is the address on which it listens; ``reach`` is a name in its certificate by which this machine
        reaches it.

        A node's request may have at most ``most_bytes`` bytes."""
        self.folder, self.host, self.port, self.keys = private_folder(folder), host, port, keys
        self.most_bytes = most_bytes
        self.reach = reach or host
        self.logs, home = folder / "logs", private_folder(folder / "home")
        self.logs.mkdir(exist_ok=True)
        self.environ = environment(home)
        del self.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]  # its SuperExec has one task, so it need not ask often
        write_text(
            home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.reach}:{port}"\n'
            f"root-certificates = {json.dumps(str((keys / 'ca.crt').resolve()))}\n")
        self.process: Process | None = None

    def start(self) -> None:
        """Start it and wait until it listens. It stores nothing on disk, but after a restart it knows the same
        nodes."""
        check_version()
        reach = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        if listening(reach, self.port):
            raise InputError(f"--port: another program already listens on {reach}:{self.port}; choose another port")
        self.process = Process("the SuperLink", [
            sys.executable, "-m", "fedgap.deploy.superlink", str(self.most_bytes), str(self.keys),
            "--host", self.host, "--port", str(self.port)], self.logs / "superlink.log", self.environ)
        wait_until(lambda: listening(reach, self.port), 90.0, "the SuperLink did not listen", self.process)

    def submit(self, app: Path, experiment: Path, out: Path, nodes: int, patience: Patience,
               profile: bool = False) -> str:
        """Start a run of the app; returns its id."""
        settings = {"experiment": str(experiment.resolve()), "folder": str(out.resolve()), "nodes": nodes,
                    "keys": str(self.keys.resolve()), "round-timeout": patience.round_s,
                    "enrol-timeout": patience.enrol_s, "min-clients": str(patience.quorum),
                    "profile": profile}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        return str(flwr(["run", str(app), CONNECTION, "--run-config", text], self.environ)["run-id"])

    def stop(self) -> None:
        """Stop it and its server app."""
        if self.process is not None:
            self.process.stop()


class NodeProcesses:
    """A node on this machine: SuperNode, SuperExec and resident worker, in a private folder."""

    def __init__(self, folder: Path, *, superlink: str, ca: Path, key: Path | None, warm: bool = True,
                 poll_s: float = 0.2) -> None:
        """``folder`` holds the node's file, ``node.yaml`` or ``node.json``.

        With ``warm`` False, Flower's own SuperNode and SuperExec are used, with their long polls and a new process for
        every message."""
        self.folder, self.superlink, self.ca, self.key = private_folder(folder), superlink, ca, key
        self.warm, self.poll_s = warm, poll_s
        self.environ = environment(private_folder(folder / "home"))
        if not warm:
            del self.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
        self.processes: list[Process] = []

    def start(self) -> None:
        """Start all three processes, without waiting for the SuperLink."""
        if self.warm:
            check_version()
        (self.folder / SOCKET).unlink(missing_ok=True)
        python, folder = sys.executable, self.folder
        self.processes = [Process("the worker", [python, "-m", "fedgap.deploy.node_worker", str(folder)],
                                  folder / "worker.log", self.environ)]
        self.start_supernode()

    def start_supernode(self) -> None:
        """Start the SuperNode, and the process that runs its client apps."""
        python, folder, port = sys.executable, self.folder, free_port()
        options = ["--root-certificates", str(self.ca), "--superlink", self.superlink, "--port", str(port),
                   "--node-config", f"folder={json.dumps(str(folder))}"]
        if self.key is not None:
            options += ["--auth-supernode-private-key", str(self.key)]
        if not self.warm:
            plain = str(Path(python).parent / "flower-supernode")
            self.processes.append(Process("the SuperNode", [plain, *options], folder / "supernode.log", self.environ))
            return
        secret = folder / "superexec.secret"
        if not secret.is_file():
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(secrets.token_bytes(48))
        options += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        supernode = Process("the SuperNode", [python, "-m", "fedgap.deploy.supernode", str(self.poll_s), *options],
                            folder / "supernode.log", self.environ)
        executor = Process("the SuperExec", [python, "-m", "fedgap.deploy.executor", f"127.0.0.1:{port}", str(secret),
                                             str(supernode.pid)], folder / "executor.log", self.environ)
        self.processes += [supernode, executor]

    def revive(self) -> str:
        """Start the SuperNode again if it has ended; returns its last message, or "" if it is running.

        A SuperLink refuses the key of a node that it considers connected, which it does for about a minute after a node
        was killed."""
        if all(process.alive() for process in self.processes[1:]):
            return ""
        said = last_words(self.processes[1].log)
        for process in self.processes[1:]:
            process.stop()
        del self.processes[1:]
        self.start_supernode()
        return said

    def kill(self) -> None:
        """Send SIGKILL to all processes of the node, as if the machine lost power."""
        for process in self.processes:
            process.kill()

    def stop(self) -> None:
        """Stop all processes of the node."""
        for process in reversed(self.processes):
            process.stop()


def watch(superlink: SuperLink, out: Path, submit: Callable[[], str],
          on_events: Callable[[list[Event]], None] | None = None, most_restarts: int = 5,
          on_wait: Callable[[str], None] | None = None) -> Run:
    """Wait for the end of the run; restart a SuperLink that has died, and submit a new run if the server app has died.

    The session continues from its checkpoint. Raises a DeployError after ``most_restarts`` restarts in a row without a
    new round. ``on_wait`` is called once each time the server waits for nodes to return."""
    for name in (LOCK, FAILED, WAITING):
        (out / name).unlink(missing_ok=True)
    submit()
    waits = ""
    run, seen, restarts, submitted = Run(out), 0, 0, time.monotonic()
    while not run.finished:
        time.sleep(0.2)
        seen_before = seen
        if (out / "rounds.jsonl").is_file():
            history = read_rounds(out / "rounds.jsonl")
            if len(history) > seen and on_events is not None:
                on_events(history[seen:])
            seen = max(seen, len(history))
        if seen > seen_before:
            restarts = 0
        if (out / FAILED).is_file():
            raise _failure((out / FAILED).read_bytes())
        waits_before, waits = waits, _waits(out)
        if waits and waits != waits_before and on_wait is not None:
            on_wait(waits)
        assert superlink.process is not None
        dead = not superlink.process.alive()
        if not dead and not _server_died(out, since=submitted):
            continue
        if run.finished:
            break
        restarts += 1
        if restarts > most_restarts:
            raise DeployError(f"the server died {restarts} times without finishing a round (see {superlink.logs})")
        if dead:
            superlink.process.kill()
            superlink.start()
        submitted = time.monotonic()
        try:
            submit()
        except DeployError:
            if restarts == most_restarts:
                raise  # before that, the next turn of the loop tries again
    (out / LOCK).unlink(missing_ok=True)
    return run


def _server_died(out: Path, since: float) -> bool:
    """Whether the server app that held the folder's lock has ended, or none has started within four minutes.

    If it ended because of a disk error, the reason is in the lock file and is raised."""
    path = out / LOCK
    if not path.is_file():
        return time.monotonic() - since > 240.0
    with open(path, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        left = path.read_bytes()
        path.unlink()
    if left.startswith(b"{"):
        raise _failure(left)
    return True


def _waits(out: Path) -> str:
    """What the server is waiting for, or "" if it is not waiting."""
    try:
        return str(json.loads((out / WAITING).read_bytes())["what"])
    except OSError:
        return ""


def _failure(left: bytes) -> FedgapError:
    said = json.loads(left)
    kind = {2: InputError, 3: InfeasibleError, 4: RunFailedError}.get(said["exit_code"], DeployError)
    return kind(said["error"])


def local_superlink(folder: Path, nodes: Sequence[str], most_bytes: int) -> tuple[SuperLink, list[Path]]:
    """A SuperLink on the loopback interface, with new keys for itself and these nodes; also returns the nodes' private
    keys."""
    from fedgap.deploy.keys import make_certificates, make_node_key

    keys = private_folder(folder / "keys")
    make_certificates(keys, ["127.0.0.1"])
    private = [make_node_key(keys, name)[0] for name in nodes]
    return SuperLink(folder, host="127.0.0.1", port=free_port(), keys=keys, most_bytes=most_bytes), private


def forget_secrets(folder: Path) -> None:
    """Remove the keys and sockets of a finished deployment; its logs stay."""
    for name in ("keys", "home", "app"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for node in folder.glob("node-*"):
        logs = folder / "logs" / node.name
        logs.mkdir(parents=True, exist_ok=True)
        for log in node.glob("*.log"):
            shutil.move(log, logs / log.name)
        shutil.rmtree(node, ignore_errors=True)
