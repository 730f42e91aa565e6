"""What a deployed round costs beyond the slowest client's own work, and the bytes that cross the wire.

    python benchmarks/deploy_overhead.py [--nodes 2 4] [--rounds 12] [--out FILE]

For each number of nodes, rounds are run in three ways, one after the other, on the loopback interface with TLS and node
keys:

- ``ordinary``: Flower's defaults and an app as Flower's own examples are (``peers/flower_app``), whose client imports
  torch in a new process for every message;
- ``plain``: the same processes and polls (3 s, 1 s, 0.5 s), but fedgap's thin client app and resident worker;
- ``warm``: what ``fedgap deploy`` starts.

Bytes are counted by a relay between the nodes and the SuperLink of the ``warm`` runs, and of three more with larger
models: all of TCP's payload, so TLS, HTTP, polls and heartbeats count too. A round ends with its last upload; what
nodes sent in it is explained by least squares as

    a · (1 − λ)H/8  +  b · messages  +  c · nodes · seconds,

with the minutes before each run, in which nodes wait and nothing happens, as rows without payload and messages.
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
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedgap.config import Experiment
from fedgap.deploy.child_processes import flwr
from fedgap.deploy.flower_processes import CONNECTION
from fedgap.deploy.local_deployment import Local, local
from fedgap.deploy.transport import Patience
from fedgap.learning.codec import HEADER_BYTES

APP = Path(__file__).parent / "peers" / "flower_app"
KEYS = ["engine.threads=1", "engine.kind=loop", "evaluate_every=1000", "scheme=all_clients"]
LENET_WEIGHTS = 44_426
WIDTHS = (128, 512, 1024)
"""Widths of the hidden layer of the larger models: perceptrons with 0.1, 0.4 and 0.8 million weights."""
WARM_UP = 2
"""Number of rounds at the start of a run that are not counted, because everything is being loaded."""
IDLE_S = 20.0
"""Seconds for which the idle federation is observed before a run."""
Row = dict[str, float]


class Relay:
    """Passes TCP connections on and counts the bytes in both directions, by request of a node."""

    def __init__(self, port: int) -> None:
        self.target, self.down = port, 0
        self.requests: list[list[float]] = []
        """Start (monotonic seconds) and bytes of each request; a connection's first bytes are TLS's handshake."""
        self._lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def between(self, begin: float, end: float) -> float:
        """Bytes of the requests that began in [begin, end)."""
        return sum(size for at, size in self.requests if begin <= at < end)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            request: list[list[float]] = []  # the connection's open request; none once its answer has begun
            threading.Thread(target=self._pump, args=(near, far, request, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, request, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, request: list[list[float]], up: bool) -> None:
        try:
            while data := source.recv(2**16):
                with self._lock:
                    if not up:
                        self.down += len(data)
                        request.clear()
                    elif request:
                        request[0][1] += len(data)
                    else:
                        request.append([time.monotonic(), len(data)])
                        self.requests.append(request[0])
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


# --- bytes -----------------------------------------------------------------------------------------------------------


def rows_of(relay: Relay, idle: tuple[float, float], history: list[dict[str, Any]], nodes: int) -> list[Row]:
    """Rows for the fit, from the time before the run and from each round except the first: payload, messages, node
    seconds, bytes sent.

    Every node uploads in every round, so the last upload ends the round. A request with more bytes than half of the
    smallest payload is an upload; all others have a few kB."""
    smallest = min(b for event in history for b in event["client_uploaded_bytes"])
    uploads = sorted(at for at, size in relay.requests if size > smallest / 2)
    if len(uploads) != nodes * len(history):
        raise SystemExit(f"{len(uploads)} uploads were seen, not {nodes * len(history)}; the machine is too busy")
    ends = uploads[nodes - 1::nodes]
    rows = [{"modelled": 0.0, "payload": 0.0, "messages": 0.0, "node_s": nodes * (idle[1] - idle[0]),
             "wire": relay.between(*idle)}]
    for event, begin, end in zip(history[1:], ends, ends[1:], strict=False):
        rows.append({"modelled": event["uploaded_bits"] / 8, "payload": event["uploaded_bytes"], "messages": nodes,
                     "node_s": nodes * (end - begin), "wire": relay.between(begin + 1e-9, end + 1e-9)})
    return rows


def fitted(rows: Sequence[Row]) -> dict[str, Any]:
    """The coefficients a, b and c by least squares with 95 % intervals, and how far the bytes of a round are from the
    fit."""
    names = ("modelled", "messages", "node_s")
    x = np.array([[row[name] for name in names] for row in rows])
    y = np.array([row["wire"] for row in rows])
    found, *_ = np.linalg.lstsq(x, y, rcond=None)
    rest = y - x @ found
    freedom = len(rows) - len(names)
    half = (stats.t.ppf(0.975, freedom) * np.sqrt(rest @ rest / freedom * np.diag(np.linalg.inv(x.T @ x))))
    payload = x[:, 0] > 0
    beyond = (y - x[:, 1:] @ found[1:])[payload] / x[payload, 0]
    sizes = np.unique(x[payload, 0])
    ratios = np.array([y[x[:, 0] == size].mean() / size for size in sizes])
    return {"factor": round(found[0], 5), "factor_half": round(half[0], 5),
            "message_bytes": round(found[1]), "message_bytes_half": round(half[1]),
            "second_bytes": round(found[2]), "second_bytes_half": round(half[2]),
            "rounds": int(payload.sum()), "rounds_within_5_percent": int((beyond <= 1.05).sum()),
            "largest_factor_of_a_round": round(float(beyond.max()), 5),
            "payload_over_modelled": round(sum(r["payload"] for r in rows) / x[:, 0].sum(), 5),
            "header_bytes": HEADER_BYTES,
            "wire_over_modelled": {"least_payload": round(float(ratios[np.argmin(sizes)]), 4),
                                   "most_payload": round(float(ratios[np.argmax(sizes)]), 4)}}


# --- runs ------------------------------------------------------------------------------------------------------------


def experiment(rounds: int, width: int | None) -> Experiment:
    """An experiment with LeNet-5, or with a perceptron of this width; its budgets make all clients take part and
    prune."""
    weights = LENET_WEIGHTS if width is None else 795 * width + 10
    model = ["model.name=lenet5"] if width is None else ["model.name=mlp", f"model.arguments.hidden=[{width}]"]
    scale = 0.8 * rounds * weights / LENET_WEIGHTS
    return Experiment.load("embedded", [
        *KEYS, *model, f"scenario.model.gradient_bits={32 * weights}", f"rounds={rounds}",
        f"budget.energy_j={0.4 * scale}", f"budget.delay_s={0.6 * scale}"])


def measure(mode: str, nodes: int, rounds: int, width: int | None = None) -> tuple[dict[str, Any], list[Row]]:
    """Run one deployment; returns the overhead of its rounds, and the rows of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        relays: list[Relay] = []

        def through(port: int) -> int:
            relays.append(Relay(port))
            return int(relays[0].port)

        with local(experiment(rounds, width), nodes, Path(folder) / "run", patience=Patience(180.0, 600.0),
                   warm=mode == "warm", through=through) as deployment:
            relay = relays[0]
            while not all("SuperNode ID" in (n.folder / "supernode.log").read_text() for n in deployment.nodes):
                time.sleep(0.5)
            time.sleep(5.0)
            began = time.monotonic()
            time.sleep(IDLE_S)
            idle = (began, time.monotonic())
            history = ordinary(deployment, rounds) if mode == "ordinary" else deployment.run().history
            rows = [] if mode == "ordinary" else rows_of(relay, idle, history, nodes)
    counted = history[WARM_UP:]
    own = [max(s for s in event["client_measured_s"] if s is not None) for event in counted]
    overhead = [event["measured_s"] - seconds for event, seconds in zip(counted, own, strict=True)]
    low, median, high = statistics.quantiles(overhead, n=4)
    return {"mode": mode, "nodes": nodes, "rounds": len(counted), "overhead_s_median": round(median, 3),
            "overhead_s_quartiles": [round(low, 3), round(high, 3)],
            "round_s_median": round(statistics.median(event["measured_s"] for event in counted), 3),
            "client_s_median": round(statistics.median(own), 4)}, rows


def ordinary(deployment: Local, rounds: int) -> list[dict[str, Any]]:
    """Run the ordinary app on the deployment's SuperLink and nodes; returns its rounds."""
    out, nodes = deployment.out.resolve() / "ordinary.jsonl", len(deployment.nodes)
    flwr(["run", str(APP), CONNECTION, "--run-config", f'rounds={rounds} nodes={nodes} out="{out}"'],
         deployment.superlink.environ)
    lines: list[str] = []
    deadline = time.monotonic() + 120.0 + 60.0 * rounds
    while len(lines) < rounds:
        time.sleep(1.0)
        if time.monotonic() > deadline:
            raise SystemExit(f"the ordinary app did not finish; see {deployment.superlink.logs}")
        lines = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=12, help="of each run, the first two of which are not counted")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "deploy_overhead.json")
    options = parser.parse_args()
    if options.rounds < WARM_UP + 2:
        parser.error(f"--rounds: at least {WARM_UP + 2}")
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "flwr": metadata.version("flwr"),
               "load_before": round(os.getloadavg()[0], 1)}
    print(json.dumps(machine), flush=True)
    runs, rows = [], []
    for nodes in options.nodes:
        for mode in ("ordinary", "plain", "warm"):
            found, sent = measure(mode, nodes, options.rounds)
            runs.append(found)
            rows += sent if mode == "warm" else []
            if mode == "plain":
                found["idle_bytes_per_node_and_s"] = round(sent[0]["wire"] / sent[0]["node_s"])
            print(json.dumps(found), flush=True)
    for width in WIDTHS:
        rows += measure("warm", options.nodes[0], options.rounds, width)[1]
        print(json.dumps(rows[-1]), flush=True)
    document = {"machine": machine, "runs": runs, "wire": {"fit": fitted(rows), "rows": rows}}
    print(json.dumps(document["wire"]["fit"]), flush=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
