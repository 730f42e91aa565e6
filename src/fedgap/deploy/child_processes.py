"""Child processes that end with their parent, and calls of Flower's command line."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgap.errors import FedgapError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
         "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment variables that keep Flower, and Ray in simulations, from sending telemetry and installing packages.
Without them a SuperLink calls ``uv sync``, which fails offline."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PRIVATE = 0o077
"""The umask of Flower's processes: only the owner can read what they write."""
TASK_POLL_S = "0.1"
"""Seconds between two requests of a SuperExec for tasks; Flower's default is one second."""


class DeployError(FedgapError):
    """A part of the deployment did not start, or stopped; the message names the part and its log."""


def environment(home: Path) -> dict[str, str]:
    """The environment variables of all processes of a deployment; Flower writes its files to ``home``."""
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": TASK_POLL_S,
            "PATH": scripts + os.pathsep + os.environ.get("PATH", ""), "PYTHONUNBUFFERED": "1"}


class Process:
    """A process group with a log file.

    On Linux it gets SIGTERM when the thread that started it ends, so start it in the main thread."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                             env=dict(environ), start_new_session=True, preexec_fn=die_with_parent,
                                             umask=PRIVATE)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the whole group, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, patience_s: float = 8.0) -> None:
        """Send SIGTERM to the group, and SIGKILL to the processes that are left after a while."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.kill()

    def must_live(self) -> None:
        """Raise a DeployError if the process has ended."""
        if not self.alive():
            raise DeployError(f"{self.name} ended with code {self._process.returncode}: {last_words(self.log)}")


def die_with_parent() -> None:
    """On Linux, make this process get SIGTERM when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def last_words(log: Path) -> str:
    """The last error in a log, or its last non-empty line, and the path of the log."""
    lines = [COLOUR.sub("", line).strip() for line in log.read_text(errors="replace").splitlines()[-40:]]
    errors = [n for n, line in enumerate(lines) if line.startswith("ERROR")]
    if errors:
        told = list(itertools.takewhile(bool, lines[errors[-1]:]))  # an error ends with an empty line
    else:
        told = [line for line in lines if line and not line.startswith("INFO")][-1:] or [x for x in lines if x][-1:]
    words = " ".join(" ".join(told).split())
    return f"{words[:300] or 'its log is empty'} (see {log})"


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(true: Callable[[], bool], seconds: float, what: str, process: Process) -> None:
    """Wait until ``true()`` holds, for at most this many seconds. The process must stay alive meanwhile; ``what``
    begins the error."""
    deadline = time.monotonic() + seconds
    while not true():
        process.must_live()
        if time.monotonic() > deadline:
            raise DeployError(f"{what} within {seconds:g} s: {last_words(process.log)}")
        time.sleep(0.05)


def listening(host: str, port: int) -> bool:
    """Whether a server accepts connections at this host and port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def flwr(arguments: Sequence[str], environ: Mapping[str, str], timeout_s: float = 300.0) -> dict[str, Any]:
    """Run a ``flwr`` command with ``--format json`` and return its answer, or raise an error with its message."""
    try:
        done = subprocess.run([str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"],
                              capture_output=True, text=True, env=dict(environ), timeout=timeout_s, check=False,
                              umask=PRIVATE)
    except subprocess.TimeoutExpired:
        raise DeployError(f"flwr {arguments[0]} gave no answer within {timeout_s:g} s; perhaps this machine is too "
                          "busy. The same command continues the run") from None
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success"):
        words = answer.get("error-message") or done.stderr or done.stdout
        raise DeployError(f"flwr {arguments[0]} failed: {' '.join(str(words).split())[:300]}")
    return answer
