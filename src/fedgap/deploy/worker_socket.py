"""Between a node's thin client app and its resident worker: a Unix socket in a private folder, length-prefixed frames.

Flower starts a process for every message; the worker stays, with torch imported, the data read and the model in memory.
This module imports neither.
"""

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
"""No frame may be longer: 4 GiB, a model of a thousand million weights."""
SOCKET = "worker.sock"
START_S = 120.0
"""How long a worker may take to listen: it imports torch first."""


class WorkerError(FedgapError):
    """The node's worker could not be reached or started, or did not answer in time."""


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send length and bytes in one call: the receiver of an empty frame's length may answer and hang up."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> bytes:
    """The next frame; one that is too long or breaks off is an error."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MOST_BYTES:
        raise WorkerError(f"a frame of {length} bytes was announced; at most {MOST_BYTES} are accepted")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = connection.recv(min(left, 2**20))
        if not part:
            raise WorkerError("the connection to the worker broke off")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def ask(folder: Path, node: dict[str, Any], request: bytes, timeout_s: float, *, passing: bool = False) -> bytes:
    """The worker's answer to a packet; the worker is started where none listens in ``folder``.

    ``node`` says which node is meant: its file, or which client of which experiment. A ``passing`` worker ends soon
    after the last question and takes its folder with it.
    """
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
    """A connection to the folder's worker, which is started if need be; one starter at a time."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise WorkerError(f"{folder}: must be this user's, with permissions 0700")
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
        os.chdir(folder)  # a socket's path may have 107 bytes only
        connection.connect(SOCKET)
        return connection
    except OSError:
        connection.close()
        return None
    finally:
        os.chdir(here)
