"""Train many jobs in memory, each distinct job once, and make the record of each run.

Two plans that select the same clients and keep the same number of weights in every round train the same model, whatever
powers and frequencies they use. :func:`training_key` identifies what is trained, and a record is stored under that key.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgap.learning.data import Dataset
from fedgap.learning.learner import Learner
from fedgap.learning.masks import keep_count
from fedgap.learning.models import build
from fedgap.learning.models.layout import Layout
from fedgap.running.job import Job
from fedgap.running.train_stack import train_stack

Record = dict[str, Any]
"""The record of a trained run: ``key``, ``seed``, ``rounds``, the machine and versions, and lists with one entry per
evaluation: ``round``, ``test_accuracy``, ``test_loss``, ``training_set_loss``; with a validation split
``validation_accuracy``; if a rule chose the clients, ``energy_total_j`` and ``delay_total_s``."""
_SIZES: dict[str, int] = {}
_MANY_SEGMENTS = 8
"""A plan with more segments than this was made by a rule, whose rounds hardly ever repeat."""
_TIES = "kept first"
"""Among weights of importance 0, those that were kept rank first. This is part of the key, because older runs ranked
them differently."""

_FORGETS = "momentum forgets old targets"
"""Part of the key if batches follow a drifting target, because in older runs the server kept its momentum."""


def model_size(job: Job) -> int:
    """M, the number of weights of the job's model."""
    settings = json.dumps([job.model, job.extra["input_shape"], job.extra["classes"]], sort_keys=True)
    if settings not in _SIZES:
        module = build(**job.model, input_shape=job.extra["input_shape"], classes=job.extra["classes"], seed=0)
        _SIZES[settings] = Layout.of(module).size
    return _SIZES[settings]


def digest(array: NDArray[Any]) -> str:
    """16 hex digits that identify an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array, dtype=np.int64).tobytes()).hexdigest()[:16]


def training_key(job: Job) -> str:
    """16 hex digits of everything that decides what is trained and reported, and of nothing else."""
    size = model_size(job)
    keeps = np.where(job.selected, [[keep_count(ratio, size) for ratio in row] for row in job.ratio], 0)
    pruned = bool(((keeps < size) & job.selected).any())
    ties = [] if job.importance["remember"] or job.importance["rule"] != "taylor" else [_TIES]
    decides = [
        job.data_sha256, job.model, job.seed, job.learning_rate, job.evaluate_every, job.precision, job.engine,
        job.accounting, job.faults.to_dict(), digest(keeps[job.schedule]), digest(job.batch_size), digest(job.indices),
        digest(job.sizes), [job.importance, *ties, job.evaluate_pruned] if pruned else None,
        *([job.aggregator] if job.aggregator != "mean" else []),  # so that keys of old records do not change
        *([job.structure] if job.structure != "weights" else []),  # for the same reason
        *([hashlib.sha256(job.targets[job.schedule].tobytes()).hexdigest()] if job.targets.size else []),
        *([_FORGETS] if job.targets.size and job.batches == "target" else []),
        *_beyond_fedsgd(job), *_by_rule(job),
    ]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def _beyond_fedsgd(job: Job) -> list[Any]:
    """How the job learns, for its key; empty for FedSGD, so that keys of old records do not change."""
    stops = {name: value for name, value in job.stop.items() if name != "diverged"}
    labels = hashlib.sha256(job.label_probabilities.tobytes()).hexdigest() if job.label_probabilities.size else ""
    learns = [asdict(job.learner), labels, job.weighting, job.upload_bits, job.weights, stops]
    fedsgd = [asdict(Learner(job.learning_rate, job.rounds)), "", "equal", 32, None, {}]
    return [] if learns == fedsgd else learns


def _by_rule(job: Job) -> list[Any]:
    """What decides the rounds of a run whose clients a rule chooses, for its key: the rule's settings, the budgets and
    the costs of rounds."""
    if not job.policy:
        return []
    costs = hashlib.sha256(b"".join(np.ascontiguousarray(values).tobytes() for values in (
        job.compute_s, job.upload_s, job.compute_j, job.upload_j, job.download_s))).hexdigest()
    return [job.policy, job.energy_budget_j, job.delay_budget_s, job.server_power_w, costs]


def kind(job: Job) -> str:
    """A text that is equal for jobs that are trained together.

    Jobs whose selections alternate share a kind only if they alternate in the same way, because a GPU must prepare
    every mix of selections separately (two mixed stacks of twelve took two and three times as long as the others)."""
    alternates = np.count_nonzero(np.diff(job.schedule)) > 1
    if job.policy or len(job.selected) > _MANY_SEGMENTS:  # a rule selects new clients each round, but always as many
        return json.dumps([job.kind, job.importance, "rule", bool(job.policy), int(job.selected[-1].sum())])
    return json.dumps([job.kind, job.importance, digest(job.schedule) if alternates else ""], sort_keys=True)


def stacks(jobs: Mapping[str, Job], at_once: int) -> list[list[str]]:
    """Lists of keys that are trained together: jobs of one kind with similar numbers of rounds and clients."""
    groups: dict[str, list[str]] = {}
    for key, job in sorted(jobs.items(), key=lambda item: (item[1].rounds, int(item[1].selected[-1].sum()), item[0])):
        groups.setdefault(kind(job), []).append(key)
    return [group[i:i + at_once] for group in groups.values() for i in range(0, len(group), at_once)]


def train(jobs: Mapping[str, Job], dataset: Dataset, *, at_once: int = 1,
          step: Callable[[int], None] | None = None) -> Iterator[Record]:
    """Train the jobs (given by training key), ``at_once`` of them together; yields the records of each stack when it
    ends.

    ``step`` is called after each round with the number of runs that took part in it."""
    for keys in stacks(jobs, at_once):
        yield from _train_stack(keys, [jobs[key] for key in keys], dataset, step)


def _train_stack(keys: list[str], jobs: list[Job], dataset: Dataset,
                 step: Callable[[int], None] | None) -> list[Record]:
    began = time.monotonic()
    events, device = train_stack(jobs, dataset, step)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    share = (time.monotonic() - began) / len(keys)
    return [record(*one, machine, share) for one in zip(keys, jobs, events, strict=True)]


def record(key: str, job: Job, evaluated: list[dict[str, Any]], machine: str, wall_s: float) -> Record:
    """The record of a run: its evaluations, rounded to five significant digits, and where it was trained."""
    def column(name: str) -> list[float | None]:
        return [None if event[name] is None else float(f"{event[name]:.5g}") for event in evaluated]

    names = ["test_accuracy", "test_loss", "training_set_loss"]
    names += [name for name in ("validation_accuracy",) if evaluated and name in evaluated[0]]
    names += ["energy_total_j", "delay_total_s"] if job.policy else []
    rounds = evaluated[-1]["round"] + 1 if job.policy and evaluated else job.rounds
    return {"key": key, "seed": job.seed, "rounds": rounds, "round": [event["round"] + 1 for event in evaluated],
            **{name: column(name) for name in names},
            "machine": machine, "precision": job.precision, "torch": torch.__version__.split("+")[0],
            "python": platform.python_version(), "wall_s": float(f"{wall_s:.3g}")}
