"""``fedgap compare`` and ``fedgap frontier``: compare schemes, and compare budgets."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.arguments import AsJson, Overrides, Picture, ScenarioFile, SchemesOption, SolverOption
from fedgap.cli.extras import require
from fedgap.cli.terminal import INTERRUPTED, planning, show, steps
from fedgap.cli.train_command import resumable
from fedgap.errors import InfeasibleError, InputError
from fedgap.registry import RULES, SCHEMES


def compare(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    solver: SolverOption = "exact",
    schemes: SchemesOption = None,
    train: Annotated[bool, typer.Option("--train", help="Train as well; SCENARIO is then an experiment.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="With --train: number of seeds for each scheme.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="With --train: folder for the runs. The same command "
                                             "resumes interrupted runs.", show_default=False)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With --train: number of local processes. Default: one per "
                                                "core.")] = None,
    as_json: AsJson = False,
    picture: Picture = None,
) -> None:
    """Plan with several schemes and published rules, and show them side by side; with --train, train them."""
    from fedgap.analysis import compare as plan_all
    from fedgap.config import Scenario
    from fedgap.report.figures import check_picture

    check_picture(picture, "--picture")
    names = _names(schemes)
    if train or out is not None:
        _train(scenario, overrides or [], names, train=train, seeds=seeds, out=out, workers=workers, as_json=as_json,
               picture=picture)
        return
    loaded = Scenario.load(scenario, overrides or [])
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


def _names(schemes: str | None) -> list[str] | None:
    """The requested schemes and rules, or None for those of the paper."""
    if schemes is None:
        return None
    if schemes.strip() == "all":
        return [*SCHEMES.names(), *RULES.names()]
    names = [name.strip() for name in schemes.split(",")]
    for name in names:
        SCHEMES.check(name, "--schemes", RULES.names())
        if names.count(name) > 1:
            raise InputError(f"--schemes: each name can be given once; {name} is given {names.count(name)} times")
    return names


def _train(experiment: str, overrides: list[str], names: list[str] | None, *, train: bool, seeds: int, out: Path | None,
           workers: int | None, as_json: bool, picture: Path | None) -> None:
    """Train an experiment with every scheme and rule, and compare the accuracies."""
    if not train:
        raise InputError("--out: can only be used together with --train")
    if out is None:
        raise InputError("--out: missing; --train needs a folder for its runs")
    require("train", "compare --train")
    from fedgap.config import Experiment
    from fedgap.planning import PAPER_SCHEMES
    from fedgap.running.trained_comparison import train_and_compare

    wanted = list(PAPER_SCHEMES) if names is None else names
    loaded = Experiment.load(experiment, overrides)
    with (resumable("compare", experiment, *overrides, schemes=",".join(wanted), seeds=seeds, out=out, workers=workers,
                    picture=picture, train=True),
          steps("training", len(wanted) * seeds) as step):
        compared = train_and_compare(loaded, wanted, out, seeds=seeds, workers=workers or os.cpu_count() or 1,
                                     report=lambda run, outcome: step())
    if picture is not None:
        compared.plot(picture)
    if as_json:
        typer.echo(json.dumps(compared.to_dict()))
        return
    show(compared)
    _name_picture(picture)


def frontier(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    points: Annotated[int, typer.Option(min=2, max=50, help="Number of values of each budget; all pairs are "
                                                            "planned.")] = 6,
    least: Annotated[float | None, typer.Option(help="Smallest multiple of the scenario's budgets in the grid.",
                                                show_default=False)] = None,
    most: Annotated[float | None, typer.Option(help="Largest multiple; give both --least and --most, or neither.",
                                               show_default=False)] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of tables.")] = False,
    picture: Picture = None,
) -> None:
    """Show what other budgets would achieve: θ and the forecast accuracy over a grid of both budgets.

    Without --least and --most the grid goes from the smallest budgets that allow a plan to those where more hardly
    helps.
    """
    from fedgap.analysis import budget_factors
    from fedgap.analysis import frontier as plan_grid
    from fedgap.config import Scenario
    from fedgap.report.figures import check_picture

    if as_json and as_csv:
        raise InputError("--csv: cannot be combined with --json")
    if (least is None) != (most is None):
        raise InputError("--least: can only be used together with --most")
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
        typer.echo("fedgap: interrupted; the tables show what was planned so far", err=True)
        raise typer.Exit(INTERRUPTED)
