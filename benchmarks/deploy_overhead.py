"""What a deployed round costs beyond the slowest client's own work, and the bytes that cross the wire.

    python benchmarks/deploy_overhead.py [--nodes 2 4] [--rounds 10] [--modes plain warm]

``plain``: Flower's own SuperNode and SuperExec with their defaults (polls of 1 s, 0.5 s and 3 s, and a new Python for
every message), but with this project's thin client app and resident worker, so already without the import of torch.
``warm``: what ``fedgap deploy`` starts. All on the loopback interface, with TLS and node keys, one after the other.

Bytes are counted by a relay between the nodes and the SuperLink: all of TCP's payload, so TLS, HTTP, polls and
heartbeats count too, beside the payload as the run's own log has it.
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
from pathlib import Path

from fedgap.config import Experiment
from fedgap.deploy.flower import Timeouts
from fedgap.deploy.local import local

KEYS = ["engine.threads=1", "engine.kind=loop", "evaluate_every=1000", "scheme=all_clients", "model.name=lenet5"]


class Relay:
    """Passes TCP connections on and counts what goes each way, from the nodes' side."""

    def __init__(self, port: int) -> None:
        self.target, self.up, self.down = port, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            threading.Thread(target=self._pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(2**16):
                setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


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
            run = deployment.run()
        whole = run.history
    history = whole[2:]
    overhead = sorted(event["overhead_s"] for event in history)
    quarter = statistics.quantiles(overhead, n=4) if len(overhead) > 1 else [overhead[0]] * 3
    payload = sum(e["uploaded_bytes"] for e in history)
    modelled = sum(e["uploaded_bits"] for e in history) / 8
    return {"mode": mode, "nodes": nodes, "rounds": len(history), "overhead_s_median": round(quarter[1], 3),
            "overhead_s_quartiles": [round(quarter[0], 3), round(quarter[2], 3)],
            "round_s_median": round(statistics.median(e["measured_s"] for e in history), 3),
            "client_s_median": round(statistics.median(s for e in history for s in e["client_measured_s"] if s), 4),
            "payload_over_modelled": round(payload / modelled, 5),
            "wire_up_bytes": relays[0].up, "wire_down_bytes": relays[0].down,
            "payload_up_bytes": sum(e["uploaded_bytes"] for e in whole),
            "payload_down_bytes": sum(e["downloaded_bytes"] for e in whole),
            "wire_up_over_modelled": round(relays[0].up / (sum(e["uploaded_bits"] for e in whole) / 8), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", nargs="+", default=["plain", "warm"], choices=["plain", "warm"])
    options = parser.parse_args()
    print(json.dumps({"cpus": os.cpu_count(), "platform": platform.platform(), "load": os.getloadavg()}))
    for nodes in options.nodes:
        for mode in options.modes:
            found = measure(mode, nodes, options.rounds)
            print(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
