"""Many runs of one experiment: a grid of overrides, trained side by side, resumable, summarised at the end."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgap.config import Experiment
from fedgap.errors import FedgapError, InputError
from fedgap.files import write_json, write_text
from fedgap.running.run import Run, has_run

MEASURES = {"test_accuracy": "test_accuracy", "test_loss": "test_loss", "train_loss": "train_loss",
            "generalization_gap": "generalization_gap", "rounds_trained": "rounds", "energy_j": "energy_j",
            "delay_s": "delay_s", "theta": "theta"}
"""The numbers that a sweep averages over seeds: column → key of a run's summary. No column is a key of an experiment,
so that one which is swept keeps its name beside them."""

_LONGEST = 200  # bytes of a folder's name; file systems take 255

Outcome = dict[str, Any]
"""``{"summary": ...}`` of a finished run, or ``{"error": line, "exit_code": code}`` of one that has no plan (3), bad
input (2) or whose process died (1)."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its overrides, and the folder it lives in."""

    overrides: tuple[str, ...]
    folder: Path

    def experiment(self, base: Experiment) -> Experiment:
        """The experiment of this run."""
        return base.with_overrides(self.overrides)

    @property
    def values(self) -> dict[str, str]:
        """The overridden keys and their values."""
        return dict(override.split("=", 1) for override in self.overrides)


def parse_grid(arguments: Iterable[str]) -> dict[str, list[str]]:
    """``["seed=0,1,2", "budget.delay_s=100,150"]`` → values by key; a comma inside brackets separates no values.

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
        if "" in values or len(set(values)) < len(values):
            raise InputError(f"{argument}: has an empty or repeated value")
        grid[key] = values
    return grid


def points(grid: Mapping[str, Sequence[str]], out: Path) -> list[Point]:
    """Every combination of the grid's values, the last key varying fastest."""
    combinations = list(itertools.product(*([f"{key}={value}" for value in values] for key, values in grid.items())))
    names = [_folder_name(combination) for combination in combinations]
    clash = {name for name, times in Counter(names).items() if times > 1}
    return [Point(combination, out / "runs" / (_numbered(name, combination) if name in clash else name))
            for combination, name in zip(combinations, names, strict=True)]


def _folder_name(overrides: Sequence[str]) -> str:
    name = ",".join(overrides) or "only"
    name = "".join(letter if letter.isalnum() or letter in "=.,-_" else "_" for letter in name)
    return name if len(name.encode()) <= _LONGEST else _numbered(name, overrides)


def _numbered(name: str, overrides: Sequence[str]) -> str:
    """Short enough for a file system, and told apart by a digest of what was overridden."""
    digest = hashlib.sha256("\0".join(overrides).encode()).hexdigest()[:12]
    return name.encode()[:_LONGEST - 20].decode(errors="ignore") + "-" + digest


def sweep(experiment: Experiment, grid: Mapping[str, Sequence[str]], out: str | Path, *,
          workers: int = 1, ray: str | None = None, stacked: bool = False,
          report: Callable[[Point, Outcome], None] | None = None) -> list[dict[str, Any]]:
    """Trains every combination of the grid into ``out/runs/``; returns the summary's rows (see :func:`summarise`).

    Finished runs are kept, interrupted ones go on, so that the same call resumes a sweep; a larger grid extends it. One
    that failed for its input (a missing file) is tried again, one without a feasible plan is not.
    ``workers`` local processes at a time; with ``ray`` the runs go to that cluster's address instead; with ``stacked``
    runs of one model and data set are trained together in this process, which pays on a GPU. A run without a feasible
    plan is noted and the sweep goes on. ``report`` is called with each run as it ends.
    """
    from fedgap.running import worker_pool as work

    out, todo = Path(out), points(grid, Path(out))
    for point in todo:
        point.experiment(experiment)  # a bad value is named before anything starts
    _claim(experiment, out)
    ended: dict[Point, Outcome] = {}

    def note(point: Point, done: Outcome) -> None:
        ended[point] = done
        if report is not None:
            report(point, done)

    waiting = []
    for point in todo:
        if (done := outcome(point)) is None or done.get("exit_code") == InputError.exit_code:
            (point.folder / "failed.json").unlink(missing_ok=True)  # what was missing may be there now
            waiting.append(point)
        else:
            note(point, done)
    if stacked:
        work.train_stacked(experiment, waiting, note)
    elif ray is not None:
        work.train_on_ray(experiment, waiting, ray, note)
    else:
        work.train_in_processes(experiment, waiting, workers, note)
    rows = summarise(todo, ended)
    write_json(out / "summary.json", {"format": 2, "experiment": experiment.hash(), "rows": rows})
    write_text(out / "summary.csv", _csv(rows))
    return rows


def _claim(experiment: Experiment, out: Path) -> None:
    """Marks the folder as this experiment's sweep, or makes sure that it is."""
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
        raise InputError(f"{out}: cannot be made ({error.strerror}); choose another folder") from None
    except (ValueError, AttributeError):
        raise InputError(f"{mark}: is no sweep's mark; choose another folder") from None
    experiment.save(out / "config.yaml")
    write_json(mark, {"format": 1, "experiment": experiment.hash()})


def outcome(point: Point) -> Outcome | None:
    """What came of a run, or None where it has not ended."""
    failed = point.folder / "failed.json"
    if failed.is_file():
        result: Outcome = json.loads(failed.read_bytes())
        return result
    run = Run(point.folder)
    return {"summary": run.summary} if has_run(point.folder) and run.finished else None


def train_point(base: Experiment, point: Point) -> Outcome:
    """Trains one run of a sweep, or goes on with it; an error with a message becomes its outcome."""
    from fedgap.running.train_and_resume import resume, train

    try:
        run = resume(point.folder) if has_run(point.folder) else train(point.experiment(base), point.folder)
    except FedgapError as error:
        return fail(point, error)
    return {"summary": run.summary}


def fail(point: Point, error: FedgapError) -> Outcome:
    """Notes why a run cannot be, in ``failed.json``."""
    point.folder.mkdir(parents=True, exist_ok=True)
    failed = {"error": str(error), "exit_code": error.exit_code}
    write_json(point.folder / "failed.json", failed)
    return failed


def summarise(todo: Sequence[Point], ended: Mapping[Point, Outcome] | None = None) -> list[dict[str, Any]]:
    """One row for each combination of the keys other than ``seed``.

    ``ended`` are outcomes known already, also of runs that left nothing on disk; the others are read from there.

    A row has ``values`` (those keys and their values), ``runs`` (finished), ``failed`` and ``exit_code`` (of the first
    run that failed, where one did), and for each of :data:`MEASURES` ``mean`` and ``ci95``: the half-width of Student's
    95 % confidence interval over seeds (null for a single run).
    """
    groups: dict[tuple[tuple[str, str], ...], list[Outcome]] = {}
    for point in todo:
        key = tuple((k, v) for k, v in point.values.items() if k != "seed")
        done = (ended or {}).get(point) or outcome(point) or {"error": "has not run yet", "exit_code": None}
        groups.setdefault(key, []).append(done)
    rows = []
    for values, outcomes in groups.items():
        summaries = [o["summary"] for o in outcomes if "summary" in o]
        failed = next((o for o in outcomes if "error" in o), {})
        row: dict[str, Any] = {"values": dict(values), "runs": len(summaries), "failed": failed.get("error"),
                               "exit_code": failed.get("exit_code")}
        for measure, name in MEASURES.items():
            numbers = [s[name] for s in summaries if s.get(name) is not None]
            row[measure] = confidence(numbers) if len(numbers) == len(summaries) else confidence([])
        rows.append(row)
    return rows


def confidence(numbers: Sequence[float]) -> dict[str, float | None]:
    """Mean and half-width t₀.₉₇₅(n − 1)·s/√n of the 95 % confidence interval, s the sample standard deviation."""
    from scipy.special import stdtrit

    n = len(numbers)
    if n == 0:
        return {"mean": None, "ci95": None}
    mean = math.fsum(numbers) / n
    if n == 1:
        return {"mean": mean, "ci95": None}
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (n - 1))
    return {"mean": mean, "ci95": float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)}


def _csv(rows: list[dict[str, Any]]) -> str:
    flat = []
    for row in rows:
        columns = row["values"] | {key: row[key] for key in ("runs", "failed", "exit_code")}
        for measure in MEASURES:
            columns |= {measure: row[measure]["mean"], f"{measure}_ci95": row[measure]["ci95"]}
        flat.append(columns)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in flat for name in row)))
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
