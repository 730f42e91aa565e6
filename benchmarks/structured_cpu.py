"""What a client's step costs when whole channels are pruned, against its unpruned step: one core, batch 32.

    python benchmarks/structured_cpu.py [--passes 15] [--out benchmarks/results/structured_cpu.json]

For LeNet-5 on 28×28 and ResNet-20 on 32×32 images a client trains some local steps with the model that is left at each
pruning ratio λ, as a deployed node does (the plain loop; taking its weights out of the whole model is part of it) and
as the simulator does (the engine). Ratios take turns within a pass; times are of the processor, which a busy machine
disturbs less than the wall clock, and the median over passes of the ratio to λ = 0 counts. Masks over single weights
are there for comparison. For LeNet-5 the forward and backward passes of its parts are timed alone as well, to show
which of them get faster with fewer channels. Peak memory is what a process of its own holds at most in a round beyond
what it held before (Linux only).
"""

import argparse
import copy
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput
from fedgap.learning.engine import Engine
from fedgap.learning.models import Layout, build
from fedgap.learning.structure import Channels, structure_of

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "structured_cpu.json"
SHAPES = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32)}
STEPS = {"lenet5": 16, "resnet20": 2}
PART_REPEATS = 4
RATIOS = (0.0, 0.3, 0.5, 0.7)
BATCH, RATE = 32, 0.01
PROMPT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment variables that make the C library return memory at once, so that the peak is that of live tensors."""
MARKS = {("lenet5", 0.5): 0.75, ("lenet5", 0.7): 0.65, ("resnet20", 0.5): 0.75, ("resnet20", 0.7): 0.7}
"""The target: the largest share of the unpruned step's time that a deployed client's step may take."""


def round_of(name: str, structure: str, ratio: float) -> tuple[torch.nn.Module, RoundInput, LocalTraining]:
    """A model and the input of one client's round, with random samples."""
    module = build(name, input_shape=SHAPES[name], classes=10, seed=0)
    layout, shape = Layout.of(module), structure_of(structure, module, SHAPES[name])
    weights, steps = layout.weights(module)[None], STEPS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, steps, BATCH, *SHAPES[name], generator=generator)
    labels = torch.randint(10, (1, steps, BATCH), generator=generator)
    given = RoundInput(weights, shape.ranks(weights.abs()), layout.buffers(module)[None], (0,), (ratio,), inputs,
                       labels, shape)
    return module, given, LocalTraining(steps)


def contestants(name: str) -> dict[tuple[str, float], Callable[[], object]]:
    """The functions to time, by kind and ratio: a round as a deployed client computes it, as the simulator does, and as
    a deployed client with masks."""
    module, given, local = round_of(name, "channels", 0.0)
    _, masked, _ = round_of(name, "weights", 0.5)
    engine, rates = Engine(module), torch.tensor([RATE])
    rounds = {ratio: replace(given, ratios=(ratio,)) for ratio in RATIOS}

    def client(own: RoundInput) -> Callable[[], object]:
        return lambda: reference.updates(module, own, local, rates)

    def simulated(own: RoundInput) -> Callable[[], object]:
        return lambda: engine.updates(own, local, rates)

    return {**{("client", ratio): client(own) for ratio, own in rounds.items()}, ("masks", 0.5): client(masked),
            **{("engine", ratio): simulated(own) for ratio, own in rounds.items()}}


def step_times(name: str, passes: int) -> list[dict[str, Any]]:
    """Milliseconds of processor time per step, and as a share of the unpruned step's."""
    functions = contestants(name)
    for function in functions.values():
        function()
    times: dict[tuple[str, float], list[float]] = {which: [] for which in functions}
    for _ in range(passes):
        for which, function in functions.items():
            began = time.process_time()
            function()
            times[which].append(1e3 * (time.process_time() - began) / STEPS[name])
    rows = []
    for (how, ratio), own in times.items():
        whole = times["engine" if how == "engine" else "client", 0.0]
        share = statistics.median(one / other for one, other in zip(own, whole, strict=True))
        rows.append({"model": name, "how": how, "ratio": ratio, "ms": statistics.median(own), "share": share,
                     "mark": MARKS.get((name, ratio)) if how == "client" else None})
    return rows


def lenet_parts(structure: Channels, ratio: float) -> dict[str, Callable[[], object]]:
    """Functions that compute the forward and backward pass of each part of LeNet-5 at a pruning ratio, with random
    inputs and gradients."""
    small = copy.deepcopy(structure.small_module(structure.widths_of(structure.keep_count(ratio))))
    first, second, linear = small.conv1, small.conv2, (small.fc1, small.fc2, small.fc3)
    image, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    wide = [torch.randn(BATCH, first.out_channels, 24, 24), torch.randn(BATCH, second.out_channels, 8, 8)]
    pooled = [torch.randn(BATCH, first.out_channels, 12, 12), torch.randn(BATCH, second.out_channels, 4, 4)]
    for tensor in (*wide, *pooled):
        tensor.requires_grad_()

    def pooling() -> None:
        for before, after in zip(wide, pooled, strict=True):
            torch.autograd.grad(functional.max_pool2d(functional.relu(before), 2), before, after)

    def linear_and_loss() -> None:
        hidden = functional.relu(linear[1](functional.relu(linear[0](pooled[1].flatten(1)))))
        loss = functional.cross_entropy(linear[2](hidden), labels)
        torch.autograd.grad(loss, [pooled[1], *(tensor for layer in linear for tensor in layer.parameters())])

    return {"conv1": lambda: torch.autograd.grad(first(image), list(first.parameters()), wide[0]),
            "conv2": lambda: torch.autograd.grad(second(pooled[0]), [pooled[0], *second.parameters()],
                                                              wide[1]),
            "pooling": pooling, "linear": linear_and_loss}


def part_times(passes: int) -> list[dict[str, Any]]:
    """Milliseconds of processor time of LeNet-5's parts: the smallest of all passes, in which parts and ratios take
    turns.

    The smallest is used because other work on the machine only adds to these short times."""
    structure = round_of("lenet5", "channels", 0.0)[1].structure
    assert isinstance(structure, Channels)
    functions = {(part, ratio): function for ratio in RATIOS
                 for part, function in lenet_parts(structure, ratio).items()}
    times: dict[tuple[str, float], list[float]] = {which: [] for which in functions}
    for _ in range(passes):
        for which, function in functions.items():
            began = time.process_time()
            for _ in range(PART_REPEATS):
                function()
            times[which].append(1e3 * (time.process_time() - began) / PART_REPEATS)
    return [{"part": part, "ratio": ratio, "ms": min(own)} for (part, ratio), own in times.items()]


def peak_growth(name: str, ratio: float) -> float:
    """The MiB by which this process's peak memory exceeds what it held before a deployed client's second round."""
    module, given, local = round_of(name, "channels", ratio)
    reference.updates(module, given, local, torch.tensor([RATE]))  # libraries take their workspaces
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = _memory("VmRSS")
    reference.updates(module, given, local, torch.tensor([RATE]))
    return (_memory("VmHWM") - before) / 1024


def _memory(which: str) -> int:
    """A memory figure of this process in KiB, as Linux reports it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        name, ratio = arguments.peak
        print(peak_growth(name, float(ratio)))
        return
    rows = [row for name in SHAPES for row in step_times(name, arguments.passes)]
    parts = part_times(arguments.passes)
    memory = []
    for name in SHAPES:
        for ratio in RATIOS:
            command = [sys.executable, str(HERE / "structured_cpu.py"), "--peak", name, str(ratio)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | PROMPT)
            memory.append({"model": name, "ratio": ratio, "peak_mib": float(answer.stdout)})
    results = {"batch": BATCH, "threads": 1, "torch": torch.__version__, "python": platform.python_version(),
               "machine": platform.processor() or platform.machine(), "load": os.getloadavg()[0],
               "steps": rows, "parts": parts, "memory": memory}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    for row in rows:
        mark = f"   at most {row['mark']:g}" if row["mark"] else ""
        print(f"{row['model']:9s} {row['how']:7s} λ = {row['ratio']:.1f}  {row['ms']:8.2f} ms  "
              f"{row['share']:.2f}{mark}")
    for row in parts:
        print(f"lenet5    {row['part']:8s} λ = {row['ratio']:.1f}  {row['ms']:8.2f} ms")
    for row in memory:
        print(f"{row['model']:9s} λ = {row['ratio']:.1f}  peak memory {row['peak_mib']:.1f} MiB")


if __name__ == "__main__":
    main()
