"""Local steps on a GPU: are they right, and what do τ steps cost in rounds of one gradient.

    PYTHONPATH=src python benchmarks/local_steps_gpu.py [--out benchmarks/results/local_steps_gpu.json]

Needs torch (a CUDA build) and numpy only. A round is 10 clients × τ batches of 32 random samples, every client with a
pruned model of its own: weights, ranking, ratios, rates and batches go in, the mean of the clients' updates comes out.
Correctness first: every precision against the plain loop in float64. Then the time of a round of one gradient and of
rounds with local steps, in turns in one process, for one run and for six stacked. Times are medians over blocks of
rounds between CUDA events, inputs rotating among two sets. The marks: τ = 8 of ResNet-44 in bfloat16 costs at most 8.8
rounds of one gradient, τ = 16 of LeNet-5 in TF32 takes at most 3 ms. With $OUT set, the results go there as well.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine_gpu import by_turns, save
from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput
from fedgap.learning.engine import Engine
from fedgap.learning.masks import ranks
from fedgap.learning.models import Layout, build

CLIENTS, BATCH, RATE = 10, 32, 0.01
SHAPES = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32), "resnet44": (3, 32, 32)}
MOST_ROUNDS = {("resnet44", "bfloat16", 8): 8.8}
MOST_MS = {("lenet5", "tf32", 16): 3.0}
OPTIONS = LocalTraining(momentum=0.9, proximal=0.1, clip_norm=10.0)


def milliseconds_by_turns(functions: list[Callable[[], object]], calls: int, repeats: int) -> list[float]:
    """The median over ``repeats`` blocks of each function, in ms per call; the functions take turns."""
    return [statistics.median(block) for block in by_turns(functions, calls, repeats, warm=4)]


def case(name: str, steps: int, *, runs: int = 1, clients: int = CLIENTS, batch: int = BATCH, sets: int = 2,
         off_the_kink: bool = False) -> tuple[nn.Module, list[RoundInput], torch.Tensor]:
    """A model, ``sets`` random inputs of a round with ``steps`` batches, and rates; each client's pruning ratio is
    between 0.02 and 0.5."""
    module = build(name, input_shape=SHAPES[name], classes=10, seed=0)
    if off_the_kink:
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.constant_(layer.bias, 4.0)
    layout = Layout.of(module)
    generator = torch.Generator("cuda").manual_seed(0)
    weights = layout.weights(module).cuda() * (1 + 0.01 * torch.arange(runs, device="cuda")[:, None])
    buffers = layout.buffers(module).cuda().expand(runs, -1).contiguous()
    run = [j // clients for j in range(runs * clients)]
    ratios = [0.02 + 0.48 * (j % clients) / max(1, clients - 1) for j in range(runs * clients)]
    rounds = []
    for _ in range(sets):
        x = torch.randn(runs * clients, steps, batch, *SHAPES[name], device="cuda", generator=generator)
        y = torch.randint(10, (runs * clients, steps, batch), device="cuda", generator=generator)
        rounds.append(RoundInput(weights, ranks(weights.abs()), buffers, run, ratios, x, y))
    return module, rounds, torch.full((runs,), RATE, device="cuda")


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def correctness() -> list[dict[str, Any]]:
    """Relative distance of the mean update from the plain loop in float64, without and with all client options."""
    rows = []
    for name in ("lenet5", "resnet20"):
        module, (given,), rates = case(name, 3, clients=4, batch=8, sets=1, off_the_kink=True)
        double = replace(given, weights=given.weights.double(), buffers=given.buffers.double(),
                         inputs=given.inputs.double())
        for local in (LocalTraining(3), replace(OPTIONS, steps=3)):
            exact = reference.updates(module.cuda().double(), double, local, rates.double())
            for precision in ("float64", "float32", "tf32", "bfloat16"):
                engine = Engine(module.float(), device="cuda", precision=precision)
                for _ in range(3):
                    out = engine.updates(double if precision == "float64" else given, local, rates)
                assert bool(out.finite.all())
                rows.append({"model": name, "options": local.momentum > 0, "precision": precision,
                             "update_vs_float64": distance(out.gradient, exact.gradient),
                             "losses_vs_float64": distance(out.losses, exact.losses)})
    return rows


def timings(name: str, precision: str, steps: int, runs: int) -> dict[str, Any]:
    """Time a round of one gradient against rounds with ``steps`` local steps, plain and with all client options."""
    module, rounds, rates = case(name, steps, runs=runs)
    engine = Engine(module, device="cuda", precision=precision)
    local, options = LocalTraining(steps), replace(OPTIONS, steps=steps)

    def rotating(function: Callable[[RoundInput], object], given: list[RoundInput]) -> Callable[[], object]:
        endless = cycle(given)
        return lambda: function(next(endless))

    first_steps = [replace(one.first_step(), inputs=one.inputs[:, 0].contiguous()) for one in rounds]
    functions = [rotating(engine.gradients, first_steps),
                 rotating(lambda given: engine.updates(given, local, rates), rounds),
                 rotating(lambda given: engine.updates(given, options, rates), rounds)]
    gradient, plain, with_options = milliseconds_by_turns(functions, 5 if name.startswith("resnet") else 30, 9)
    key = (name, precision, steps)
    row = {"model": name, "precision": precision, "steps": steps, "runs": runs, "gradient_ms": gradient, "ms": plain,
           "options_ms": with_options, "rounds": plain / gradient,
           "most_rounds": MOST_ROUNDS.get(key) if runs == 1 else None,
           "most_ms": MOST_MS.get(key) if runs == 1 else None,
           "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    print(line(row), flush=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return row


def line(row: dict[str, Any]) -> str:
    """A row of timings as text."""
    mark = "".join([f"   at most {row['most_rounds']:g} rounds" if row["most_rounds"] else "",
                    f"   at most {row['most_ms']:g} ms" if row["most_ms"] else ""])
    return (f"  {row['model']:9s} {row['precision']:9s} runs {row['runs']}  τ = {row['steps']:2d}  "
            f"gradient {row['gradient_ms']:7.3f} ms  steps {row['ms']:8.3f} ms = {row['rounds']:5.2f} rounds  "
            f"with options {row['options_ms']:8.3f} ms{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("local_steps_gpu: torch sees no GPU here")
    began = time.time()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                               "clients": CLIENTS, "batch": BATCH, "correctness": correctness()}
    print(f"{results['device']}, torch {results['torch']}, {CLIENTS} clients x {BATCH} samples, own weights each")
    print("relative distance of the mean update from the plain loop in float64, three steps")
    for row in results["correctness"]:
        note = "all client options" if row["options"] else "plain steps"
        print(f"  {row['model']:9s} {note:18s} {row['precision']:9s} {row['update_vs_float64']:.1e}")
    results["timings"] = [timings(*which) for which in (
        ("lenet5", "tf32", 4, 1), ("lenet5", "tf32", 16, 1), ("lenet5", "bfloat16", 16, 1), ("lenet5", "tf32", 16, 6),
        ("resnet44", "bfloat16", 4, 1), ("resnet44", "bfloat16", 8, 1), ("resnet44", "tf32", 8, 1),
        ("resnet44", "bfloat16", 8, 6))]
    results["seconds"] = time.time() - began
    save(results, arguments.out, "local_steps_gpu.json")


if __name__ == "__main__":
    main()
