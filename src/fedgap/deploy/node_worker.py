"""The worker process of a node: ``python -m fedgap.deploy.node_worker FOLDER [--passing]``.

It listens on ``FOLDER/worker.sock`` (permissions 0600), answers packets one after the other, and ends after some time
without requests. The next message starts it again, and the server then sends it the state."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedgap.deploy.node import Node
from fedgap.deploy.node_data import LocalNodeData, NodeSettings
from fedgap.deploy.packet import Packet, PacketError
from fedgap.deploy.worker_socket import MOST_BYTES, SOCKET, WorkerError, receive_frame, send_frame
from fedgap.errors import FedgapError
from fedgap.files import write_json

IDLE_S = 900.0
"""A worker ends after this many seconds without requests."""
PASSING_IDLE_S = 30.0
"""The same in a simulation (``--passing``), in which nothing else ends the workers."""
LOG = logging.getLogger("fedgap.worker")


class NodeWorker:
    """Holds the nodes of its folder: one in a deployment, all virtual nodes in a simulation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nodes: dict[str, Node] = {}

    def answer(self, which: bytes, request: bytes) -> bytes:
        """The bytes of the answer. An error becomes an answer with the status ``refused`` and its reason."""
        try:
            return self.node(which).answer(Packet.from_bytes(request, MOST_BYTES)).to_bytes()
        except (FedgapError, OSError) as error:  # OSError: most often a full disk
            LOG.warning("refused: %s", error)
            return Packet({"status": "refused", "reason": str(error)}).to_bytes()

    def node(self, which: bytes) -> Node:
        """The node of a request, created when it is first used."""
        key = which.decode("utf-8", "replace")
        if key not in self._nodes:
            self._nodes[key] = Node(LocalNodeData(self._file(which)))
        return self._nodes[key]

    def _file(self, which: bytes) -> NodeSettings:
        try:
            spec: Any = json.loads(which)
        except ValueError:
            raise PacketError("the request does not say which node it is for, because its node settings are not "
                              "JSON") from None
        if isinstance(spec, dict) and "experiment" in spec:
            path = Path(tempfile.mkstemp(".json", "node-", self.folder)[1])
            write_json(path, spec)
            file = NodeSettings.load(path)
        else:
            file = NodeSettings.of(self.folder)
        torch.set_num_threads(file.node.threads)
        return file


def serve(folder: Path, worker: NodeWorker, idle_s: float = IDLE_S) -> None:
    """Answer requests until there has been none for ``idle_s`` seconds."""
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    before = os.umask(0o177)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(SOCKET)
        os.umask(before)
        listener.listen(64)
        listener.settimeout(idle_s)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return
            with connection:
                try:
                    connection.settimeout(60.0)
                    which, request = receive_frame(connection), receive_frame(connection)
                    send_frame(connection, worker.answer(which, request))
                except (OSError, WorkerError) as error:
                    LOG.warning("a connection failed: %s", error)


def main() -> None:
    """Run the worker of the node in the folder ``sys.argv[1]`` until it has been idle for a while.

    With ``--passing`` it ends sooner and removes the folder."""
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    folder = Path(sys.argv[1]).resolve()
    passing = "--passing" in sys.argv[2:]
    serve(folder, NodeWorker(folder), PASSING_IDLE_S if passing else IDLE_S)
    if passing:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
