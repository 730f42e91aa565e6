"""``train`` and ``resume``: from an experiment to a finished run in a folder."""

from __future__ import annotations

from pathlib import Path

from fedgap.config import Experiment
from fedgap.config.trace_csv import write_trace
from fedgap.errors import InputError
from fedgap.files import hold_folder
from fedgap.learning.data import Dataset
from fedgap.learning.engine import check_device
from fedgap.planning.plan import Plan
from fedgap.running.events import OnEvents
from fedgap.running.prepare import Prepared, Progress, prepare
from fedgap.running.run import Run, execute
from fedgap.running.run_folder import has_run


def train(experiment: Experiment, out: str | Path | None = None, *, plan: Plan | None = None,
          dataset: Dataset | None = None, on_events: OnEvents | None = None, progress: Progress | None = None) -> Run:
    """Plan (unless a ``plan`` is given) and train an experiment into the folder ``out``; returns the run.

    >>> small = ["rounds=3", "budget.delay_s=2", "model.name=mlp", "data.train_samples=300", "engine.threads=1"]
    >>> run = fedgap.train(fedgap.Experiment.load("embedded", small), "runs/first")
    >>> run.summary["ended"], 0 <= run.summary["test_accuracy"] <= 1
    ('all rounds are done', True)

    Without ``out`` the folder is ``runs/DATA-SCHEME-seedN``, with a number if that exists. ``dataset`` replaces the
    experiment's data; a copy is kept in the run's folder, so that the run can be resumed.
    """
    folder = free_folder(out, experiment)
    check_device(experiment.engine.device)
    with hold_folder(folder):
        ready = prepare(experiment, plan, dataset, progress)
        write_run(ready, folder, copy_data=dataset is not None)
        return execute([folder], dataset=ready.dataset, on_events=on_events)[0]


def resume(folder: str | Path, *, on_events: OnEvents | None = None) -> Run:
    """Resume an interrupted run from its last checkpoint; a finished run is returned as it is.

    >>> small = ["rounds=3", "budget.delay_s=2", "model.name=mlp", "data.train_samples=300", "engine.threads=1"]
    >>> run = fedgap.train(fedgap.Experiment.load("embedded", small), "runs/short")
    >>> fedgap.resume("runs/short").summary == run.summary
    True

    A resumed run ends as it would have ended without the interruption, bit for bit on a CPU.
    """
    return execute([Path(folder)], on_events=on_events)[0]


def write_run(ready: Prepared, folder: Path, *, copy_data: bool = False) -> Path:
    """Write a run's folder with its job, which any machine with torch can execute (``python -m
    fedgap.running.run``)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be created ({error.strerror}); choose another folder") from None
    ready.experiment.save(folder / "config.yaml")
    ready.scenario.save(folder / "scenario.yaml")
    ready.plan.save(folder / "plan.json")
    if ready.job.policy and not ready.job.extra.get("deployed"):  # a deployment records its world round by round
        write_trace(folder / "trace.csv", ready.scenario.trace(ready.job.seed), ready.job.names)
    if copy_data:
        (folder / "job").mkdir(exist_ok=True)
        ready.dataset.save(folder / "job" / "data.npz")
    ready.job.save(folder / "job")
    return folder


_WRITTEN = ("config.yaml", "scenario.yaml", "plan.json", "trace.csv", "rounds.jsonl", "summary.json", "versions.json",
            "model.safetensors", "model_card.md", "job", "checkpoint", "tensorboard")


def free_folder(out: str | Path | None, experiment: Experiment) -> Path:
    """The folder for a new run. Raises an InputError if the folder already has a run, or files that a run would
    replace."""
    if out is not None:
        folder = Path(out)
        if folder == Path():
            raise InputError("--out: must be a new folder, not the current one; for example runs/first")
        if has_run(folder):
            raise InputError(f"{folder}: holds a run already; continue with `fedgap resume {folder}`, or choose "
                             "another folder")
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: must be a folder; it is a file")
        there = next((name for name in _WRITTEN if (folder / name).exists()), None)
        if there is not None and not _began(experiment, folder):
            raise InputError(f"{folder}: holds {there}, which a run would replace; choose another folder")
        return folder
    name, number = experiment.run_name, 1
    while (folder := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


def _began(experiment: Experiment, folder: Path) -> bool:
    """Whether the files in the folder were written for this experiment by a process that ended before the run began."""
    try:
        return Experiment.load(folder / "config.yaml").hash() == experiment.hash()
    except InputError:
        return False
