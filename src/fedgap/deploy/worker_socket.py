"""The connection between a node's thin client app and its resident worker: a Unix socket in a private folder, with
length-prefixed frames.

Flower starts a process for every message; the worker stays, with torch imported, the data read and the model in memory.
This module imports neither torch nor Flower."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fedgap.errors import FedgapError

_LENGTH = struct.Struct("<Q")
MOST_BYTES = 2**32
"""Maximum length of a frame in bytes: 4 GiB, enough for a model of a thousand million weights."""
SOCKET = "worker.sock"
START_S = 120.0
"""Maximum time in seconds until a new worker listens, because it imports torch first."""


class WorkerError(FedgapError):
    """The node's worker could not be reached or started, or did not answer in time."""


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send the length and the bytes in one call, because the receiver may answer and close as soon as it has an empty
    frame's length."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> bytes:
    """Receive the next frame. Raises a WorkerError if it is too long or incomplete."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MOST_BYTES:
        raise WorkerError(f"a frame must have at most {MOST_BYTES} bytes; {length} were announced")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = connection.recv(min(left, 2**20))
        if not part:
            raise WorkerError("the connection to the worker ended before the whole frame had arrived")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def ask(folder: Path, node: dict[str, Any], request: bytes, timeout_s: float, *, passing: bool = False) -> bytes:
    """Send a packet to the worker of ``folder`` and return its answer; the worker is started if none is listening.

    ``node`` says which node is meant: {} for the one whose file is in the folder, or a client of an experiment. A
    ``passing`` worker (in simulations) ends soon after the last request and removes its folder."""
    deadline = time.monotonic() + timeout_s
    with connect(folder, min(timeout_s, START_S), passing=passing) as connection:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            send_frame(connection, json.dumps(node).encode())
            send_frame(connection, request)
            return receive_frame(connection)
        except TimeoutError:
            raise WorkerError(f"the worker gave no answer within {timeout_s:.1f} s") from None
        except OSError as error:
            raise WorkerError(f"the worker cannot be reached ({error})") from None


def connect(folder: Path, timeout_s: float, *, passing: bool = False) -> socket.socket:
    """A connection to the worker of ``folder``, which is started if necessary; a lock ensures that only one process
    starts it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise WorkerError(f"{folder}: must belong to this user and have the permissions 0700")
    if (connection := _try(folder)) is not None:
        return connection
    deadline = time.monotonic() + timeout_s
    with open(folder / "worker.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (connection := _try(folder)) is not None:
            return connection
        process = _start_worker(folder, passing)
        while time.monotonic() < deadline:
            if (connection := _try(folder)) is not None:
                return connection
            if process.poll() is not None:
                raise WorkerError(f"the worker ended with code {process.returncode}; see {folder / 'worker.log'}")
            time.sleep(0.02)
    raise WorkerError(f"the worker did not listen within {timeout_s:.0f} s; see {folder / 'worker.log'}")


def _start_worker(folder: Path, passing: bool) -> subprocess.Popen[bytes]:
    """Start a worker in a separate session, which logs into the folder."""
    command = [sys.executable, "-m", "fedgap.deploy.node_worker", str(folder), *(["--passing"] if passing else [])]
    with open(folder / "worker.log", "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _try(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    here = os.getcwd()
    try:
        os.chdir(folder)  # the path of a socket may have at most 107 bytes
        connection.connect(SOCKET)
        return connection
    except OSError:
        connection.close()
        return None
    finally:
        os.chdir(here)
