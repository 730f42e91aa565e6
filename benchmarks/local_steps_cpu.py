"""FedAvg on a CPU against other simulators: LeNet-5, 10 clients × 16 local steps × 32 samples, one thread.

    python benchmarks/local_steps_cpu.py [--peers] [--steps 16] [--passes 5] [--seconds 4] [--out results.json]

Contestants are processes that take turns, as in `engine_cpu.py`, and the median over passes counts. A pass compares
contestants within some seconds of each other, so ratios are medians over passes as well.

  engine     the engine without pruning, FedAvg as everybody below does it
  pruned     the engine, every client with a pruning ratio of its own: ranking, masks, memory of gradients, momentum
  loop       one client after the other with the plain module and torch.optim.SGD, and the average

With ``--peers`` pfl and FedLab run too, each in an environment of its own. Speeds are rounds in a second of processor
time, which a busy machine disturbs less than the wall clock; the wall clock's are written as well.
"""

import os
import statistics
import sys
from collections import defaultdict
from typing import Any

from engine_cpu import HERE, PEERS, Contestant, commands_of, options, report

RESULT = HERE / "results" / "local_steps_cpu.json"
OURS = ("engine", "pruned", "loop")
OTHERS = ("pfl", "fedlab")
MARK = 1.4
"""The target: how many times faster than pfl and FedLab the engine must be."""


def contest(name: str) -> None:
    """Run rounds of contestant ``name`` whenever the referee asks for them; the module docstring describes the
    contestants."""
    sys.path.insert(0, str(HERE / "peers"))
    import torch
    from common import BATCH, CLIENTS, RATE, STEPS, data, serve, stretch
    from torch.nn import functional

    from fedgap.learning.contract import LocalTraining, RoundInput, known
    from fedgap.learning.engine import Engine
    from fedgap.learning.importance import Importance
    from fedgap.learning.masks import ranks
    from fedgap.learning.models import build
    from fedgap.learning.server_optimisers import server_optimiser

    torch.set_num_threads(1)
    x, y = data()
    x, y = x.unflatten(1, (STEPS, BATCH)), y.unflatten(1, (STEPS, BATCH))
    module = build("lenet5", input_shape=(1, 28, 28), classes=10, seed=0)
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE)

    def loop() -> None:
        start = [parameter.detach().clone() for parameter in parameters]
        mean = [torch.zeros_like(parameter) for parameter in parameters]
        for images, labels in zip(x, y):
            with torch.no_grad():
                for parameter, value in zip(parameters, start):
                    parameter.copy_(value)
            for batch, targets in zip(images, labels):
                optimizer.zero_grad()
                functional.cross_entropy(module(batch), targets).backward()
                optimizer.step()
            with torch.no_grad():
                for total, parameter in zip(mean, parameters):
                    total += parameter / CLIENTS
        with torch.no_grad():
            for parameter, value in zip(parameters, mean):
                parameter.copy_(value)

    engine, importance, none = Engine(module), Importance(), torch.zeros(1, 0)
    local, rates = LocalTraining(STEPS), torch.tensor([RATE])
    optimiser = server_optimiser("sgd" if name == "engine" else "momentum")
    weights = engine.layout.weights(module)[None]
    state: dict[str, Any] = {"weights": weights, "round": 0, "server": optimiser.init(weights)}
    ratios = (0.0,) * CLIENTS if name == "engine" else tuple(0.05 + 0.05 * n for n in range(CLIENTS))
    unranked = torch.arange(engine.layout.size, dtype=torch.int32)[None]

    def ours() -> None:
        weights = state["weights"]
        ranking = ranks(importance.scores(weights, state["round"])) if ratios[0] else unranked
        given = RoundInput(weights, ranking, none, (0,) * CLIENTS, ratios, x, y)
        out = engine.updates(given, local, rates)
        covered = known(given, out)
        importance.observe(weights, out.gradient / STEPS, covered)
        weights, server = optimiser.step(weights, RATE * out.gradient, covered, 1.0, state["server"])
        state.update(weights=weights, server=server, round=state["round"] + 1)

    serve(stretch(loop if name == "loop" else ours))


def main() -> None:
    parser = options(__doc__, OURS, RESULT, passes=5, seconds=4.0)
    parser.add_argument("--steps", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.contest:
        contest(arguments.contest)
        return
    os.environ["LOCAL_STEPS"] = str(arguments.steps)
    commands, missing = commands_of("local_steps_cpu.py", OURS, OTHERS if arguments.peers else (), arguments.cache)
    contestants = {}
    for name, command in commands.items():
        try:
            contestants[name] = Contestant(name, command, 1)
        except (RuntimeError, OSError) as error:
            missing[name] = str(error)
    speeds: dict[str, list[float]] = defaultdict(list)
    by_the_wall: dict[str, list[float]] = defaultdict(list)
    for _ in range(arguments.passes):
        for name, contestant in contestants.items():
            answer = contestant.turn(arguments.seconds)
            speeds[name].append(answer["rounds"] / answer["processor_seconds"])
            by_the_wall[name].append(answer["rounds"] / answer["seconds"])
        print(", ".join(f"{name} {turns[-1]:.2f}" for name, turns in speeds.items()), flush=True)
    for contestant in contestants.values():
        contestant.end()
    ratios = {name: {other: statistics.median(a / b for a, b in zip(speeds[name], turns, strict=True))
                     for other, turns in speeds.items() if other not in OURS[:2]} for name in OURS[:2]}
    medians = {name: statistics.median(turns) for name, turns in speeds.items()}
    rows = [f"  {name:12s} {value:12.2f}" + "".join(f"{ratios[ours][name]:10.2f}x" for ours in ratios
                                                    if name in ratios[ours]) for name, value in medians.items()]
    report(arguments.out, {
        "steps": arguments.steps, "threads": 1, "versions": {name: PEERS[name] for name in OTHERS},
        "contestants": {name: contestant.about for name, contestant in contestants.items()}, "missing": missing,
        "rounds_per_processor_second": speeds, "rounds_per_second": by_the_wall, "medians": medians,
        "times_faster": ratios, "mark": MARK},
        f"{arguments.steps} local steps     rounds/s   engine is   pruned is   (mark {MARK:g})", rows)


if __name__ == "__main__":
    main()
