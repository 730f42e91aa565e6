"""``fedgap studio``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.extras import require
from fedgap.errors import InputError


def studio(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes any port that is free.")] = 8765,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the page.")] = True,
    runs: Annotated[Path, typer.Option(help="The folder of runs: what the page shows, and where it starts new ones.")
                    ] = Path("runs"),
) -> None:
    """Plan, run and compare in the browser, on this machine only. Ctrl-C ends it; runs continue."""
    require("web", "studio")
    if runs.exists() and not runs.is_dir():
        raise InputError(f"--runs: {runs} is a file; name a folder")
    from fedgap.web.server import serve

    serve(runs, port=port, browser=browser, say=lambda address: typer.echo(f"studio: {address}"))
