"""``fedgap sweep``."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgap.cli.arguments import AsJson, ExperimentFile
from fedgap.cli.extras import require
from fedgap.cli.terminal import show
from fedgap.cli.train_command import resumable
from fedgap.errors import FedgapError, InfeasibleError, InputError

if TYPE_CHECKING:
    from fedgap.report.uncut_table import Sheet
    from fedgap.running.sweep import Outcome, Point


def sweep(
    experiment: ExperimentFile,
    grid: Annotated[list[str], typer.Argument(metavar="key=value,value", help="Values to combine, for example "
                                              "seed=0,1,2 budget.delay_s=100,150.")],
    out: Annotated[Path, typer.Option(help="The sweep's folder; the same command continues an interrupted sweep.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Local processes; by default one per core.")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Train on this Ray cluster instead (auto, or "
                                            "ray://host:port).")] = None,
    stacked: Annotated[bool, typer.Option("--stacked", help="Train the runs together in one computation; pays on a "
                                          "GPU.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train every combination of some keys' values, and summarise over seeds with 95 % confidence intervals."""
    require("train", "sweep")
    if ray is not None:
        require("ray", "--ray")
    from fedgap.config import Experiment
    from fedgap.running.sweep import parse_grid
    from fedgap.running.sweep import sweep as run_sweep

    if ray is not None and stacked:
        raise InputError("--stacked: cannot be combined with --ray, because it trains in this process")
    chosen, values = Experiment.load(experiment), parse_grid(grid)
    total, done = math.prod(map(len, values.values())), 0

    def report(point: Point, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        accuracy = outcome.get("summary", {}).get("test_accuracy")
        text = outcome.get("error") or (f"accuracy {accuracy:.2%}" if accuracy is not None else "done")
        typer.echo(f"{done}/{total} {' '.join(point.overrides)}: {text}", err=True)

    with resumable("sweep", experiment, *grid, out=out, workers=workers, ray=ray, stacked=stacked):
        rows = run_sweep(chosen, values, out, workers=workers or os.cpu_count() or 1, ray=ray, stacked=stacked,
                         report=report)
    if as_json:
        typer.echo(json.dumps({"folder": str(out), "rows": rows}))
    else:
        failed = dict.fromkeys(row["failed"] for row in rows if row["failed"])
        show(_table(rows), *failed, f"The runs are in {out / 'runs'}, the table in {out / 'summary.csv'}.")
    for kind in (InputError, FedgapError):
        for row in rows:
            if row["exit_code"] == kind.exit_code:
                raise kind(row["failed"])
    if not any(row["runs"] for row in rows):
        raise InfeasibleError(rows[0]["failed"])


def _table(rows: list[dict[str, Any]]) -> Sheet:
    from fedgap.report.uncut_table import Sheet

    values = {key: list(dict.fromkeys(row["values"][key] for row in rows)) for key in rows[0]["values"]}
    keys = [key for key, chosen in values.items() if len(chosen) > 1]
    short = [key.rpartition(".")[2] for key in keys]
    heads = [last if short.count(last) == 1 else key for key, last in zip(keys, short, strict=True)]
    same = ", ".join(f"{key} = {chosen[0]}" for key, chosen in values.items() if len(chosen) == 1)
    table = Sheet("Mean ± half of the 95 % confidence interval over seeds", *heads, "runs", "accuracy", "test loss",
                  "gap", "trained rounds", "energy J", "delay s", caption=f"All with {same}" if same else None)
    for row in rows:
        measures = [_cell(row[key]) for key in ("test_loss", "generalization_gap", "rounds_trained", "energy_j",
                                                "delay_s")]
        accuracy = _cell(row["test_accuracy"], 100, "{:.2f}", " %")
        table.add_row(*(row["values"][key] for key in keys), str(row["runs"]), accuracy, *measures)
    return table


def _cell(value: dict[str, float | None], scale: float = 1.0, form: str = "{:.4g}", unit: str = "") -> str:
    if value["mean"] is None:
        return "–"
    text, half = form.format(scale * value["mean"]), value["ci95"]
    if half is not None:
        half = 0.0 if half < 1e-12 * abs(value["mean"]) else half  # equal but for the last digit of a sum
        text += f" ± {form.format(scale * half)}"
    return text + unit
