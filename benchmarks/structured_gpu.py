"""Whole channels pruned, on a GPU: is it right, and what does a round cost against an unpruned one.

    PYTHONPATH=src python benchmarks/structured_gpu.py [--out benchmarks/results/structured_gpu.json] [--variants]

Needs torch (a CUDA build) and numpy only. A round is 10 clients × 32 random samples: weights, ranking, ratios and
batches go in, the mean gradient comes out. Correctness first: every precision against the plain loop in float64, with
clients of different sizes. Then the time of a round in which all clients prune λ against one in which nobody does, in
turns in one process; ranking and taking the small models out of the whole one are part of it. Masks over single weights
and clients with ratios of their own are there for comparison. The mark: a round of ResNet-44 in bfloat16 with λ = 0.5
takes at most 0.85 of the unpruned one. With $OUT set, the results go there as well.

``--variants`` times the marked round with widths rounded up to 8, 16 and 32 (the choice is ``ON_GPU`` of
``fedgap.learning.engine.small_models``), and lists the kernels that take longest in a round, unpruned and at λ = 0.5.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine_gpu import by_turns, save
from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput
from fedgap.learning.engine import Engine, core, small_models
from fedgap.learning.engine.small_models import Passes
from fedgap.learning.models import Layout, build
from fedgap.learning.structure import structure_of

CLIENTS, BATCH, RATE = 10, 32, 0.01
SHAPES = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32), "resnet44": (3, 32, 32)}
OWN = tuple(0.1 + 0.6 * n / (CLIENTS - 1) for n in range(CLIENTS))
MARKS = {("resnet44", "bfloat16", 1, "0.5"): 0.85}


def case(name: str, structure: str, ratios: Sequence[float], *, steps: int | None = None, batch: int = BATCH,
         sets: int = 2, off_the_kink: bool = False) -> tuple[nn.Module, list[RoundInput]]:
    """A model and ``sets`` random inputs of a round for clients with these pruning ratios, with ``steps`` batches each
    if given."""
    module = build(name, input_shape=SHAPES[name], classes=10, seed=0)
    if off_the_kink:
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.constant_(layer.bias, 4.0)
    layout, shape = Layout.of(module), structure_of(structure, module, SHAPES[name])
    generator = torch.Generator("cuda").manual_seed(0)
    weights, buffers = layout.weights(module).cuda()[None], layout.buffers(module).cuda()[None]
    lead = (len(ratios), batch) if steps is None else (len(ratios), steps, batch)
    rounds = []
    for _ in range(sets):
        x = torch.randn(*lead, *SHAPES[name], device="cuda", generator=generator)
        y = torch.randint(10, lead, device="cuda", generator=generator)
        rounds.append(RoundInput(weights, shape.ranks(weights.abs()), buffers, (0,) * len(ratios), ratios, x, y, shape))
    return module, rounds


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The norm of the difference of two tensors, relative to the second."""
    return float((one.double() - other.double()).norm() / other.double().norm()) if other.numel() else 0.0


def correctness() -> list[dict[str, Any]]:
    """Relative distances from the plain loop in float64, for one gradient and for three local steps."""
    rows = []
    for name in ("lenet5", "resnet20"):
        for local in (None, LocalTraining(3, momentum=0.9)):
            module, (given,) = case(name, "channels", (0.0, 0.3, 0.35, 0.5, 0.7), steps=local and local.steps, batch=8,
                                    sets=1, off_the_kink=True)
            double = replace(given, weights=given.weights.double(), buffers=given.buffers.double(),
                             inputs=given.inputs.double())
            rates = torch.full((1,), RATE, device="cuda")
            whole = module.cuda().double()
            exact = (reference.gradients(whole, double) if local is None else
                     reference.updates(whole, double, local, rates.double()))
            for precision in ("float64", "float32", "tf32", "bfloat16"):
                engine = Engine(module.float(), device="cuda", precision=precision)
                own = double if precision == "float64" else given
                for _ in range(3):  # the third is a replay
                    out = engine.gradients(own) if local is None else engine.updates(own, local, rates)
                assert bool(out.finite.all())
                rows.append({"model": name, "local_steps": local.steps if local else 1, "precision": precision,
                             "update": distance(out.gradient, exact.gradient),
                             "buffers": distance(out.buffers, exact.buffers)})
    return rows


def timings(name: str, precision: str, steps: int) -> list[dict[str, Any]]:
    """Time rounds at several pruning ratios in turn with the unpruned round."""
    kinds: dict[str, tuple[str, Sequence[float]]] = {
        "unpruned": ("channels", (0.0,) * CLIENTS), "0.3": ("channels", (0.3,) * CLIENTS),
        "0.5": ("channels", (0.5,) * CLIENTS), "0.7": ("channels", (0.7,) * CLIENTS), "own": ("channels", OWN),
        "masks 0.5": ("weights", (0.5,) * CLIENTS), "masks own": ("weights", OWN)}
    functions = []
    local, rates = LocalTraining(steps), torch.full((1,), RATE, device="cuda")
    for kind, (structure, ratios) in kinds.items():
        module, rounds = case(name, structure, ratios, steps=steps)
        functions.append(whole_round(Engine(module, device="cuda", precision=precision), rounds, local, rates,
                                     ranked=kind != "unpruned"))
    blocks = by_turns(functions, 5 if name.startswith("resnet") else 20, repeats=9, warm=4)
    rows = []
    for kind, own in zip(kinds, blocks, strict=True):
        share = statistics.median(one / whole for one, whole in zip(own, blocks[0], strict=True))
        rows.append({"model": name, "precision": precision, "local_steps": steps, "kind": kind,
                     "ms": statistics.median(own), "share": share, "mark": MARKS.get((name, precision, steps, kind))})
        print(line(rows[-1]), flush=True)
    return rows


def variants() -> list[dict[str, Any]]:
    """Time the round of the target with several alignments of the widths: milliseconds, and the share of the unpruned
    round."""
    rows, local, rates = [], LocalTraining(1), torch.full((1,), RATE, device="cuda")
    for aligned in (8, 16, 32):
        core.ON_GPU = Passes(aligned, small_models.ON_GPU.least_jobs)  # type: ignore[attr-defined]
        functions = []
        for ratios in ((0.0,) * CLIENTS, (0.5,) * CLIENTS, OWN):
            module, rounds = case("resnet44", "channels", ratios, steps=1)
            engine = Engine(module, device="cuda", precision="bfloat16")
            functions.append(whole_round(engine, rounds, local, rates, ranked=any(ratios)))
        blocks = by_turns(functions, 5, repeats=9, warm=4)
        shares = [statistics.median(a / b for a, b in zip(own, blocks[0], strict=True)) for own in blocks]
        rows.append({"aligned": aligned, "unpruned_ms": statistics.median(blocks[0]), "share": shares[1],
                     "own_share": shares[2]})
        print(f"  widths in multiples of {aligned:2d}: unpruned {rows[-1]['unpruned_ms']:.3f} ms, "
              f"λ = 0.5 {shares[1]:.2f}, ratios of their own {shares[2]:.2f}", flush=True)
    core.ON_GPU = small_models.ON_GPU  # type: ignore[attr-defined]
    return rows


def slow_kernels(ratio: float) -> list[dict[str, Any]]:
    """The kernels that take longest in a round of the target."""
    module, rounds = case("resnet44", "channels", (ratio,) * CLIENTS, steps=1)
    rates = torch.full((1,), RATE, device="cuda")
    engine = Engine(module, device="cuda", precision="bfloat16")
    once = whole_round(engine, rounds, LocalTraining(1), rates, ranked=True)
    for _ in range(4):
        once()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        once()
        torch.cuda.synchronize()
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:12]
    rows = [{"kernel": event.key[:100], "calls": event.count, "ms": event.self_device_time_total / 1e3}
            for event in events]
    for row in rows:
        print(f"  λ = {ratio}: {row['ms']:7.3f} ms in {row['calls']:3d} calls  {row['kernel']}", flush=True)
    return rows


def whole_round(engine: Engine, rounds: list[RoundInput], local: LocalTraining, rates: torch.Tensor, *,
                ranked: bool) -> Callable[[], object]:
    """A function that ranks the weights and computes the updates, with the next set of inputs each time."""
    endless = cycle(rounds)
    assert rounds[0].structure is not None
    rank = engine.ranking(rounds[0].structure)

    def once() -> object:
        given = next(endless)
        if ranked:
            given = replace(given, ranks=rank(given.weights.abs()))
        return engine.updates(given, local, rates)

    return once


def line(row: dict[str, Any]) -> str:
    """A row of timings as text."""
    mark = f"   at most {row['mark']:g}" if row["mark"] else ""
    return (f"  {row['model']:9s} {row['precision']:9s} τ = {row['local_steps']}  {row['kind']:9s} "
            f"{row['ms']:8.3f} ms  {row['share']:.2f}{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--variants", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("structured_gpu: torch sees no GPU here")
    began = time.time()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "clients": CLIENTS,
                               "batch": BATCH, "correctness": correctness()}
    print(f"{results['device']}, torch {results['torch']}, {CLIENTS} clients x {BATCH} samples")
    print("relative distance from the plain loop in float64")
    for row in results["correctness"]:
        print(f"  {row['model']:9s} τ = {row['local_steps']}  {row['precision']:9s} update {row['update']:.1e}  "
              f"statistics {row['buffers']:.1e}")
    print("rounds, as a share of the unpruned one; masks: single weights, for comparison")
    results["timings"] = [row for which in (("resnet44", "bfloat16", 1), ("resnet44", "tf32", 1),
                                            ("resnet44", "bfloat16", 4), ("lenet5", "tf32", 1), ("lenet5", "tf32", 8))
                          for row in timings(*which)]
    if arguments.variants:
        results["variants"] = variants()
        results["kernels"] = {str(ratio): slow_kernels(ratio) for ratio in (0.0, 0.5)}
    results["seconds"] = time.time() - began
    save(results, arguments.out, "structured_gpu.json")


if __name__ == "__main__":
    main()
