"""The command ``fedgap studio``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.extras import require
from fedgap.errors import InputError


def studio(
    name: Annotated[str | None, typer.Argument(
        metavar="SCENARIO|EXPERIMENT|RUNS", show_default=False,
        help="What to open: a preset, a scenario's or an experiment's file, or a folder of runs.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free port.")] = 8765,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the page.")] = True,
    runs: Annotated[Path | None, typer.Option(
        help="Folder with the runs to show, and for new runs. Default: runs.")] = None,
) -> None:
    """Plan, train and compare in the browser, on this machine only. Ctrl-C ends the studio; its runs continue."""
    require("web", "studio")
    if runs is not None and runs.exists() and not runs.is_dir():
        raise InputError(f"--runs: {runs} must be a folder; it is a file")
    from fedgap.web.opened import open_named
    from fedgap.web.server import serve

    opened = open_named(name)
    if runs is not None and opened.runs is not None:
        raise InputError(f"--runs: leave this option out, because {name} is already a folder of runs")
    serve(runs or opened.runs or Path("runs"), opened, port=port, browser=browser,
          say=lambda address: typer.echo(f"studio: {address}"))
