"""Bundles: many runs in one small folder, to be trained on a machine that has only torch and numpy.

    python -m fedgap.evidence.bundle FOLDER --data DATA --out RECORDS.jsonl [--at-once 64] [--share 1/4]

A partition is stored once for all jobs that share it. Records are appended when each stack of runs ends, and runs that
have a record are not trained again, so the same command resumes where it stopped."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.evidence.store import Store
from fedgap.evidence.training import digest, stacks, train
from fedgap.files import write_bytes
from fedgap.learning.data import Dataset, load
from fedgap.running.faults import Faults
from fedgap.running.job import Job

_TYPES = {"schedule": np.int64, "selected": np.bool_, "batch_size": np.int64, "sizes": np.int64,
          "label_counts": np.int64, "target_counts": np.int64}


def pack(jobs: Mapping[str, Job], folder: Path) -> None:
    """Write jobs (given by training key) as ``jobs.json.gz`` and ``partitions.npz``."""
    folder.mkdir(parents=True, exist_ok=True)
    partitions: dict[str, Any] = {}
    written = {}
    for key, job in jobs.items():
        values = {f.name: getattr(job, f.name) for f in fields(job)}
        name = digest(job.indices)
        partitions[name] = job.indices.astype(np.uint16 if job.indices.max() < 2**16 else np.uint32)
        values |= {"indices": name, "faults": job.faults.to_dict()}
        written[key] = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
    write_bytes(folder / "jobs.json.gz", gzip.compress(json.dumps(written).encode(), mtime=0))
    np.savez_compressed(folder / "partitions.npz", **partitions)


def unpack(folder: Path) -> dict[str, Job]:
    """Read the jobs by training key. Jobs with the same partition share its array."""
    with np.load(folder / "partitions.npz", allow_pickle=False) as file:
        partitions = {name: file[name].astype(np.int64) for name in file.files}
    jobs = {}
    for key, values in json.loads(gzip.decompress((folder / "jobs.json.gz").read_bytes())).items():
        values |= {"indices": partitions[values["indices"]], "faults": Faults(**values["faults"]),
                   "names": tuple(values["names"])}
        jobs[key] = Job(**{k: np.array(v, dtype=_TYPES.get(k, np.float64)) if isinstance(v, list) else v
                           for k, v in values.items()})
    return jobs


def open_data(settings: dict[str, Any], folder: Path | None) -> Dataset:
    """Load a data set. If ``folder`` is given, it is read from there, or from the subfolder with the data set's
    name."""
    if folder is None:
        return load(**settings)
    subfolder = folder / settings["name"]
    return load(**settings | {"folder": subfolder if subfolder.is_dir() else folder})


def main(arguments: Sequence[str]) -> int:
    """Train a bundle's jobs that have no record yet; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedgap.evidence.bundle", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=None,
                        help="the folder of the data set's files, or of folders named mnist and cifar10")
    parser.add_argument("--out", type=Path, required=True, help="the .jsonl file to which records are appended")
    parser.add_argument("--at-once", type=int, default=64, help="number of runs that are trained together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", default="1/1", help="e.g. 2/4: the second of four processes that share the work")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="start no stack after so many seconds")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    store = Store(given.out)
    jobs = {key: replace(job, device=given.device) for key, job in unpack(given.folder).items()}
    number, processes = (int(part) for part in given.share.split("/"))
    todo = [[key for key in keys if key not in store] for keys in stacks(jobs, given.at_once)[number - 1::processes]]
    todo = [keys for keys in todo if keys]
    print(f"{sum(map(len, todo))} runs to train in {len(todo)} stacks", flush=True)
    dataset = None
    for turn, keys in enumerate(todo, 1):
        if time.monotonic() - began > given.stop_after:
            print(f"stopped before stack {turn} of {len(todo)}: time is up", flush=True)
            return 4
        started = time.monotonic()
        first = jobs[keys[0]]
        if dataset is None or dataset.digest() != first.data_sha256:
            dataset = open_data(first.data, given.data)
        store.add(train({key: jobs[key] for key in keys}, dataset, at_once=given.at_once))
        clients = [int(jobs[key].selected[-1].sum()) for key in keys]
        print(f"stack {turn}/{len(todo)}: {len(keys)} runs, {first.rounds} to {jobs[keys[-1]].rounds} rounds, "
              f"{min(clients)} to {max(clients)} clients, {time.monotonic() - started:.1f} s", flush=True)
    print(f"all are trained after {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
