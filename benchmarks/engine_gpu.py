"""The engine on a GPU: is it right, how long is a round, and what does stacking runs give.

    PYTHONPATH=src python benchmarks/engine_gpu.py [--out benchmarks/results/engine_gpu.json]

Needs torch (a CUDA build), numpy and safetensors only. A round is K = 10 clients × 32 samples, every client with a
pruned model of its own: weights, ranking, ratios and batches go in, the mean masked gradient comes out. Correctness
first: every precision against the plain loop in float64. Then, in one run: the loop that frameworks run,
torch.func.vmap in a CUDA graph, and the engine; six runs stacked in one call; whole rounds as `fedgap train` runs
them (batches drawn, ranking, gradients, memory of gradients, update, ledger; no evaluation, no files), of one run and
of six stacked; the machine's two ceilings. Times are medians over blocks of rounds between CUDA events, inputs
rotating among four sets; a block of whole rounds is as long as batches are drawn ahead for.
With $OUT set, the results go there as well.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedgap.learning import reference
from fedgap.learning.contract import RoundInput
from fedgap.learning.data import Dataset
from fedgap.learning.engine import Engine
from fedgap.learning.engine.precision import arithmetic
from fedgap.learning.masks import ranks
from fedgap.learning.models import Layout, build
from fedgap.running.faults import Faults
from fedgap.running.job import Job
from fedgap.running.loop import Rounds

CLIENTS, BATCH = 10, 32
AHEAD = 256  # rounds whose batches are drawn at once
SHAPES = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32), "resnet44": (3, 32, 32), "resnet110": (3, 32, 32)}
TARGETS = {("resnet110", "tf32"): 22.0, ("resnet110", "bfloat16"): 13.0, ("lenet5", "tf32"): 0.4}


def milliseconds(function: Callable[[], object], calls: int, repeats: int = 7, warm: int = 3) -> float:
    """The median over ``repeats`` blocks of ``calls`` calls, in ms per call, measured by events on the device."""
    return statistics.median(by_turns([function], calls, repeats, warm)[0])


def by_turns(functions: list[Callable[[], object]], calls: int, repeats: int = 7, warm: int = 3) -> list[list[float]]:
    """The times of several functions, measured in turn so that a slow moment of the host affects all of them."""
    for function in functions:
        for _ in range(warm):
            function()
    torch.cuda.synchronize()
    blocks: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, own in zip(functions, blocks, strict=True):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(calls):
                function()
            stop.record()
            torch.cuda.synchronize()
            own.append(start.elapsed_time(stop) / calls)
    return blocks


def case(name: str, *, runs: int = 1, clients: int = CLIENTS, sets: int = 4,
         off_the_kink: bool = False) -> tuple[nn.Module, list[RoundInput]]:
    """A model and ``sets`` random inputs of a round for it; each client has its own pruning ratio, between 0.02 and
    0.5."""
    module = build(name, input_shape=SHAPES[name], classes=10, seed=0)
    if off_the_kink:
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.constant_(layer.bias, 4.0)
    layout = Layout.of(module)
    generator = torch.Generator("cuda").manual_seed(0)
    scale = 1 + 0.01 * torch.arange(runs, device="cuda")[:, None]
    weights = layout.weights(module).cuda() * scale
    buffers = layout.buffers(module).cuda().expand(runs, -1).contiguous()
    ranking = ranks(weights.abs())
    run = [j // clients for j in range(runs * clients)]
    ratios = [0.02 + 0.48 * (j % clients) / max(1, clients - 1) for j in range(runs * clients)]
    rounds = []
    for _ in range(sets):
        x = torch.randn(runs * clients, BATCH, *SHAPES[name], device="cuda", generator=generator)
        y = torch.randint(10, (runs * clients, BATCH), device="cuda", generator=generator)
        rounds.append(RoundInput(weights, ranking, buffers, run, ratios, x, y))
    return module, rounds


def rotating(function: Callable[[RoundInput], object], rounds: list[RoundInput]) -> Callable[[], object]:
    """A function that calls ``function`` with the next set of inputs each time."""
    endless = cycle(rounds)
    return lambda: function(next(endless))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def correctness() -> list[dict[str, object]]:
    """Relative distance of the mean gradient from the plain loop in float64, and from the loop in the same
    precision."""
    rows = []
    for name, off_the_kink in (("lenet5", False), ("resnet20", True), ("resnet20", False)):
        module, (given, *_) = case(name, clients=4, sets=1, off_the_kink=off_the_kink)
        double = RoundInput(given.weights.double(), given.ranks, given.buffers.double(), given.run, given.ratios,
                            given.inputs.double(), given.labels)
        exact = reference.gradients(module.double().cuda(), double)
        module = module.float().cuda()
        for precision in ("float32", "tf32", "bfloat16"):
            engine = Engine(module, device="cuda", precision=precision)
            for _ in range(3):  # the third is a replay
                out = engine.gradients(given)
            with arithmetic(precision, engine.device):
                loop = reference.gradients(module, given, bfloat16=precision == "bfloat16")
            assert bool(out.finite.all())
            rows.append({"model": name, "relus_off_the_kink": off_the_kink, "precision": precision,
                         "gradient_vs_float64": distance(out.gradient, exact.gradient),
                         "loop_vs_float64": distance(loop.gradient, exact.gradient),
                         "gradient_vs_loop": distance(out.gradient, loop.gradient),
                         "losses_vs_float64": distance(out.losses, exact.losses)})
    return rows


def rejection() -> str:
    """Check that a client with NaN is reported and left out in a replayed graph."""
    module, (given, *_) = case("lenet5", sets=1)
    engine = Engine(module, device="cuda", precision="tf32")
    for _ in range(3):
        clean = engine.gradients(given)
    given.inputs[3, 0, 0, 0, 0] = float("nan")
    out = engine.gradients(given)
    assert out.finite.tolist() == [j != 3 for j in range(CLIENTS)]
    assert out.accepted.tolist() == [CLIENTS - 1]
    assert bool(out.gradient.isfinite().all())
    assert bool(clean.finite.all())
    return "ok"


def ceilings() -> dict[str, float]:
    """The bytes and multiplications per second that this machine reaches."""
    x = torch.randn(2**28, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * x.numel() * 4 / milliseconds(lambda: y.copy_(x), 5) / 1e9
    a, b = (torch.randn(8192, 8192, device="cuda") for _ in range(2))
    with arithmetic("tf32", torch.device("cuda")):
        tf32 = 2 * 8192**3 / milliseconds(lambda: a @ b, 5) / 1e9
    a, b = a.bfloat16(), b.bfloat16()
    bfloat16 = 2 * 8192**3 / milliseconds(lambda: a @ b, 5) / 1e9
    return {"copy_tb_s": copy, "tf32_tflops": tf32, "bfloat16_tflops": bfloat16}


def timings(name: str) -> list[dict[str, object]]:
    """Time a round by the loop, by vmap in a graph, and by the engine."""
    module, rounds = case(name)
    calls = 10 if name.startswith("resnet") else 50
    rows: list[dict[str, object]] = []

    def row(what: str, precision: str, ms: float) -> None:
        target = TARGETS.get((name, precision)) if what == "engine" else None
        rows.append({"model": name, "what": what, "precision": precision, "ms": ms, "target_ms": target})
        print(f"  {name:9s} {what:12s} {precision:9s} {ms:8.3f} ms", flush=True)

    on_gpu = module.cuda()
    with arithmetic("tf32", torch.device("cuda")):
        row("loop", "tf32", milliseconds(rotating(lambda r: reference.gradients(on_gpu, r), rounds), 2, 3, 1))
    vmapped = Engine(module, device="cuda", precision="tf32", strategy="vmap")
    row("vmap + graph", "tf32", milliseconds(rotating(vmapped.gradients, rounds), calls, 3))
    del vmapped
    for precision in ("float32", "tf32", "bfloat16"):
        engine = Engine(module, device="cuda", precision=precision)
        torch.cuda.reset_peak_memory_stats()
        row("engine", precision, milliseconds(rotating(engine.gradients, rounds), calls))
        rows[-1]["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if precision != "float32":
            row("whole round", precision, milliseconds(training(name, precision), AHEAD, 9 if name == "lenet5" else 3))
        del engine
        torch.cuda.empty_cache()
    return rows


def training(name: str, precision: str, runs: int = 1) -> Callable[[], object]:
    """A function that trains one round of ``runs`` trainings as `fedgap train` does, without evaluation; the first
    round is unpruned."""
    generator, samples, rounds = torch.Generator().manual_seed(0), 500, 100_000
    x = torch.randn(CLIENTS * samples, *SHAPES[name], generator=generator)
    y = torch.randint(10, (CLIENTS * samples,), generator=generator)
    none, every = np.zeros((2, CLIENTS)), np.ones(CLIENTS)
    ratio = none + [[0.0], [1.0]] * np.linspace(0.02, 0.5, CLIENTS)
    spent = dict.fromkeys(("compute_s", "upload_s", "compute_j", "upload_j", "upload_s_bit", "upload_j_bit"), none)
    counts = np.zeros((CLIENTS, 10), dtype=np.int64)
    jobs = [Job(seed=seed, data={}, data_sha256="", model={"name": name}, learning_rate=1e-4, evaluate_every=rounds,
                evaluate_pruned=False, importance={"rule": "taylor", "current_weights": True, "remember": True},
                energy_budget_j=1.0, delay_budget_s=1.0, accounting="as_printed", faults=Faults(), engine="stacked",
                device="cuda", precision=precision, threads=1, checkpoint_every=rounds,
                names=tuple(map(str, range(CLIENTS))), scheme="", schedule=np.minimum(np.arange(rounds), 1),
                selected=np.ones((2, CLIENTS), dtype=np.bool_), ratio=ratio, **spent, download_s=0.0 * every,
                download_s_bit=0.0 * every, gradient_bits=every, server_power_w=0.0, statement=np.zeros(2),
                batch_size=np.full(CLIENTS, BATCH), indices=np.arange(len(y)), sizes=np.full(CLIENTS, samples),
                label_counts=counts, target_counts=counts) for seed in range(runs)]
    loop = Rounds(jobs, Dataset("random", x, y, x[:10], y[:10], 10))

    def step() -> None:
        loop.step()
        if loop.ready():
            loop.drain()

    for _ in range(4):
        step()  # the dense round, and graphs are recorded
    return step


def stacked(name: str, precision: str, runs: int = 6) -> dict[str, object]:
    """Time six runs in one call against one run; 100 % of the linear gain would mean six runs in the time of one.

    The gain is measured for whole rounds (what a training pays), for calls for gradients alone, and for their graphs
    alone, without the host. A share is the median over pairs of blocks measured in turn, given with its quartiles."""
    large = name.startswith("resnet")
    gradients, graphs, whole = [], [], []
    for count in (1, runs):
        module, rounds = case(name, runs=count, sets=2)
        engine = Engine(module, device="cuda", precision=precision)
        gradients.append(rotating(engine.gradients, rounds))
        for _ in range(3):
            gradients[-1]()
        graphs.append(recorded(engine))
        whole.append(training(name, precision, count))
    row: dict[str, object] = {"model": name, "precision": precision}
    for prefix, functions, calls, repeats in (("", gradients, 10 if large else 50, 15 if large else 41),
                                              ("device_", graphs, 10 if large else 50, 15),
                                              ("whole_", whole, AHEAD, 3 if large else 41)):
        one, six = by_turns(functions, calls, repeats)
        low, share, high = statistics.quantiles([a / b for a, b in zip(one, six, strict=True)], n=4)
        row |= {f"{prefix}ms_one": statistics.median(one), f"{prefix}ms_six": statistics.median(six),
                f"{prefix}share_of_linear": share, f"{prefix}share_quartiles": [low, high]}
    print(f"  {row}", flush=True)
    torch.cuda.empty_cache()
    return row


def recorded(engine: Engine) -> Callable[[], object]:
    """A function that replays what the engine has recorded, and nothing else."""
    (recording,) = engine._recorder._recordings.values()
    return recording._graph.replay


def save(results: Mapping[str, object], out: Path | None, name: str) -> None:
    """Write the results to ``out`` if given, and under ``name`` into the folder $OUT if that is set."""
    outs = [out] if out else []
    if "OUT" in os.environ:
        outs.append(Path(os.environ["OUT"]) / name)
    for path in outs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("engine_gpu: torch sees no GPU here")
    began = time.time()
    results: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                                  "cudnn": torch.backends.cudnn.version(), "clients": CLIENTS, "batch": BATCH}

    def keep(name: str, value: object) -> None:
        results[name] = value
        save(results, arguments.out, "engine_gpu.json")
        print(f"[{time.time() - began:5.0f} s] {name}", flush=True)

    keep("ceilings", ceilings())
    keep("correctness", correctness())
    keep("rejection", rejection())
    keep("lenet5", timings("lenet5"))
    keep("stacked", [stacked("lenet5", "tf32"), stacked("lenet5", "bfloat16"), stacked("resnet20", "bfloat16"),
                     stacked("resnet44", "bfloat16")])
    keep("resnet110", timings("resnet110"))
    keep("seconds", time.time() - began)
    print(table(results))


def table(results: dict[str, object]) -> str:
    """The results as a table for reading."""
    lines = [f"{results['device']}, torch {results['torch']}, {CLIENTS} clients x {BATCH} samples, own weights each"]
    lines += [f"  {key:18s} {value:8.2f}" for key, value in results["ceilings"].items()]  # type: ignore[attr-defined]
    lines.append("relative distance of the mean gradient       vs float64   loop vs float64   vs loop of its precision")
    for r in results["correctness"]:  # type: ignore[attr-defined]
        note = " (ReLUs off the kink)" if r["relus_off_the_kink"] else ""
        lines.append(f"  {r['model'] + note:30s} {r['precision']:10s} {r['gradient_vs_float64']:10.1e} "
                     f"{r['loop_vs_float64']:14.1e} {r['gradient_vs_loop']:20.1e}")
    lines.append("ms a round")
    for r in [*results["lenet5"], *results["resnet110"]]:  # type: ignore[misc]
        target = f"   target {r['target_ms']:g}" if r["target_ms"] else ""
        lines.append(f"  {r['model']:10s} {r['what']:13s} {r['precision']:10s} {r['ms']:9.3f}{target}")
    for r in results["stacked"]:  # type: ignore[attr-defined]
        lines.append(f"  six runs stacked, {r['model']} {r['precision']}")
        for prefix, what in (("whole_", "whole rounds"), ("", "gradients"), ("device_", "their graphs alone")):
            low, high = (100 * share for share in r[f"{prefix}share_quartiles"])
            lines.append(f"    {what:20s} {r[f'{prefix}ms_one']:7.3f} -> {r[f'{prefix}ms_six']:7.3f} ms, "
                         f"{100 * r[f'{prefix}share_of_linear']:3.0f} % ({low:.0f} to {high:.0f}) of the linear gain")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
