"""Where a figure's runs are trained: stacked on a GPU, or side by side in local processes, one thread each."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fedgap.evidence.bundle import pack, unpack
from fedgap.evidence.training import Record, train
from fedgap.learning.data import Dataset
from fedgap.running.job import Job

AT_ONCE = 64
"""Runs stacked in one computation on a GPU."""
_HERE: tuple[dict[str, Job], Dataset] | None = None


def train_all(jobs: Mapping[str, Job], dataset: Dataset, *, workers: int) -> Iterator[Record]:
    """Every job's record, as each ends."""
    if torch.cuda.is_available():
        yield from train({key: replace(job, device="cuda") for key, job in jobs.items()}, dataset, at_once=AT_ONCE)
        return
    local = {key: replace(job, device="cpu", threads=1) for key, job in jobs.items()}
    if workers == 1 or len(local) < 4:
        yield from train(local, dataset)
        return
    with tempfile.TemporaryDirectory() as folder:
        pack(local, Path(folder))
        dataset.save(Path(folder) / "data.npz")
        # The longest first, so that the processes end together.
        keys = sorted(local, key=lambda key: -local[key].rounds * int(local[key].selected[-1].sum()))
        with multiprocessing.get_context("spawn").Pool(workers, _open, (folder,)) as pool:
            yield from pool.imap_unordered(_train_one, keys)


def _open(folder: str) -> None:
    global _HERE
    torch.set_num_threads(1)
    _HERE = unpack(Path(folder)), Dataset.open(Path(folder) / "data.npz")


def _train_one(key: str) -> Record:
    assert _HERE is not None
    jobs, dataset = _HERE
    (record,) = train({key: jobs[key]}, dataset)
    return record
