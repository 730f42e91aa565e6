"""``fedgap deploy up --local N``: start a SuperLink and N nodes on this machine, run an experiment, and stop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedgap.config import Experiment
from fedgap.config.yaml_files import write_document
from fedgap.deploy.enrol import first_clients, most_request_bytes
from fedgap.deploy.flower_processes import (
    NodeProcesses,
    SuperLink,
    forget_secrets,
    local_superlink,
    watch,
    write_app,
)
from fedgap.deploy.keys import private_folder
from fedgap.deploy.transport import Patience
from fedgap.running.events import Event
from fedgap.running.run import Run


@dataclass
class Local:
    """A running deployment on this machine: its SuperLink, its nodes and its settings."""

    superlink: SuperLink
    nodes: list[NodeProcesses]
    experiment: Path
    app: Path
    out: Path
    patience: Patience
    profile: bool = False
    """Whether the nodes measure their speed before planning."""

    def submit(self) -> str:
        """Start a run, or continue one that was killed; returns its id."""
        return self.superlink.submit(self.app, self.experiment, self.out, len(self.nodes), self.patience, self.profile)

    def run(self, on_events: Callable[[list[Event]], None] | None = None,
            on_wait: Callable[[str], None] | None = None) -> Run:
        """Start the run, wait for its end, and return it."""
        return watch(self.superlink, self.out, self.submit, on_events, on_wait=on_wait)


@contextmanager
def local(experiment: Experiment, count: int, out: Path, *, patience: Patience | None = None,
          epsilon: float | None = None, warm: bool = True, profile: bool = False,
          through: Callable[[int], int] | None = None) -> Iterator[Local]:
    """Start a SuperLink and ``count`` nodes, each with its share of the experiment's data; stop them all at the end.

    ``epsilon`` adds noise to the nodes' label histograms. With ``profile`` they measure their speed before planning.
    ``warm`` False leaves Flower's own processes and polls unchanged. ``through``, used by tests, maps the SuperLink's
    port to another port of this machine that leads to it, which the nodes use instead."""
    chosen = first_clients(experiment, count)
    most_bytes = most_request_bytes(chosen)
    out.mkdir(parents=True, exist_ok=True)
    folder = private_folder(out / "deployment")
    forget_secrets(folder)  # of a killed deployment; with its keys, the SuperLink would think the nodes are connected
    file = chosen.save(folder / "experiment.yaml")
    superlink, node_keys = local_superlink(folder, [device["name"] for device in chosen.devices()], most_bytes)
    nodes: list[NodeProcesses] = []
    try:
        superlink.start()
        port = superlink.port if through is None else through(superlink.port)
        for n, key in enumerate(node_keys):
            node_folder = private_folder(folder / f"node-{n}")
            settings = {"experiment": str(file.resolve()), "client": n}
            write_document(settings if epsilon is None else {**settings, "epsilon": epsilon}, node_folder / "node.yaml")
            node = NodeProcesses(node_folder, superlink=f"127.0.0.1:{port}", ca=superlink.keys / "ca.crt",
                                 key=key, warm=warm)
            nodes.append(node)
            node.start()
        yield Local(superlink, nodes, file, write_app(folder / "app"), out, patience or Patience(), profile)
    finally:
        superlink.stop()  # first, so that the server does not train a round or two without its nodes
        for node in nodes:
            node.stop()
        forget_secrets(folder)
