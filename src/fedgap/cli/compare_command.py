"""``fedgap compare`` and ``fedgap frontier``: schemes side by side, and what other budgets would buy."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedgap.cli.arguments import AsJson, Overrides, Picture, ScenarioFile, SolverOption
from fedgap.cli.terminal import INTERRUPTED, planning, show, steps
from fedgap.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from fedgap.planning import Plan

T = TypeVar("T")


def compare(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    solver: SolverOption = "exact",
    as_json: AsJson = False,
    picture: Picture = None,
) -> None:
    """Plan with all six schemes and show them side by side, with θ by terms."""
    from fedgap.cli import plan_tables, planning_pictures
    from fedgap.config import Scenario
    from fedgap.planning import compare as solve
    from fedgap.planning.problem import Problem

    loaded = Scenario.load(scenario, overrides or [])
    problem = Problem.of(loaded)
    planning_pictures.check(picture)
    with planning(problem.constants.alpha, quiet=as_json) as progress:
        answers, interrupted = until_interrupted(solve(loaded, solver=solver, progress=progress), lambda plan: plan)
    if picture is not None and answers:
        planning_pictures.draw_comparison(problem, answers, picture)
    if as_json:
        typer.echo(json.dumps({"rounds": problem.rounds, "plans": [answer.to_dict() for answer in answers]}))
    elif answers:
        reasons = [f"{answer.scheme}: {answer.reason}" for answer in answers if answer.reason]
        show(plan_tables.comparison_table(problem, answers), *reasons)
        _wrote(picture)
    _end(interrupted)
    if all(answer.status == "infeasible" for answer in answers):
        raise InfeasibleError(answers[0].reason)


def frontier(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    points: Annotated[int, typer.Option(min=2, max=50, help="Values of each budget; all pairs are planned.")] = 6,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout instead of a table.")] = False,
    picture: Picture = None,
) -> None:
    """Show what other budgets would buy: θ over a grid of both, from 0.6 to 2 times the scenario's."""
    from fedgap.cli import fronts, planning_pictures
    from fedgap.config import Scenario
    from fedgap.planning import frontier as solve

    if as_json and as_csv:
        raise InputError("--csv: not together with --json")
    loaded = Scenario.load(scenario, overrides or [])
    planning_pictures.check(picture)
    factors = fronts.factors(points)
    with steps("planning", len(factors) ** 2) as step:
        points_so_far = (fronts.Point(*answer) for answer in solve(loaded, factors=factors))
        found, interrupted = until_interrupted(points_so_far, lambda point: point.plan, step)
    own = (loaded.budget.energy_j, loaded.budget.delay_s)
    rows = [point.to_dict() | {"on_front": on} for point, on in zip(found, fronts.efficient(found), strict=True)]
    if picture is not None and found:
        planning_pictures.draw_frontier(found, own, picture)
    if as_json:
        typer.echo(json.dumps({"points": rows}))
    elif as_csv and rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif found:
        show(fronts.front_table(found, own))
        _wrote(picture)
    _end(interrupted)
    if not any(point.plan.status != "infeasible" for point in found):
        raise InfeasibleError(found[-1].plan.reason)


def until_interrupted(
    answers: Iterable[T], plan_of: Callable[[T], Plan], step: Callable[[], None] = lambda: None
) -> tuple[list[T], bool]:
    """All answers, or those before Ctrl-C, and whether it was pressed. A plan cut short is not compared with others."""
    found: list[T] = []
    try:
        for answer in answers:
            if plan_of(answer).reason.startswith("interrupted"):
                return found, True
            found.append(answer)
            step()
    except KeyboardInterrupt:
        return found, True
    return found, False


def _wrote(picture: Path | None) -> None:
    if picture is not None:
        typer.echo(f"The picture is in {picture}.")


def _end(interrupted: bool) -> None:
    if interrupted:
        typer.echo("fedgap: interrupted; this is what was planned so far", err=True)
        raise typer.Exit(INTERRUPTED)
