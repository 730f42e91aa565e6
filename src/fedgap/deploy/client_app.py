"""The Flower client app: it passes every message to the node's worker process and sends the worker's answer back.

It imports neither torch nor numpy, so that a message costs only a socket round trip.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgap.deploy.packet import PACKET, RECORD
from fedgap.deploy.worker_socket import ask

app = ClientApp()
"""The object that the app's ``pyproject.toml`` names."""


def _handle(message: Message, context: Context) -> Message:
    folder = context.node_config.get("folder")
    if folder is None:  # a simulation: all virtual nodes of a run share a worker
        client = context.node_config["partition-id"]
        node = {"experiment": str(context.run_config["experiment"]), "client": client}
        where = Path(tempfile.gettempdir()) / f"fedgap-{os.getuid()}-{context.run_id}"
    else:
        node, where = {}, Path(str(folder))
    left = message.metadata.created_at + message.metadata.ttl - time.time()
    packet = message.content[RECORD][PACKET]
    if not isinstance(packet, bytes):
        raise TypeError(f"the packet must be bytes; got {type(packet).__name__}")
    answer = ask(where, node, packet, max(1.0, left), passing=folder is None)
    return Message(RecordDict({RECORD: ConfigRecord({PACKET: answer})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a ``round`` request."""
    return _handle(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer all other requests, such as enrolment."""
    return _handle(message, context)
