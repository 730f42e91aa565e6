"""The command ``fedgap sweep``."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgap.cli.arguments import AsJson, ExperimentFile
from fedgap.cli.extras import require
from fedgap.cli.terminal import show
from fedgap.cli.train_command import resumable
from fedgap.errors import FedgapError, InfeasibleError, InputError

if TYPE_CHECKING:
    from fedgap.running.sweep import SweepRun
    from fedgap.running.sweep_result import Outcome


def sweep(
    experiment: ExperimentFile,
    grid: Annotated[list[str], typer.Argument(metavar="key=value,value", help="Values to combine, for example "
                                              "seed=0,1,2 budget.delay_s=100,150.")],
    out: Annotated[Path, typer.Option(help="The sweep's folder. The same command resumes an interrupted sweep.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Number of local processes. Default: one per "
                                                            "core.")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Train on this Ray cluster instead (auto, or "
                                            "ray://host:port).")] = None,
    stacked: Annotated[bool, typer.Option("--stacked", help="Train the runs together in one computation; faster on a "
                                          "GPU.")] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the accuracies with their intervals "
                                                 "(.png, .pdf, .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Train every combination of the given values, and summarise over seeds with 95 % confidence intervals."""
    require("train", "sweep")
    if ray is not None:
        require("ray", "--ray")
    from fedgap.config import Experiment
    from fedgap.report.figures import check_picture
    from fedgap.running.sweep import parse_grid
    from fedgap.running.sweep import sweep as run_sweep

    check_picture(picture, "--picture")
    if ray is not None and stacked:
        raise InputError("--stacked: cannot be combined with --ray, because it trains in this process")
    chosen, values = Experiment.load(experiment), parse_grid(grid)
    total, done = math.prod(map(len, values.values())), 0

    def report(run: SweepRun, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        accuracy = outcome.get("summary", {}).get("test_accuracy")
        text = outcome.get("error") or (f"accuracy {accuracy:.2%}" if accuracy is not None else "done")
        typer.echo(f"{done}/{total} {' '.join(run.overrides)}: {text}", err=True)

    with resumable("sweep", experiment, *grid, out=out, workers=workers, ray=ray, stacked=stacked, picture=picture):
        result = run_sweep(chosen, values, out, workers=workers or os.cpu_count() or 1, ray=ray, stacked=stacked,
                           report=report)
    if picture is not None:
        result.plot(picture)
    if as_json:
        typer.echo(json.dumps({"folder": str(out), **result.to_dict()}))
    else:
        failed = dict.fromkeys(row.failed for row in result.rows if row.failed)
        drawn = "" if picture is None else f", the picture in {picture}"
        show(result, *failed, f"The runs are in {out / 'runs'}, the table in {out / 'summary.csv'}{drawn}.")
    for kind in (InputError, FedgapError):
        for row in result.rows:
            if row.exit_code == kind.exit_code:
                raise kind(row.failed or "")
    if not any(row.runs for row in result.rows):
        raise InfeasibleError(result.rows[0].failed or "")
