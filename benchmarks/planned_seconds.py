"""Planned against measured seconds: a deployment of four nodes of different speeds, profiled before planning.

    python benchmarks/planned_seconds.py [--repeats 3] [--rounds 5] [--out benchmarks/results/planned_seconds.json]

Four nodes on this machine train LeNet-5 on the embedded digits over Flower, with whole channels pruned. Each has a
quota of one core's time, kept by stopping and continuing its process while it works for the server, as cpulimit does;
the quotas are so small that other work on the machine hardly matters to the nodes. (It does matter to the messages
between them, which the profile measures as well.) The delay budget is nine tenths of what the slowest node would need
unpruned, with a guess of what messages take, so that it must prune; where they take much longer, fewer rounds are
planned. The nodes profile themselves, the plan is made by that, and ``fedgap cost RUN`` compares. The mark: the planned
time of all rounds is within 15 % of the measured one. All of it is done several times.
"""

import argparse
import contextlib
import json
import mmap
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUOTAS = (0.015, 0.02, 0.03, 0.05)
"""The share of one core that each node may use."""
STEPS, MARK, MESSAGES_S = 32, 0.15, 3.0
"""Local steps; the largest allowed difference between planned and measured seconds; and the seconds of messages that
are assumed for the budget."""
ROUNDS_TIMED = 5
"""Number of rounds that are timed to choose the budget."""
RESULT = Path(__file__).resolve().parent / "results" / "planned_seconds.json"
WORKING = ("profile", "echo", "round")
"""Kinds of requests that a node answers within its quota; starting and enrolling are not limited."""


def keep_quota(pid: int, share: float, flag: mmap.mmap) -> None:
    """Stop and continue process ``pid`` so that it uses ``share`` of a core while the flag is set. Runs in a child
    process."""
    clock, working, began, before = (~pid << 3) | 2, False, 0.0, 0.0  # the system's name of that process's clock
    while os.getppid() == pid:
        if flag[0] and not working:
            began, before = time.monotonic(), time.clock_gettime(clock)
        working = bool(flag[0])
        beyond = (time.clock_gettime(clock) - before) / share - (time.monotonic() - began) if working else 0.0
        if beyond > 0.0:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(beyond)
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)


def work(share: float, folder: Path) -> None:
    """Run a node's worker process that may use only a share of a core."""
    flag = mmap.mmap(-1, 1)
    if (parent := os.getpid()) and os.fork() == 0:
        with contextlib.suppress(ProcessLookupError):
            keep_quota(parent, share, flag)
        os._exit(0)
    from fedgap.deploy.node_worker import NodeWorker, serve
    from fedgap.deploy.packet import Packet
    from fedgap.deploy.worker_socket import MOST_BYTES

    class SlowWorker(NodeWorker):
        def answer(self, which: bytes, request: bytes) -> bytes:
            flag[0] = Packet.from_bytes(request, MOST_BYTES).fields.get("kind") in WORKING
            try:
                return super().answer(which, request)
            finally:
                flag[0] = 0

    os.umask(0o077)
    serve(folder, SlowWorker(folder))


def step_cpu_s() -> float:
    """Processor seconds of one local step of the whole model: the smallest of several rounds, because other work on the
    machine only adds to it."""
    import torch

    from fedgap.learning.models import build
    from fedgap.learning.structure import Weights
    from fedgap.running.device_profile import client_round

    torch.set_num_threads(1)
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0)
    samples = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    steps = client_round(module, Weights(sum(p.numel() for p in module.parameters())), samples, 0.0, 32, STEPS)
    steps()
    seconds = []
    for _ in range(ROUNDS_TIMED):
        began = time.process_time()
        steps()
        seconds.append(time.process_time() - began)
    return min(seconds) / STEPS


def deploy_once(folder: Path, rounds: int, delay_s: float) -> dict[str, Any]:
    """Profile, plan and deploy once; returns the result of ``fedgap cost RUN``, with each node's ratio and the load."""
    from fedgap.config import Experiment
    from fedgap.deploy import local_deployment
    from fedgap.deploy.child_processes import Process
    from fedgap.deploy.flower_processes import NodeProcesses
    from fedgap.deploy.transport import Patience
    from fedgap.running.planned_measured import planned_and_measured

    class SlowNode(NodeProcesses):
        def start(self) -> None:
            share = QUOTAS[int(self.folder.name.rpartition("-")[2])]
            command = [sys.executable, __file__, "--worker", str(share), str(self.folder)]
            self.processes = [Process("the worker", command, self.folder / "worker.log", self.environ)]
            self.start_supernode()

    local_deployment.NodeProcesses = SlowNode  # type: ignore[misc]
    experiment = Experiment.load("embedded", [
        f"rounds={rounds}", f"budget.delay_s={delay_s}", "budget.energy_j=100000", f"learning.local_steps={STEPS}",
        "pruning.structure=channels", "scheme=all_clients", "engine.threads=1", "evaluate_every=1000"])
    load = os.getloadavg()[0]
    with local_deployment.local(experiment, len(QUOTAS), folder, patience=Patience(300.0, 900.0),
                                profile=True) as deployment:
        run = deployment.run()
    seen = planned_and_measured(folder).to_dict()
    profiles = json.loads((folder / "profiles.json").read_text())
    ratio = run.job.ratio[run.job.schedule].mean(axis=0)
    for n, node in enumerate(seen["nodes"]):
        node |= {"quota": QUOTAS[n], "pruning_ratio": float(ratio[n]),
                 "step_s": profiles[node["name"]]["steps"][0]["median"],
                 "latency_s": profiles[node["name"]]["figures"]["latency_s"]}
    seen["rounds"] = [{key: event[key] for key in ("delay_s", "measured_s", "overhead_s")} for event in run.history]
    return {**seen, "load_before": load, "load_after": os.getloadavg()[0], "delay_budget_s": delay_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(float(arguments.worker[0]), Path(arguments.worker[1]).resolve())
        return
    step = step_cpu_s()
    delay_s = arguments.rounds * (0.9 * STEPS * step / QUOTAS[0] + MESSAGES_S)
    print(f"a step takes {1e3 * step:.1f} ms of a core; the budget is {delay_s:.0f} s", flush=True)
    runs = []
    for number in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(deploy_once(Path(folder) / "run", arguments.rounds, delay_s))
        run = runs[-1]
        print(f"{number + 1}: planned {run['planned_s']:.1f} s, measured {run['measured_s']:.1f} s, ratio "
              f"{run['ratio']:.2f}, load {run['load_before']:.0f} to {run['load_after']:.0f}", flush=True)
        for node in run["nodes"]:
            print(f"   {node['name']:9s} quota {node['quota']:.3f}, λ = {node['pruning_ratio']:.2f}, computing planned "
                  f"{node['planned_s']:.1f} s, measured {node['measured_s']:.1f} s", flush=True)
        results = {"quotas": QUOTAS, "local_steps": STEPS, "rounds": arguments.rounds, "mark": MARK,
                   "within_mark": sum(abs(run["ratio"] - 1.0) <= MARK for run in runs), "repeats": len(runs),
                   "cores": os.cpu_count(), "python": platform.python_version(), "runs": runs}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
