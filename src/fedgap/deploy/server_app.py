"""The Flower server app: it runs a :class:`~fedgap.deploy.session.Session` over Flower's grid."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedgap.config import Experiment
from fedgap.deploy.child_processes import PRIVATE
from fedgap.deploy.flower_patches import pull_for
from fedgap.deploy.flower_processes import FAILED, LOCK
from fedgap.deploy.keys import node_id, read_public_keys
from fedgap.deploy.packet import PACKET, RECORD, Packet, one_line
from fedgap.deploy.session import Session
from fedgap.deploy.transport import Answer, Patience, Quorum
from fedgap.errors import FedgapError, InputError
from fedgap.files import disk_error, write_json
from fedgap.running.events import Event
from fedgap.running.job import Job
from fedgap.running.live_progress import describe, describe_news

LEAST_PULL_S = 1.0
RESERVED_BYTES = 2000
"""Length of the lock file. If the disk is full, the reason for a failure is written into these existing bytes."""
LOG = logging.getLogger("flwr")

app = ServerApp()
"""The object that the app's ``pyproject.toml`` names."""


class GridTransport:
    """Sends packets as Flower messages: one ConfigRecord with one entry of bytes."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self._until = grid, 0.0
        pull_for(lambda: max(LEAST_PULL_S, self._until - time.monotonic()))  # until the last messages expire

    def online(self) -> set[int]:
        """The SuperNodes that the SuperLink considers connected."""
        return set(self.grid.get_node_ids())

    def send(self, packets: dict[int, Packet], ttl_s: float) -> dict[int, str]:
        """Push one message per node. It expires with the round, so that no node works on a past round."""
        if not packets:
            return {}
        if any(packet.fields["kind"] != "hello" for packet in packets.values()):
            self._until = time.monotonic() + ttl_s
        nodes = list(packets)
        messages = [
            Message(RecordDict({RECORD: ConfigRecord({PACKET: packets[node].to_bytes()})}), dst_node_id=node,
                    message_type=MessageType.TRAIN if packets[node].fields["kind"] == "round" else MessageType.QUERY,
                    group_id=str(packets[node].fields.get("round", "")), ttl=ttl_s)
            for node in nodes]
        ids = list(self.grid.push_messages(messages))
        return {node: ticket for node, ticket in zip(nodes, ids, strict=False) if ticket}

    def collect(self, tickets: Iterable[str]) -> list[Answer]:
        """The answers to these tickets. They are matched by the message that they reply to, because an error reply has
        the SuperLink's own node id.

        If Flower cannot read one of them, each is pulled alone, so that only its sender's answer is lost."""
        wanted = list(tickets)
        if not wanted:
            return []
        try:
            return [_answer(message) for message in self.grid.pull_messages(wanted)]
        except Exception as error:  # bytes of a hostile node may raise anything in Flower
            if isinstance(error, OSError) or type(error).__module__.startswith("httpx"):
                raise  # the SuperLink cannot be reached, which no node is to blame for
            if len(wanted) > 1:
                return [answer for ticket in wanted for answer in self.collect([ticket])]
            return [Answer(wanted[0], error=one_line(f"cannot be read by Flower: {type(error).__name__}: {error}"))]


def _answer(message: Message) -> Answer:
    ticket = message.metadata.reply_to_message_id
    if message.has_error():
        return Answer(ticket, error=_reason(message.error))
    record = message.content.config_records.get(RECORD)
    data = None if record is None else record.get(PACKET)
    return Answer(ticket, data if isinstance(data, bytes) else b"")


def _reason(error: Error) -> str:
    return " ".join(f"Flower error {error.code}: {error.reason or ''}".split())[:300]


def end_with_parent(poll_s: float = 1.0) -> None:
    """End this process when its parent ends: Flower's SuperExec, which ends with the SuperLink.

    Otherwise Flower would wait for the SuperLink for ever, and the run's folder would stay locked. Everything that is
    needed to resume is on disk. (The kernel's parent-death signal cannot be used, because it is sent when the *thread*
    that started this process ends.)"""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll_s)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, the experiment that the run's configuration names."""
    if Path(sys.argv[0]).name == "flwr-serverapp":  # in a simulation the app is a thread of another process
        end_with_parent()
    os.umask(PRIVATE)
    settings = context.run_config
    folder = Path(str(settings["folder"]))
    folder.mkdir(parents=True, exist_ok=True)
    failed = folder / FAILED
    failed.unlink(missing_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # held as long as this process lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.pwrite(lock, str(os.getpid()).ljust(RESERVED_BYTES).encode(), 0)

    def report(job: Job, event: Event) -> None:
        LOG.info("%s", describe(job, event))
        for news in describe_news(job, event):
            LOG.info("round %d: %s", event["round"], news)

    try:
        experiment = Experiment.load(str(settings["experiment"]))
        patience = Patience(float(settings["round-timeout"]), float(settings["enrol-timeout"]),
                            quorum=Quorum.parse(str(settings["min-clients"])))
        keys = str(settings.get("keys", ""))
        names = {node_id(pem): name for name, pem in read_public_keys(Path(keys)).items()} if keys else None
        Session(folder, experiment, GridTransport(grid), nodes=int(settings["nodes"]), patience=patience, names=names,
                profile=bool(settings["profile"]), on_event=report, on_wait=lambda what: LOG.warning("%s", what)).run()
    except FedgapError as error:
        write_json(failed, {"error": str(error), "exit_code": error.exit_code})
        raise
    except OSError as error:
        if problem := disk_error(error):
            said = json.dumps({"error": f"{problem}; free some space, then continue with the same command",
                               "exit_code": InputError.exit_code})
            os.pwrite(lock, said.ljust(RESERVED_BYTES).encode(), 0)
        raise
    finally:
        os.close(lock)
