"""``fedgap train``, ``fedgap resume`` and ``fedgap partition``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgap.cli.arguments import AsJson, Picture
from fedgap.cli.number_format import number, three
from fedgap.cli.terminal import INTERRUPTED, disk_error, downloads, planning, show

if TYPE_CHECKING:
    from fedgap.running.run import Run

ExperimentFile = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="An experiment's file, or a preset: embedded, mnist, cifar10.")
]
Overrides = Annotated[list[str] | None, typer.Argument(
    metavar="key.path=value", help="Keys to change, for example seed=1 budget.delay_s=120 scheme=no_pruning.",
    show_default=False)]


def train(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; it must not hold a run already. Without it, a "
                                             "new folder under runs/.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan made before, for this experiment's scenario.")] = None,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Plan and write the run's folder, data "
                                               "included, to be executed elsewhere: python -m fedgap.running.run "
                                               "DIR.")] = False,
    as_json: AsJson = False,
) -> None:
    """Plan and train an experiment; everything about the run is in its folder."""
    from fedgap.config import Experiment
    from fedgap.errors import InfeasibleError
    from fedgap.learning.engine import check_device
    from fedgap.planning.plan import Plan
    from fedgap.running.live_progress import show as live
    from fedgap.running.prepare import divide, prepare
    from fedgap.running.run import execute
    from fedgap.running.train_and_resume import free_folder, write_run

    chosen = Experiment.load(experiment, overrides or [])
    folder = free_folder(out, chosen)
    if not prepare_only:
        check_device(chosen.engine.device)
    given = Plan.load(plan) if plan else None
    with downloads() as progress:
        divided = divide(chosen, progress=progress)
    with planning(divided[2].constants().alpha, quiet=as_json) as steps:
        try:
            ready = prepare(chosen, given, divided=divided, planning=steps)
        except InfeasibleError as error:
            if as_json:
                typer.echo(json.dumps({"status": "infeasible", "reason": str(error)}))
            raise
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
    """Go on with an interrupted run from its last checkpoint; the end is the same, bit for bit."""
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
    scenario: Annotated[Path | None, typer.Option(help="Where to write the scenario that is planned with, the real "
                                                  "label histograms in it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who has what: each client's label histogram and generalization statement (the paper's Fig. 3)."""
    from fedgap.cli.planning_pictures import check
    from fedgap.cli.uncut_table import Sheet
    from fedgap.config import Experiment
    from fedgap.errors import InputError
    from fedgap.running.partition_picture import draw_partitions
    from fedgap.running.prepare import divide
    from fedgap.running.sweep import parse_grid, runs_of

    base = Experiment.load(experiment)
    check(picture)
    panels, tables, rows = [], [], []
    chosen = runs_of(parse_grid(overrides or []), Path())
    if scenario is not None and len(chosen) > 1:
        raise InputError("--scenario: needs a single value for every key; there is one scenario for each")
    for point in chosen:
        with downloads() as progress:
            _, parts, planned = divide(point.experiment(base), progress=progress)
        title, phi = ", ".join(point.overrides) or experiment, planned.phi()
        panels.append((title, parts.label_counts, phi))
        rows.append({"overrides": list(point.overrides), "scenario_hash": planned.hash(), "phi": phi.tolist(),
                     "label_counts": parts.label_counts.tolist(), "target_counts": parts.target_counts.tolist()})
        table = Sheet(title, "client", "samples", *map(str, range(parts.label_counts.shape[1])), "φ")
        for name, counts, value in zip(planned.names, parts.label_counts, phi, strict=True):
            table.add_row(name, str(counts.sum()), *map(str, counts), number(value))
        tables.append(table)
        if scenario is not None:
            planned.save(scenario)
    if picture is not None:
        draw_partitions(panels, picture)
    if as_json:
        typer.echo(json.dumps({"panels": rows}))
        return
    show(*tables, *(f"Written: {path}" for path in (picture, scenario) if path is not None))


@contextmanager
def resumable(*words: object, **options: object) -> Iterator[None]:
    """Turns an interruption into exit code 130 and a line that says how to go on, by this command with those of its
    options that were given; a full disk says so likewise."""
    from fedgap.errors import InputError

    given = [part for name, value in options.items() if value
             for part in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]
    command = shlex.join(["fedgap", *map(str, words), *given])
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"fedgap: interrupted; everything so far is on disk. Go on with: {command}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        problem = disk_error(error)
        if problem is None:
            raise
        raise InputError(f"{problem}; make room, or it writable, and go on with: {command}") from None


def _report(run: Run, as_json: bool) -> None:
    summary = run.summary
    if as_json:
        typer.echo(json.dumps({"folder": str(run.folder), **summary}))
        return
    from fedgap.cli.uncut_table import Sheet

    job = run.job
    table = Sheet(f"{summary['data']}, {summary['model']}, {summary['scheme']}, seed {summary['seed']}", "", "value",
                  left=["value"])

    def row(name: str, value: Any, text: str = "{}") -> None:
        table.add_row(name, "–" if value is None else text.format(value))

    row("rounds", f"{summary['rounds']} of {summary['rounds_planned']}: {summary['ended']}")
    row("test accuracy", summary["test_accuracy"], "{:.2%}")
    row("test loss", summary["test_loss"], "{:.4f}")
    row("mini-batch loss", summary["train_loss"], "{:.4f}")
    row("generalization gap", summary["generalization_gap"], "{:+.4f}")
    row("energy", f"{three(summary['energy_j'])} J of {three(job.energy_budget_j)}")
    row("delay", f"{three(summary['delay_s'])} s of {three(job.delay_budget_s)}")
    row("weights kept", f"{summary['kept_weights']:,} of {summary['weights']:,}")
    for key in ("dropped", "late", "rejected"):
        count = sum(client[key] for client in summary["clients"])
        if count:
            row(f"{key} uploads", count)
    show(table, *_remarks(run), f"Everything is in {run.folder}; the model is {run.folder / 'model.safetensors'}.")


def _remarks(run: Run) -> list[str]:
    """What one should know of a run before believing its numbers: a loss that is not finite, another model's costs."""
    found, summary = [], run.summary
    if summary["test_accuracy"] is not None and summary["test_loss"] is None:
        found.append("The test loss is not finite; likely training diverged: try a smaller scenario.learning.rate.")
    own, bits = 32 * int(summary["weights"]), run.job.gradient_bits.tolist()
    if not min(bits) / 1.1 <= own <= max(bits) * 1.1:
        found.append(f"Joules and seconds are those of a gradient of {max(bits):,.0f} bits (the scenario's), this "
                     f"model's has {own:,}: scenario.model.gradient_bits={own}, and flops_per_sample likewise, charge "
                     "its own.")
    return found
