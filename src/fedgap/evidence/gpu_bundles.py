"""Bundles for a machine with a GPU: the runs of figures that are not trained yet, the most useful ones first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgap.evidence.bundle import pack
from fedgap.evidence.cases import Planned
from fedgap.evidence.definition import Panel, load_figure
from fedgap.evidence.forecast_runs import jobs_by_turn
from fedgap.evidence.reproduce import plan_panels
from fedgap.evidence.workshop import Workshop
from fedgap.learning.models import build
from fedgap.learning.sizes import flops_per_sample
from fedgap.running.forecast_pilot import samples_processed
from fedgap.running.job import Job

RATE = {"bfloat16": 49e12}
"""FLOP/s of whole runs on one H200, by precision, measured on 132 runs of ResNet-44 in stacks of twelve, including
preparation."""
OTHER = 31e12
"""FLOP/s for other precisions, measured in TF32 (``benchmarks/results/engine_gpu.json``, ResNet-110, 10 clients × 32
samples)."""
_EVALUATED = 12_000
"""Number of samples in an evaluation: the test set, and 2,000 of the training set."""
_FLOPS: dict[tuple[str, ...], float] = {}


@dataclass(frozen=True)
class BundlePart:
    """The bundle of one turn: its folder, its figures, its number of runs, and the estimated GPU seconds."""

    folder: Path
    figures: tuple[str, ...]
    runs: int
    gpu_s: float


def gpu_seconds(job: Job) -> float:
    """Estimate the seconds that a run takes on one H200, from the FLOPs of its rounds and evaluations."""
    shape = job.extra["input_shape"]
    key = (job.model["name"], *map(str, shape))
    if key not in _FLOPS:
        module = build(**job.model, input_shape=shape, classes=job.extra["classes"], seed=0)
        _FLOPS[key] = flops_per_sample(module, tuple(shape))
    samples = float(samples_processed(job))
    if job.policy:  # the job lists all clients, of which the rule selects this many
        samples *= job.policy["rule"]["count"] / len(job.names)
    evaluated = _EVALUATED * (job.rounds / job.evaluate_every + 1) / 3.0  # a forward pass is a third of a gradient
    return (samples + evaluated) * _FLOPS[key] / RATE.get(job.precision, OTHER)


def hand_over(names: Sequence[str], shop: Workshop, folder: Path) -> list[BundlePart]:
    """Write one bundle ``FOLDER/TURN`` for each turn of the figures' panels. A run of an earlier turn is not repeated.

    Panels with a ``status`` are included, because their runs are the ones that are missing. The runs on which a
    forecast is judged come after those of panels with the same turn."""
    figures = [load_figure(name, shop.definitions) for name in names]
    panels = [(figure, panel) for figure in figures for panel in figure.panels[shop.preset]
              if figure.kind != "partitions"]
    taken: set[str] = set()
    parts = []
    for turn in sorted({panel.turn for _, panel in panels}):
        of_turn = [(figure.name, replace(panel, status="")) for figure, panel in panels if panel.turn == turn]
        jobs = _missing([panel for _, panel in of_turn], shop, taken)
        if jobs:
            taken |= jobs.keys()
            pack(jobs, folder / str(turn))
            parts.append(_part(folder / str(turn), tuple(dict.fromkeys(name for name, _ in of_turn)), jobs))
    for figure in figures:
        if figure.kind == "forecast":
            for turn, jobs in jobs_by_turn(figure.cells[shop.preset], shop).items():
                name = f"{figure.name}-{turn}"
                pack(jobs, folder / name)
                parts.append(_part(folder / name, (figure.name,), jobs))
    return parts


def _part(folder: Path, figures: tuple[str, ...], jobs: dict[str, Job]) -> BundlePart:
    return BundlePart(folder, figures, len(jobs), sum(map(gpu_seconds, jobs.values())))


def _missing(panels: Sequence[Panel], shop: Workshop, taken: set[str]) -> dict[str, Job]:
    return {answer.key: answer.job for answer in plan_panels(panels, shop).values()
            if isinstance(answer, Planned) and answer.job is not None and answer.key not in shop.store
            and answer.key not in taken}
