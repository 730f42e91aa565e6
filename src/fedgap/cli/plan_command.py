"""The command ``fedgap plan``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedgap.cli.arguments import (
    AsJson,
    ObjectiveOption,
    Overrides,
    Picture,
    Quiet,
    ScenarioFile,
    SchemeOption,
    SelectionOption,
    SolverOption,
)
from fedgap.cli.terminal import INTERRUPTED, planning, show
from fedgap.errors import InfeasibleError, InputError
from fedgap.registry import OBJECTIVES, SCHEMES, SELECTION

if TYPE_CHECKING:
    from fedgap.config import Scenario
    from fedgap.planning import Plan
    from fedgap.planning.alternating import AlternatingOptions

_ALGORITHM = "With --solver alternating"
_P5 = ("printed", "relaxed", "exact")
"""Values of --selection that say how Algorithm 1 solves problem P5. Any other value is a rule that selects clients."""


def plan(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    solver: SolverOption = "exact",
    scheme: SchemeOption = None,
    objective: ObjectiveOption = None,
    selection: SelectionOption = None,
    horizon: Annotated[
        bool, typer.Option("--horizon", help="Also choose the number of rounds, up to that of the scenario.")
    ] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan to this file, as JSON.", show_default=False)
    ] = None,
    picture: Picture = None,
    quiet: Quiet = False,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of outer iterations (50).", rich_help_panel=_ALGORITHM)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop when the cost falls by less than this share (1e-5).",
                     rich_help_panel=_ALGORITHM),
    ] = None,
    tie_break: Annotated[
        Literal["centre", "slack"] | None,
        typer.Option(help="Which of several solutions of P2.1 to take: the solver's central one, or the one with the "
                          "most slack.",
                     rich_help_panel=_ALGORITHM),
    ] = None,
    inner_stop: Annotated[
        Literal["printed", "moves"] | None,
        typer.Option(help="When to stop solving P2.1: as printed in the paper, or when the powers no longer "
                          "change.", rich_help_panel=_ALGORITHM),
    ] = None,
    start: Annotated[
        Literal["printed", "feasible"] | None,
        typer.Option(help="Start with all clients, or with as many as fit the budgets.", rich_help_panel=_ALGORITHM),
    ] = None,
) -> None:
    """Decide for every round who takes part, how much each client prunes, and at which power and clock."""
    from fedgap.config import Scenario
    from fedgap.planning import plan as solve
    from fedgap.report.figures import check_picture

    check_picture(picture, "--picture")
    if scheme is not None:
        SCHEMES.check(scheme, "--scheme")
    if objective is not None:
        OBJECTIVES.check(objective, "--objective")
    loaded = Scenario.load(scenario, overrides or [])
    rule: dict[str, Any] = {} if selection is None or selection in _P5 else {"selection": selection}
    if rule:
        SELECTION.check(rule["selection"], "--selection")
    options = alternating_options(
        solver, iterations=iterations, threshold=threshold, tie_break=tie_break, inner_stop=inner_stop, start=start,
        selection=None if rule else selection,
    )
    with planning(loaded.constants().alpha, quiet=quiet or as_json) as progress:
        answer = solve(loaded, scheme=scheme, objective=objective, solver=solver, horizon=horizon, options=options,
                       progress=progress, **rule)
    if out is not None:
        write_plan(answer, out)
    if not quiet:
        warn(loaded, answer)
    if as_json:
        typer.echo(json.dumps(answer.to_dict()))
    if answer.feasible and (picture is not None or not (as_json or quiet)):
        from fedgap.analysis import plan_report

        report = plan_report(loaded, answer)
        if picture is not None:
            report.plot(picture)
        if not (as_json or quiet):
            places = [f"The {what} is in {path}." for what, path in (("plan", out), ("picture", picture)) if path]
            show(report, *places)
    if answer.status == "infeasible":
        raise InfeasibleError(answer.reason)
    if answer.reason.startswith("interrupted"):
        typer.echo(f"fedgap: {answer.reason}", err=True)
        raise typer.Exit(INTERRUPTED)


def warn(scenario: Scenario, answer: Plan) -> None:
    """Print warnings about a plan on stderr."""
    from fedgap.analysis.plan_warnings import plan_warnings

    for line in plan_warnings(scenario, answer):
        typer.echo(f"warning: {line}", err=True)


def alternating_options(solver: str, **values: Any) -> AlternatingOptions | None:
    """The options of Algorithm 1. Raises an InputError if one is used with another solver."""
    chosen = {key: value for key, value in values.items() if value is not None}
    if solver != "alternating":
        if chosen:
            raise InputError(f"--{next(iter(chosen)).replace('_', '-')}: can only be used with --solver alternating")
        return None
    if not math.isfinite(chosen.get("threshold", 0.0)):
        raise InputError(f"--threshold: must be a finite share, for example 1e-5; got {chosen['threshold']}")
    from fedgap.planning.alternating import AlternatingOptions

    return AlternatingOptions(**chosen)


def write_plan(answer: Plan, path: Path) -> None:
    """Write a plan. Raises an InputError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        answer.save(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
