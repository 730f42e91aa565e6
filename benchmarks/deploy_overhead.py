"""What a deployed round costs beyond the slowest client's own work, and the bytes that cross the wire.

    python benchmarks/deploy_overhead.py [--nodes 2 4] [--rounds 10] [--modes plain warm] [--out FILE]

``plain``: Flower's own SuperNode and SuperExec with their defaults (polls of 1 s, 0.5 s and 3 s, and a new Python for
every message), but with this project's thin client app and resident worker, so already without the import of torch.
``warm``: what ``fedgap deploy`` starts. All on the loopback interface, with TLS and node keys, one after the other.

Bytes are counted by a relay between the nodes and the SuperLink: all of TCP's payload, so TLS, HTTP, polls and
heartbeats count too. A node's connections carry one request after the other, so the relay sees where a request begins,
and sorts them by what they carry:

- an *upload* has more bytes than half of the smallest payload: wire = a·payload + constant, a fitted over all uploads;
- all others are small: the rest of each message (Flower pulls, confirms and pushes it in nine requests),
  polls and heartbeats. An idle federation, watched before the run, gives the polls of a node and second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.config import Experiment
from fedgap.deploy.flower import Timeouts
from fedgap.deploy.local import local
from fedgap.learning.codec import HEADER_BYTES

KEYS = ["engine.threads=1", "engine.kind=loop", "evaluate_every=1000", "scheme=all_clients", "model.name=lenet5"]
IDLE_S = 20.0
"""How long the federation is watched before the run."""
REQUESTS = 9
"""Of one message and its answer: pull it, its three objects, confirm; push the answer, its three objects."""


class Relay:
    """Passes TCP connections on and counts what goes each way, from the nodes' side, by request."""

    def __init__(self, port: int) -> None:
        self.target, self.down, self.connections = port, 0, 0
        self.requests: list[int] = []
        """Bytes sent up, by request; a connection's first ones are TLS's handshake."""
        self._lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def up(self) -> int:
        """All bytes from the nodes."""
        return sum(self.requests)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.connections += 1
            last: list[int | None] = [None]  # the connection's open request; None once its answer has begun
            threading.Thread(target=self._pump, args=(near, far, last, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, last, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, last: list[int | None], up: bool) -> None:
        try:
            while data := source.recv(2**16):
                with self._lock:
                    if not up:
                        self.down, last[0] = self.down + len(data), None
                    elif last[0] is None:
                        last[0] = len(self.requests)
                        self.requests.append(len(data))
                    else:
                        self.requests[last[0]] += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def on_the_wire(relay: Relay, idle: list[int], idle_s: float, history: list[dict[str, Any]], nodes: int,
                seconds: float) -> dict[str, object]:
    """What the bytes from the nodes are: uploads, the rest of their messages, polls."""
    payload = sorted(b for event in history for b in event["client_uploaded_bytes"] if b)
    sizes = np.array(sorted(relay.requests))
    uploads, small = sizes[sizes > payload[0] / 2], sizes[sizes <= payload[0] / 2]
    modelled = sum(e["uploaded_bits"] for e in history) / 8
    messages = sum(len(e["clients"]) for e in history)
    found: dict[str, object] = {
        "payload_bytes": sum(payload), "modelled_bytes": round(modelled), "header_bytes": HEADER_BYTES,
        "wire_up_bytes": relay.up, "wire_down_bytes": relay.down,
        "payload_down_bytes": sum(e["downloaded_bytes"] for e in history), "connections": relay.connections,
        "uploads": len(uploads), "upload_wire_bytes": int(uploads.sum()),
        "upload_wire_over_modelled": round(float(uploads.sum()) / modelled, 5),
        "small_requests": len(small), "small_wire_bytes": int(small.sum()),
        "small_request_bytes_median": float(np.median(small)),
        "polls_per_node_and_s": round(len(idle) / idle_s / nodes, 3),
        "poll_bytes_per_node_and_s": round(sum(idle) / idle_s / nodes),
        "other_bytes_per_message": round((REQUESTS - 1) * float(np.median(small))), "messages": messages,
        "seconds": round(seconds, 1)}
    if len(uploads) == len(payload) and payload[0] < payload[-1]:
        slope, constant = np.polyfit(payload, uploads, 1)
        found |= {"upload_slope": round(float(slope), 5), "upload_constant_bytes": round(float(constant))}
    return found


def measure(mode: str, nodes: int, rounds: int) -> dict[str, object]:
    """One deployment; medians over its rounds but the first two, in which everything is loaded."""
    keys = [*KEYS, f"rounds={rounds}", f"budget.energy_j={0.4 * rounds}", f"budget.delay_s={0.6 * rounds}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        relays: list[Relay] = []

        def through(port: int) -> int:
            relays.append(Relay(port))
            return relays[0].port

        with local(Experiment.load("embedded", keys), nodes, out, timeouts=Timeouts(180.0, 600.0),
                   warm=mode == "warm", through=through) as deployment:
            relay = relays[0]
            while len(relay.requests) < 6 * nodes:  # all have come
                time.sleep(0.5)
            seen, began = len(relay.requests), time.monotonic()
            time.sleep(IDLE_S)
            idle, idle_s = relay.requests[seen:], time.monotonic() - began
            run = deployment.run()
            whole = run.history
            wire = on_the_wire(relay, idle, idle_s, whole, nodes, time.monotonic() - began)
    history = whole[2:]
    overhead = sorted(event["overhead_s"] for event in history)
    quarter = statistics.quantiles(overhead, n=4) if len(overhead) > 1 else [overhead[0]] * 3
    return {"mode": mode, "nodes": nodes, "rounds": len(history), "overhead_s_median": round(quarter[1], 3),
            "overhead_s_quartiles": [round(quarter[0], 3), round(quarter[2], 3)],
            "round_s_median": round(statistics.median(e["measured_s"] for e in history), 3),
            "client_s_median": round(statistics.median(s for e in history for s in e["client_measured_s"] if s), 4),
            "payload_over_modelled": round(sum(e["uploaded_bytes"] for e in whole)
                                           / (sum(e["uploaded_bits"] for e in whole) / 8), 5), "wire": wire}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", nargs="+", default=["plain", "warm"], choices=["plain", "warm"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "deploy_overhead.json")
    options = parser.parse_args()
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "flwr": metadata.version("flwr"),
               "load_before": round(os.getloadavg()[0], 1)}
    print(json.dumps(machine))
    runs = []
    for nodes in options.nodes:
        for mode in options.modes:
            found = measure(mode, nodes, options.rounds)
            runs.append({**found, "load": round(os.getloadavg()[0], 1)})
            print(json.dumps(runs[-1]), flush=True)
            options.out.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
