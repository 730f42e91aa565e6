"""Deployments on real processes, for the tests: everything on the loopback interface, with TLS and node keys."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from fedgap.config import Experiment
from fedgap.deploy.local_deployment import local
from fedgap.deploy.transport import Patience, Quorum

QUICK = ("model.name=mlp", "data.train_samples=600", "data.test_samples=200", "engine.threads=1", "engine.kind=loop",
         "evaluate_every=2", "scheme=all_clients", "budget.energy_j=100", "budget.delay_s=100")


def experiment(*overrides):
    return Experiment.load("embedded", [*QUICK, *overrides])


@contextmanager
def deployed(out: Path, nodes, *overrides, round_s=60.0, enrol_s=180.0, quorum="1"):
    """A local deployment; its processes are gone afterwards, whatever happened."""
    patience = Patience(round_s, enrol_s, quorum=Quorum.parse(quorum))
    with local(experiment(*overrides), nodes, out, patience=patience) as deployment:
        pids = [p.pid for node in deployment.nodes for p in node.processes] + [deployment.superlink.process.pid]
        yield deployment
        pids += [p.pid for node in deployment.nodes for p in node.processes] + [deployment.superlink.process.pid]
    assert not [pid for pid in pids if group_lives(pid)], "processes were left behind"


def group_lives(pid):
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def at(actions, always=lambda: None):
    """For ``run``: does each action once so many rounds are done, in this thread, and something after every round."""
    left = dict(actions)

    def act(events):
        for rounds in sorted(left):
            if events[-1]["round"] + 1 >= rounds:
                left.pop(rounds)()
        always()

    return act


def said(log: Path, words):
    """How many times a log says so."""
    return log.read_text(errors="replace").count(words) if log.is_file() else 0


def wait_for(true, most_s=300.0):
    """Waits until it is so; whether it is."""
    deadline = time.monotonic() + most_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def server_pid(out: Path):
    return int((out / "server.lock").read_text())


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def news(run):
    return [(event["round"], item.get("client"), item["what"]) for event in run.history
            for item in event.get("news", [])]
