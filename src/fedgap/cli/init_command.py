"""The commands ``fedgap init`` and ``fedgap schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for the files; it is created if needed.")],
) -> None:
    """Write a commented scenario, its fleet and an experiment to start from."""
    from fedgap.config import write_template

    for path in write_template(folder):
        typer.echo(f"wrote {path}")
    typer.echo(f"next: fedgap plan {folder / 'scenario.yaml'}")


def schema(
    kind: Annotated[Literal["scenario", "experiment"], typer.Argument(help="The kind of file.")],
) -> None:
    """Print the JSON Schema of a file, for editors and other programs."""
    from fedgap.config import schema as schemas

    typer.echo(json.dumps(schemas()[kind], indent=2))
