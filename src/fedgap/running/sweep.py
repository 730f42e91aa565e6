"""Sweeps: train one experiment with all combinations of overrides, resume interrupted sweeps, and summarise."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgap.config import Experiment
from fedgap.config.mode_defaults import PRACTICAL_SCHEME
from fedgap.errors import FedgapError, InputError
from fedgap.files import write_json, write_text
from fedgap.learning.engine.cpu_probe import probe
from fedgap.registry import RULES
from fedgap.running.run import Run
from fedgap.running.run_folder import has_run
from fedgap.running.stacked_runs import prepare_all, train_together
from fedgap.running.sweep_result import Outcome, SweepResult, summarise
from fedgap.running.train_and_resume import resume, train
from fedgap.running.worker_pool import Died, in_processes, on_ray

_LONGEST = 200  # maximum length of a folder's name in bytes; file systems allow 255
Portable = tuple[dict[str, Any], str]
"""An experiment that can be sent to another process: its document, and the folder that its paths are relative to."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, with its overrides and its folder."""

    overrides: tuple[str, ...]
    folder: Path

    def experiment(self, base: Experiment) -> Experiment:
        """The experiment of this run. A ``scheme`` that is the name of a published rule sets the policy of that
        name."""
        return base.with_overrides([change for override in self.overrides for change in _changes(override)])

    @property
    def values(self) -> dict[str, str]:
        """The overridden keys and their values."""
        return dict(override.split("=", 1) for override in self.overrides)


Report = Callable[[SweepRun, Outcome], None]


def _changes(override: str) -> tuple[str, ...]:
    key, _, name = override.partition("=")
    return (f"scheme={PRACTICAL_SCHEME}", f"policy={name}") if key == "scheme" and name in RULES else (
        override,)


def parse_grid(arguments: Iterable[str]) -> dict[str, list[str]]:
    """The values by key, from ``["seed=0,1,2", "budget.delay_s=100,150"]``. Commas in brackets do not separate
    values.

    >>> parse_grid(["seed=0,1", "scheme=proposed"])
    {'seed': ['0', '1'], 'scheme': ['proposed']}
    """
    grid: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not key or not equals or not text:
            raise InputError(f"{argument}: must be key=value or key=value,value; for example seed=0,1,2")
        if key in grid:
            raise InputError(f"{key}: is given twice; list its values once, separated by commas")
        values, depth = [""], 0
        for letter in text:
            depth += (letter in "[{") - (letter in "]}")
            if letter == "," and depth == 0:
                values.append("")
            else:
                values[-1] += letter
        if "" in values:
            raise InputError(f"{key}: has an empty value in {text!r}; write single commas, for example {key}=0,1,2")
        grid[key] = values
    _refuse_repeated(grid)
    return grid


def _refuse_repeated(grid: Mapping[str, Sequence[str]]) -> None:
    """Raise an InputError for repeated values, because two copies of one seed would count as two independent runs."""
    for key, values in grid.items():
        if twice := next((value for value, times in Counter(values).items() if times > 1), None):
            raise InputError(f"{key}: has the value {twice} twice; list each value once")


def _texts(grid: Mapping[str, Iterable[Any]]) -> dict[str, list[str]]:
    """A grid of Python values as texts, in the form of the command line."""
    for key, values in grid.items():
        if isinstance(values, str):
            raise InputError(f"{key}: must be a list of values; got the text {values!r}")
    return {key: [value if isinstance(value, str) else json.dumps(value) for value in values]
            for key, values in grid.items()}


def runs_of(grid: Mapping[str, Sequence[str]], out: Path) -> list[SweepRun]:
    """One run for every combination of the grid's values; the last key varies fastest."""
    combinations = list(itertools.product(*([f"{key}={value}" for value in values] for key, values in grid.items())))
    names = [_folder_name(combination) for combination in combinations]
    clash = {name for name, times in Counter(names).items() if times > 1}
    return [SweepRun(combination, out / "runs" / (_numbered(name, combination) if name in clash else name))
            for combination, name in zip(combinations, names, strict=True)]


def _folder_name(overrides: Sequence[str]) -> str:
    name = ",".join(overrides) or "only"
    name = "".join(letter if letter.isalnum() or letter in "=.,-_" else "_" for letter in name)
    return name if len(name.encode()) <= _LONGEST else _numbered(name, overrides)


def _numbered(name: str, overrides: Sequence[str]) -> str:
    """A name that is short enough for a file system, made unique by a digest of the overrides."""
    digest = hashlib.sha256("\0".join(overrides).encode()).hexdigest()[:12]
    return name.encode()[:_LONGEST - 20].decode(errors="ignore") + "-" + digest


def sweep(experiment: Experiment, grid: Mapping[str, Iterable[Any]], out: str | Path, *,
          workers: int = 1, ray: str | None = None, stacked: bool = False,
          report: Report | None = None) -> SweepResult:
    """Train every combination of the grid into ``out/runs/``, and summarise over seeds.

    >>> small = ["rounds=3", "budget.delay_s=2", "model.name=mlp", "data.train_samples=300", "engine.threads=1"]
    >>> experiment = fedgap.Experiment.load("embedded", small)
    >>> result = fedgap.sweep(experiment, {"seed": [0, 1]}, "runs/seeds", stacked=True)
    >>> picture = result.plot("seeds.png")

    The picture shows the accuracies with their intervals.

    Finished runs are kept and interrupted ones resumed, so that the same call resumes a sweep; a larger grid extends
    it. A run that failed because of its input, such as a missing file, is tried again; one without a feasible plan is
    not.

    :param grid: values by key, for example ``{"seed": [0, 1, 2], "scheme": ["proposed", "all_clients"]}``.
    :param workers: number of local processes. :param ray: the address of a Ray cluster to train on instead.
    :param stacked: train runs of one model and data set together in this process, which is faster on a GPU.
    :param report: called with each run when it ends, and with its outcome.
    """
    values = _texts(grid)
    _refuse_repeated(values)
    out, todo = Path(out), runs_of(values, Path(out))
    _refuse_copies(todo, experiment)  # also reports a bad value before anything starts
    _claim(experiment, out)
    outcomes: dict[SweepRun, Outcome] = {}

    def note(run: SweepRun, result: Outcome) -> None:
        outcomes[run] = result
        if report is not None:
            report(run, result)

    waiting = []
    for run in todo:
        if (known := outcome(run)) is None or known.get("exit_code") == InputError.exit_code:
            (run.folder / "failed.json").unlink(missing_ok=True)  # a missing file may have appeared
            waiting.append(run)
        else:
            note(run, known)
    with closing(_train_all(experiment, waiting, workers, ray, stacked)) as outcomes_to_come:
        for run, ended in outcomes_to_come:
            note(run, ended)
    result = summarise([(run.values, outcomes[run]) for run in todo], out)
    write_json(out / "summary.json", {"format": 2, "experiment": experiment.hash(), **result.to_dict()})
    write_text(out / "summary.csv", result.to_csv())
    return result


def _refuse_copies(todo: Sequence[SweepRun], base: Experiment) -> None:
    """Raise an InputError for values that are written differently but mean the same (0 and 00), because a run must not
    count twice."""
    seen: dict[str, SweepRun] = {}
    for run in todo:
        first = seen.setdefault(run.experiment(base).hash(), run)
        if first is not run:
            key = next(key for key, value in run.values.items() if first.values[key] != value)
            raise InputError(f"{key}: {first.values[key]} and {run.values[key]} mean the same run; list each value "
                             "once")


def _train_all(base: Experiment, waiting: Sequence[SweepRun], workers: int, ray: str | None,
               stacked: bool) -> Generator[tuple[SweepRun, Outcome], None, None]:
    """Train all waiting runs and yield the outcome of each when it ends."""
    if stacked:
        yield from _train_stacked(base, waiting)
        return
    if base.engine.device != "cuda":  # probe once here rather than in every worker
        for precision in {base.engine.precision, *(run.values.get("engine.precision", "float32") for run in waiting)}:
            probe(precision)
    # Overrides must be applied before the document is resolved, because it then has the mode's readings, which a
    # later override of the mode would not change.
    folder = str(base.folder.resolve())
    tasks = [((run.experiment(base).to_dict(), folder), run) for run in waiting]
    if ray is None:
        for (_, run), ended in in_processes(_train_here, tasks, workers):
            yield run, outcome(run) or _died(ended)
        return
    for (_, run), archive in on_ray(_train_elsewhere, tasks, ray, cpus=base.engine.threads or 1,
                                    gpus=1 if base.engine.device == "cuda" else 0):
        if isinstance(archive, bytes):
            unpack(archive, run.folder)
        yield run, outcome(run) or _died(archive)


def _died(ended: object) -> Outcome:
    return {"error": ended.reason if isinstance(ended, Died) else "the worker returned an unfinished run",
            "exit_code": FedgapError.exit_code}


def _train_here(task: tuple[Portable, SweepRun]) -> None:
    """Train one run in its folder, or resume it. Called in a worker's process."""
    (document, folder), run = task
    try:
        if has_run(run.folder):
            resume(run.folder)
        else:
            train(Experiment.from_dict(document, folder=folder), run.folder)
    except FedgapError as error:
        _fail(run, error)


def _train_elsewhere(task: tuple[Portable, SweepRun]) -> bytes:
    """Train one run on a node of a Ray cluster, and return its folder as an archive, so that no shared disk is
    needed."""
    portable, run = task
    with tempfile.TemporaryDirectory() as folder:
        there = SweepRun(run.overrides, Path(folder) / "run")
        _train_here((portable, there))
        return pack(there.folder)


def _train_stacked(base: Experiment, waiting: Sequence[SweepRun]) -> Iterator[tuple[SweepRun, Outcome]]:
    """Train all runs in this process; those with the same model and data set in one computation."""
    failures: list[tuple[SweepRun, Outcome]] = []

    def failed(position: int, error: FedgapError) -> None:
        failures.append((waiting[position], _fail(waiting[position], error)))

    ready = prepare_all([run.experiment(base) for run in waiting], [run.folder for run in waiting], failed)
    yield from failures
    by_folder = {run.folder: run for run in waiting}
    for trained in train_together(ready):
        yield by_folder[trained.folder], {"summary": trained.summary}


def pack(folder: Path) -> bytes:
    """Pack a folder into a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, ".")
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Unpack an archive into a folder; nothing is written outside the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def _claim(experiment: Experiment, out: Path) -> None:
    """Mark the folder as a sweep of this experiment. Raises an InputError if it holds something else."""
    mark = out / "sweep.json"
    if has_run(out):
        raise InputError(f"{out}: holds a single run; choose another folder for a sweep")
    try:
        if mark.is_file():
            if json.loads(mark.read_bytes()).get("experiment") != experiment.hash():
                raise InputError(f"{out}: holds a sweep of another experiment; choose another folder")
            return
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be created ({error.strerror}); choose another folder") from None
    except (ValueError, AttributeError):
        raise InputError(f"{mark}: was not written by a sweep; choose another folder") from None
    experiment.save(out / "config.yaml")
    write_json(mark, {"format": 1, "experiment": experiment.hash()})


def outcome(run: SweepRun) -> Outcome | None:
    """The outcome of a run, or None if it has not ended."""
    failed = run.folder / "failed.json"
    if failed.is_file():
        result: Outcome = json.loads(failed.read_bytes())
        return result
    trained = Run(run.folder)
    return {"summary": trained.summary} if has_run(run.folder) and trained.finished else None


def _fail(run: SweepRun, error: FedgapError) -> Outcome:
    """Write into ``failed.json`` why a run cannot be trained."""
    run.folder.mkdir(parents=True, exist_ok=True)
    failed = {"error": str(error), "exit_code": error.exit_code}
    write_json(run.folder / "failed.json", failed)
    return failed
