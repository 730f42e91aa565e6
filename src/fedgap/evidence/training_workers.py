"""Train the runs of figures: stacked on a GPU, or side by side in local processes with one thread each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from fedgap.evidence.bundle import pack, unpack
from fedgap.evidence.training import Record, train
from fedgap.learning.data import Dataset
from fedgap.learning.engine.cpu_probe import probe
from fedgap.running.job import Job
from fedgap.running.worker_pool import all_in_processes

AT_ONCE = 64
"""Number of runs that are stacked in one computation on a GPU."""


def train_all(jobs: Mapping[str, Job], dataset: Dataset, *, workers: int) -> Iterator[Record]:
    """Train all jobs and yield the record of each when it ends."""
    if torch.cuda.is_available():
        yield from train({key: replace(job, device="cuda") for key, job in jobs.items()}, dataset, at_once=AT_ONCE)
        return
    local = {key: replace(job, device="cpu", threads=1) for key, job in jobs.items()}
    if workers == 1 or len(local) < 4:
        yield from train(local, dataset)
        return
    for precision in {job.precision for job in local.values()}:  # once here rather than in every worker
        probe(precision)
    with tempfile.TemporaryDirectory() as folder:
        pack(local, Path(folder))
        dataset.save(Path(folder) / "data.npz")
        # The longest runs come first, so that all processes end at about the same time.
        keys = sorted(local, key=lambda key: -local[key].rounds * int(local[key].selected[-1].sum()))
        yield from all_in_processes(_train_one, [(folder, key) for key in keys], workers, lambda task: f"run {task[1]}")


@cache
def _open(folder: str) -> tuple[dict[str, Job], Dataset]:
    """The jobs and the data set of a worker's process, which are read once."""
    return unpack(Path(folder)), Dataset.open(Path(folder) / "data.npz")


def _train_one(task: tuple[str, str]) -> Record:
    folder, key = task
    jobs, dataset = _open(folder)
    (record,) = train({key: jobs[key]}, dataset)
    return record
