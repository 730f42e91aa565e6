"""Train many runs of one model together (seeds × schemes × budgets), as the R rows of the engine's tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedgap.config import Experiment
from fedgap.errors import FedgapError
from fedgap.learning.data import Dataset
from fedgap.learning.engine import check_device
from fedgap.running.events import OnEvents
from fedgap.running.prepare import prepare
from fedgap.running.run import Run, by_kind, execute
from fedgap.running.run_folder import has_run
from fedgap.running.train_and_resume import write_run


def prepare_all(experiments: Sequence[Experiment], folders: Sequence[Path],
                failed: Callable[[int, FedgapError], None] | None = None) -> list[Path]:
    """Plan every experiment and write its run folder; returns the folders that hold a run. Each data set is loaded
    once.

    ``failed`` is called with the position and the error of an experiment without a feasible plan; if None, the error is
    raised."""
    data: dict[str, Dataset] = {}
    ready = []
    for position, (experiment, folder) in enumerate(zip(experiments, folders, strict=True)):
        try:
            if not has_run(folder):
                check_device(experiment.engine.device)
                key = json.dumps(experiment.data.model_dump(mode="json"), sort_keys=True)
                prepared = prepare(experiment, dataset=data.get(key))
                data[key] = prepared.dataset
                write_run(prepared, folder)
            ready.append(folder)
        except FedgapError as error:
            if failed is None:
                raise
            failed(position, error)
    return ready


def train_together(folders: Sequence[Path], *, at_once: int = 64, on_events: OnEvents | None = None) -> Iterator[Run]:
    """Train prepared runs (or resume them); up to ``at_once`` runs that can share a computation are trained together.

    The results of each run equal those of training it alone, up to floating-point rounding."""
    for group in by_kind(folders):
        for start in range(0, len(group), at_once):
            yield from execute(group[start:start + at_once], on_events=on_events)
