"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Solver = Literal["exact", "alternating"]
Scheme = Literal["proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency",
                 "measured"]

ScenarioFile = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="A scenario's file, or a preset: paper-mnist, paper-cifar10, city."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key.path=value",
        help="Keys to change, for example budget.delay_s=120 clients\\[3].phi=4.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No tables and no progress.")]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw it here: .png, .pdf or .svg.", show_default=False),
]
SolverOption = Annotated[
    Solver, typer.Option("--solver", help="exact (certified), or alternating (the paper's Algorithm 1).")
]
