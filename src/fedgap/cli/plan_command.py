"""``fedgap plan``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedgap.cli import terminal
from fedgap.cli.arguments import AsJson, Overrides, Quiet, ScenarioFile, Scheme, SolverOption
from fedgap.cli.terminal import INTERRUPTED, planning
from fedgap.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedgap.config import Scenario
    from fedgap.planning import Plan
    from fedgap.planning.alternating import AlternatingOptions
    from fedgap.planning.problem import Problem

_ALGORITHM = "With --solver alternating"


def plan(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    solver: SolverOption = "exact",
    scheme: Annotated[Scheme, typer.Option(help="What may be decided: all, or as in a baseline.")] = "proposed",
    horizon: Annotated[
        bool, typer.Option("--horizon", help="Choose the number of rounds too, up to the scenario's.")
    ] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan here, as JSON.", show_default=False)
    ] = None,
    quiet: Quiet = False,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Outer iterations at most (50).", rich_help_panel=_ALGORITHM)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.0, help="End when the cost falls by less than this share (1e-5).",
                     rich_help_panel=_ALGORITHM),
    ] = None,
    tie_break: Annotated[
        Literal["centre", "slack"] | None,
        typer.Option(help="Which solution of P2.1: the solver's centre, or one of most slack.",
                     rich_help_panel=_ALGORITHM),
    ] = None,
    inner_stop: Annotated[
        Literal["printed", "moves"] | None,
        typer.Option(help="When P2.1 is solved: as printed, or when powers stop moving.", rich_help_panel=_ALGORITHM),
    ] = None,
    start: Annotated[
        Literal["printed", "feasible"] | None,
        typer.Option(help="Start with everybody, or with the most that fit the budgets.", rich_help_panel=_ALGORITHM),
    ] = None,
    selection: Annotated[
        Literal["printed", "relaxed", "exact"] | None,
        typer.Option(help="P5: a and μ by turns, relaxed and rounded, or exactly.", rich_help_panel=_ALGORITHM),
    ] = None,
) -> None:
    """Decide who takes part, how much each prunes, at which power and clock, in every round."""
    from fedgap.config import Scenario
    from fedgap.planning import plan as solve
    from fedgap.planning.problem import Problem

    loaded = Scenario.load(scenario, overrides or [])
    options = alternating_options(
        solver, iterations=iterations, threshold=threshold, tie_break=tie_break, inner_stop=inner_stop, start=start,
        selection=selection,
    )
    problem = Problem.of(loaded)
    with planning(problem.constants.alpha, quiet=quiet or as_json) as progress:
        answer = solve(loaded, scheme=scheme, solver=solver, horizon=horizon, options=options, progress=progress)
    if out is not None:
        write_plan(answer, out)
    if as_json:
        typer.echo(json.dumps(answer.to_dict()))
    elif not quiet and answer.feasible:
        show(problem, answer)
        if advice := pooling_advice(loaded, scheme):
            terminal.show(advice)
        if out is not None:
            typer.echo(f"\nThe plan is in {out}.")
    if answer.status == "infeasible":
        raise InfeasibleError(answer.reason)
    if answer.reason.startswith("interrupted"):
        typer.echo(f"fedgap: {answer.reason}", err=True)
        raise typer.Exit(INTERRUPTED)


def alternating_options(solver: str, **given: Any) -> AlternatingOptions | None:
    """Algorithm 1's options; one that is given to another solver is an error."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if solver != "alternating":
        if chosen:
            raise InputError(f"--{next(iter(chosen)).replace('_', '-')}: belongs to --solver alternating")
        return None
    if not math.isfinite(chosen.get("threshold", 0.0)):
        raise InputError(f"--threshold: must be a finite share, for example 1e-5; got {chosen['threshold']}")
    from fedgap.planning.alternating import AlternatingOptions

    return AlternatingOptions(**chosen)


def pooling_advice(scenario: Scenario, scheme: str) -> str:
    """Where labels are known and φ is averaged over clients, what else could be done; otherwise ""."""
    labels = scenario.label_counts() is not None and scenario.target_counts is not None
    if scenario.bound.aggregation != "mean" or not labels or scheme in ("no_generalization", "measured"):
        return ""
    return ("\nEach client's labels are judged by themselves (bound.aggregation: mean). With bound.aggregation=mixture "
            "those of all who take part are judged together: above 12 clients without a certificate, but it trained "
            "better models where labels differ.")


def write_plan(answer: Plan, path: Path) -> None:
    """Write a plan, or say in a line why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        answer.save(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def show(problem: Problem, answer: Plan) -> None:
    """A plan as tables and sentences."""
    from rich.text import Text

    from fedgap.cli import plan_tables
    from fedgap.cli.number_format import number, rounds

    if answer.rounds != problem.rounds:
        problem = problem.with_rounds(answer.rounds)
    parts: list[RenderableType] = [
        Text(
            f"{answer.scheme}: {answer.status}, {rounds(answer.rounds)}, θ = {number(answer.theta, 6)} "
            f"({answer.solver}, {answer.solve_s:.2f} s)",
            style="bold",
        )
    ]
    shown = answer.segments[: plan_tables.MOST_SEGMENTS]
    parts += [plan_tables.segment_table(problem, answer, segment) for segment in shown]
    if len(answer.segments) > plan_tables.MOST_SEGMENTS:
        parts.append(f"... and {len(answer.segments) - plan_tables.MOST_SEGMENTS} segments more; --json has all.")
    parts += [plan_tables.terms_table(answer), plan_tables.budget_table(problem, answer)]
    terminal.show(*parts, plan_tables.certificate(answer))
