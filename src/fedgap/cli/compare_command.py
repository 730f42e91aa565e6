"""``fedgap compare`` and ``fedgap frontier``: schemes side by side, and what other budgets would buy."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.arguments import AsJson, Overrides, Picture, ScenarioFile, SchemesOption, SolverOption
from fedgap.cli.terminal import INTERRUPTED, planning, show, steps
from fedgap.errors import InfeasibleError, InputError
from fedgap.registry import SCHEMES


def compare(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    solver: SolverOption = "exact",
    schemes: SchemesOption = None,
    as_json: AsJson = False,
    picture: Picture = None,
) -> None:
    """Plan with several schemes and show them side by side, with θ by terms."""
    from fedgap.analysis import compare as plan_all
    from fedgap.config import Scenario
    from fedgap.report.figures import check_picture

    loaded = Scenario.load(scenario, overrides or [])
    check_picture(picture, "--picture")
    names = None if schemes is None else [name.strip() for name in schemes.split(",")]
    for name in names or []:
        SCHEMES.check(name, "--schemes")
    with planning(loaded.constants().alpha, quiet=as_json) as progress:
        comparison = plan_all(loaded, names, solver=solver, progress=progress)
    if picture is not None and comparison.plans:
        comparison.plot(picture)
    if as_json:
        typer.echo(json.dumps(comparison.to_dict()))
    elif comparison.plans:
        show(comparison)
        _name_picture(picture)
    _exit_if(comparison.interrupted)
    if all(answer.status == "infeasible" for answer in comparison):
        raise InfeasibleError(comparison.plans[0].reason)


def frontier(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    points: Annotated[int, typer.Option(min=2, max=50, help="Values of each budget; all pairs are planned.")] = 6,
    least: Annotated[float | None, typer.Option(help="The grid's least multiple of the scenario's budgets.",
                                                show_default=False)] = None,
    most: Annotated[float | None, typer.Option(help="The largest multiple; both are given, or none.",
                                               show_default=False)] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout instead of a table.")] = False,
    picture: Picture = None,
) -> None:
    """Show what other budgets would buy: θ and the forecast accuracy over a grid of both.

    Without --least and --most the grid goes from the least budgets that carry a plan to where more hardly helps.
    """
    from fedgap.analysis import budget_factors
    from fedgap.analysis import frontier as plan_grid
    from fedgap.config import Scenario
    from fedgap.report.figures import check_picture

    if as_json and as_csv:
        raise InputError("--csv: cannot be combined with --json")
    if (least is None) != (most is None):
        raise InputError("--least: comes together with --most")
    if least is not None and most is not None and not 0.0 < least < most < math.inf:
        raise InputError(f"--least: must be above 0 and below --most; got {least:g} and {most:g}")
    loaded = Scenario.load(scenario, overrides or [])
    check_picture(picture, "--picture")
    with steps("planning", points**2) as step:
        factors = None if least is None or most is None else budget_factors(points, least, most)
        result = plan_grid(loaded, points=points, factors=factors, on_point=lambda point: step())
    if picture is not None and result.feasible:
        result.plot(picture)
    rows = [point.to_dict() for point in result]
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
    elif as_csv and rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif rows:
        show(result)
        _name_picture(picture)
    _exit_if(result.interrupted)
    if not result.feasible:
        raise InfeasibleError(result.reason)


def _name_picture(picture: Path | None) -> None:
    if picture is not None:
        typer.echo(f"The picture is in {picture}.")


def _exit_if(interrupted: bool) -> None:
    if interrupted:
        typer.echo("fedgap: interrupted; this is what was planned so far", err=True)
        raise typer.Exit(INTERRUPTED)
