"""The engine on a CPU against other simulators: LeNet-5, 10 clients × 32 samples, one step a round, in rounds a second.

    python benchmarks/engine_cpu.py [--peers] [--threads 1 2] [--passes 3] [--seconds 5] [--out results.json]

Contestants are processes that take turns: in each pass every one of them runs for ``--seconds`` while the others wait,
and the median over passes is reported. fedgap does whole rounds: ranking, masks, gradients, remembered gradients,
update.

  shared     the engine, all clients with one pruning ratio (they share one pruned model and one pass)
  distinct   the engine, every client with a ratio of its own
  fused      one plain forward and backward pass over the union batch of 320 samples, and the update: the reference
  loop       one client after the other with the plain module, and the average: what frameworks do

With ``--peers`` pfl, FedLab and Flower's simulation (Ray) run too, each installed at its pinned version into an
environment of its own under ``--cache``. The peers train without pruning; masks do not make dense arithmetic faster.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE / "results" / "engine_cpu.json"
OURS = ("shared", "distinct", "fused", "loop")
ALONE = ("flower",)  # its Ray processes are never quite idle, so it is there for its own turns only
PEERS = {"pfl": "pfl==0.6.0", "fedlab": "fedlab==1.3.0", "flower": "flwr[simulation]==1.41.0"}


# --- our contestants, each in its process -------------------------------------------------------------------------


def contest(name: str) -> None:
    """Run rounds of contestant ``name`` whenever the referee asks for them; the module docstring describes the
    contestants."""
    sys.path.insert(0, str(HERE / "peers"))
    import torch
    from common import CLIENTS, RATE, data, serve, stretch
    from torch.nn import functional

    from fedgap.learning.contract import RoundInput, known
    from fedgap.learning.engine import Engine
    from fedgap.learning.importance import Importance
    from fedgap.learning.masks import ranks
    from fedgap.learning.models import build

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    x, y = data()
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0)
    parameters = list(module.parameters())

    def fused() -> None:
        loss = functional.cross_entropy(module(x.flatten(0, 1)), y.flatten())
        apply(torch.autograd.grad(loss, parameters))

    def loop() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for images, labels in zip(x, y):
            loss = functional.cross_entropy(module(images), labels)
            for mean, own in zip(total, torch.autograd.grad(loss, parameters)):
                mean += own / CLIENTS
        apply(total)

    def apply(gradients: Any) -> None:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter -= RATE * gradient

    engine, importance, none = Engine(module), Importance(), torch.zeros(1, 0)
    state = {"weights": engine.layout.weights(module)[None], "round": 0}
    ratios = (0.3,) * CLIENTS if name == "shared" else tuple(0.05 + 0.05 * n for n in range(CLIENTS))

    def ours() -> None:
        weights = state["weights"]
        ranking = ranks(importance.scores(weights, state["round"]))
        given = RoundInput(weights, ranking, none, (0,) * CLIENTS, ratios, x, y)
        out = engine.gradients(given)
        importance.observe(weights, out.gradient, known(given, out))
        state.update(weights=weights - RATE * out.gradient, round=state["round"] + 1)

    serve(stretch({"fused": fused, "loop": loop}.get(name, ours)))


# --- the referee ------------------------------------------------------------------------------------------------------


class Contestant:
    """A benchmark process that runs only when it is told to."""

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        self.name, self.threads = name, threads
        environment = os.environ | {key: str(threads) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        environment["PYTHONPATH"] = str(HERE.parent / "src") if command[0] == sys.executable else ""
        self.process = subprocess.Popen(command, cwd=HERE / "peers", env=environment, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.about = self._answer()

    def rounds_per_second(self, seconds: float) -> float:
        """The rounds per second in one turn, by the wall clock."""
        answer = self.turn(seconds)
        return float(answer["rounds"] / answer["seconds"])

    def turn(self, seconds: float) -> dict[str, Any]:
        """One turn of this many seconds: the number of rounds, their wall-clock seconds, and their processor
        seconds."""
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise RuntimeError(f"{self.name} ended with code {self.process.wait()}")

    def end(self) -> None:
        """End the process by closing its input."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


def environment_of(name: str, cache: Path) -> str:
    """The Python interpreter of a peer's own virtual environment, which is created if it does not exist."""
    import torch

    home = cache / name
    python, stamp = home / "bin" / "python", home / ".installed"
    wanted = f"{PEERS[name]} torch=={torch.__version__.split('+')[0]}"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {wanted} into {home}", flush=True)
        venv.create(home, clear=True, with_pip=True)
        constraint = home / "constraint.txt"  # or a peer would bring a torch of its own
        constraint.write_text(wanted.split()[1] + "\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraint,
                        PEERS[name], "torch", "numpy"], check=True)
        stamp.write_text(wanted)
    return str(python)


def commands_of(script: str, ours: Sequence[str], peers: Sequence[str], cache: Path,
                ) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The command that starts each contestant of ``script``, and for peers that could not be installed the reason."""
    commands = {name: [sys.executable, str(HERE / script), "--contest", name] for name in ours}
    missing = {}
    for name in peers:
        try:
            commands[name] = [environment_of(name, cache), str(HERE / "peers" / f"{name}_rounds.py")]
        except (OSError, subprocess.CalledProcessError) as error:
            missing[name] = f"could not be installed: {error}"
    return commands, missing


def options(description: str, ours: Sequence[str], out: Path, *, passes: int, seconds: float,
            ) -> argparse.ArgumentParser:
    """The command-line options that both CPU benchmarks share."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--contest", choices=ours, help=argparse.SUPPRESS)
    parser.add_argument("--peers", action="store_true", help="install and run other simulators too")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fedgap" / "peers")
    parser.add_argument("--passes", type=int, default=passes)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def report(out: Path, results: dict[str, Any], head: str, rows: Sequence[str]) -> None:
    """Write the results together with the versions and the machine, and print a table."""
    about = {"model": "lenet5", "clients": 10, "batch": 32, "python": platform.python_version(),
             "machine": platform.processor() or platform.machine()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about | results, indent=1) + "\n")
    print("\n".join([head, *rows, *(f"  {name}: {why}" for name, why in results["missing"].items())]))


def main() -> None:
    parser = options(__doc__, OURS, RESULT, passes=3, seconds=5.0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    if arguments.contest:
        contest(arguments.contest)
        return
    commands, missing = commands_of("engine_cpu.py", OURS, tuple(PEERS) if arguments.peers else (), arguments.cache)
    figures: dict[str, dict[str, list[float]]] = {}
    about: dict[str, Any] = {}
    for threads in arguments.threads:
        turns: dict[str, list[float]] = defaultdict(list)
        waiting: dict[str, Contestant] = {}
        for turn in range(arguments.passes):
            for name, command in commands.items():
                if name in missing:
                    continue
                try:
                    contestant = waiting.pop(name, None) or Contestant(name, command, threads)
                    turns[name].append(contestant.rounds_per_second(arguments.seconds))
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    missing[name] = str(error)
                    continue
                about[name] = contestant.about
                if name in ALONE:
                    contestant.end()
                else:
                    waiting[name] = contestant
            print(f"{threads} threads, pass {turn + 1}: " + ", ".join(f"{n} {v[-1]:.1f}" for n, v in turns.items()),
                  flush=True)
        for contestant in waiting.values():
            contestant.end()
        figures[str(threads)] = dict(turns)
    middle = medians(figures)
    report(arguments.out, {"cores": os.cpu_count(), "versions": PEERS, "contestants": about, "missing": missing,
                           "rounds_per_second": figures, "medians": middle},
           "                    rounds/s   shared is   distinct is", table(middle))


def medians(figures: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {threads: {name: statistics.median(turns) for name, turns in by_name.items()}
            for threads, by_name in figures.items()}


def table(figures: dict[str, dict[str, float]]) -> list[str]:
    """Table rows: rounds per second, and how many times faster fedgap is than each contestant."""
    lines = []
    for threads, by_name in figures.items():
        lines.append(f"{threads} thread(s)")
        for name, value in by_name.items():
            shared, distinct = by_name["shared"] / value, by_name["distinct"] / value
            lines.append(f"  {name:12s} {value:12.1f} {shared:9.2f}x {distinct:11.2f}x")
    return lines


if __name__ == "__main__":
    main()
