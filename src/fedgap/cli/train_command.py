"""The commands ``fedgap train``, ``fedgap resume`` and ``fedgap partition``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgap.cli.arguments import AsJson, ExperimentFile, Picture
from fedgap.cli.extras import require
from fedgap.cli.plan_command import warn
from fedgap.cli.terminal import INTERRUPTED, downloads, planning, show
from fedgap.errors import InfeasibleError, InputError, RunFailedError
from fedgap.files import disk_error, hold_folder
from fedgap.registry import allowed

if TYPE_CHECKING:
    from fedgap.running.run import Run

Overrides = Annotated[list[str] | None, typer.Argument(
    metavar="key.path=value", help="Keys to change, for example seed=1 budget.delay_s=120 scheme=no_pruning.",
    show_default=False)]


def train(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; it must not hold a run already. Default: a new "
                                             "folder in runs/.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Use this plan; it must have been made for the experiment's "
                                                   "scenario.")] = None,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Plan and write the run's folder with its data, "
                                               "but do not train. On another machine: python -m fedgap.running.run "
                                               "DIR.")] = False,
    as_json: AsJson = False,
) -> None:
    """Plan and train an experiment, and write everything into the run's folder."""
    require("train", "train")
    from fedgap.config import Experiment
    from fedgap.learning.engine import check_device
    from fedgap.planning.plan import Plan
    from fedgap.running.live_progress import show as live
    from fedgap.running.prepare import divide, other_sizes, prepare
    from fedgap.running.run import execute
    from fedgap.running.train_and_resume import free_folder, write_run

    chosen = Experiment.load(experiment, overrides or [])
    folder = free_folder(out, chosen)
    if not prepare_only:
        check_device(chosen.engine.device)
    given = Plan.load(plan) if plan else None
    with hold_folder(folder):
        with downloads() as progress:
            divided = divide(chosen, progress=progress)
        if warning := other_sizes(chosen, divided[2], divided[0]):
            typer.echo(warning, err=True)
        with planning(divided[2].constants().alpha, quiet=as_json) as steps:
            try:
                ready = prepare(chosen, given, divided=divided, planning=steps)
            except InfeasibleError as error:
                if as_json:
                    typer.echo(json.dumps({"status": "infeasible", "reason": str(error)}))
                raise
        warn(ready.scenario, ready.plan)
        write_run(ready, folder, copy_data=prepare_only)
        if prepare_only:
            typer.echo(f"{folder} is ready: python -m fedgap.running.run {folder}")
            return
        with resumable("resume", folder), live() as on_events:
            run = execute([folder], dataset=ready.dataset, on_events=on_events)[0]
    _report(run, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run from its last checkpoint; the result is the same, bit for bit."""
    require("train", "resume")
    from fedgap.running.live_progress import show as live
    from fedgap.running.run import execute

    with resumable("resume", folder), live() as on_events:
        run = execute([folder], on_events=on_events)[0]
    _report(run, as_json)


def partition(
    experiment: ExperimentFile,
    overrides: Annotated[list[str] | None, typer.Argument(
        metavar="key.path=value,value", help="Keys to change; several values make several panels, for example "
        "partition.concentration=1,5,10,15.", show_default=False)] = None,
    picture: Picture = None,
    scenario: Annotated[Path | None, typer.Option(help="Write the scenario for planning, with the label histograms of "
                                                       "this partition, to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the label histogram and the generalization statement φ of each client (the paper's Fig. 3)."""
    require("train", "partition")
    from fedgap.config import Experiment
    from fedgap.report.figures import check_picture
    from fedgap.running.partition_report import PartitionPanel, PartitionReport
    from fedgap.running.prepare import divide
    from fedgap.running.sweep import parse_grid, runs_of

    base = Experiment.load(experiment)
    check_picture(picture, "--picture")
    chosen = runs_of(parse_grid(overrides or []), Path())
    if scenario is not None and len(chosen) > 1:
        raise InputError("--scenario: can only be used with a single value for every key; several values give several "
                         "scenarios")
    panels = []
    for point in chosen:
        with downloads() as progress:
            _, parts, planned = divide(point.experiment(base), progress=progress)
        panels.append(PartitionPanel(", ".join(point.overrides) or experiment, point.overrides, parts, planned))
        if scenario is not None:
            planned.save(scenario)
    report = PartitionReport(panels)
    if picture is not None:
        report.plot(picture)
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    show(report, *(f"Written: {path}" for path in (picture, scenario) if path is not None))


@contextmanager
def resumable(*words: object, **options: object) -> Iterator[None]:
    """Turn an interruption into exit code 130 and a line with the command that resumes the run, including its options.

    A full disk ends with such a line as well."""
    option_words = [part for name, value in options.items() if value
                    for part in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]
    option_words += [word for reference in allowed() for word in ("--allow", reference)]
    command = shlex.join(["fedgap", *map(str, words), *option_words])
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"fedgap: interrupted; everything so far is on disk. Continue with: {command}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        problem = disk_error(error)
        if problem is None:
            raise
        raise InputError(f"{problem}; free some space or make it writable, then continue with: {command}") from None


def _report(run: Run, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"folder": str(run.folder), **run.summary}))
    else:
        show(run)
    if run.failure:
        raise RunFailedError(run.failure)
