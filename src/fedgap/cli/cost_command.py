"""``fedgap cost`` and ``fedgap bound``: what a plan costs, and the terms of its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgap.cli.arguments import AsJson, Overrides, ScenarioFile
from fedgap.cli.extras import require
from fedgap.cli.terminal import show
from fedgap.errors import InputError

if TYPE_CHECKING:
    from fedgap.config import Scenario
    from fedgap.planning import Plan

AnyScenario = Annotated[
    bool, typer.Option("--any-scenario", help="Accept a plan that was made for another scenario.")
]


def cost(
    scenario: Annotated[
        str,
        typer.Argument(metavar="SCENARIO|RUN", help="A scenario's file or a preset, with --plan; or the folder of a "
                       "deployed run."),
    ],
    overrides: Overrides = None,
    *,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan, as written by fedgap plan --out.", show_default=False)
    ] = None,
    any_scenario: AnyScenario = False,
    as_json: AsJson = False,
) -> None:
    """Show what each client spends, where the time of a round goes, and which client finishes last.

    For a deployed run, show the planned and the measured seconds and bytes of each node.
    """
    if plan is None:
        _cost_of_run(Path(scenario), as_json)
        return
    from fedgap.analysis import cost as evaluate
    from fedgap.config import Scenario

    loaded = Scenario.load(scenario, overrides or [])
    report = evaluate(loaded, open_plan(plan, loaded, any_scenario))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        show(report)


def _cost_of_run(folder: Path, as_json: bool) -> None:
    if not folder.is_dir():
        raise InputError("--plan: missing; give a plan for this scenario (from fedgap plan --out FILE), or the folder "
                         "of a deployed run instead of a scenario")
    require("train", "cost")
    from fedgap.running.planned_measured import planned_and_measured

    seen = planned_and_measured(folder)
    if as_json:
        typer.echo(json.dumps(seen.to_dict()))
    else:
        show(seen)


def bound(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The plan to evaluate. Without it, the starting point of Algorithm 1 is "
                     "evaluated, which is not a plan.", show_default=False),
    ] = None,
    any_scenario: AnyScenario = False,
    as_json: AsJson = False,
) -> None:
    """Show the terms of the bound θ in every reading of the paper, which term dominates, and the φ of each client."""
    from fedgap.analysis import bound as evaluate
    from fedgap.config import Scenario

    loaded = Scenario.load(scenario, overrides or [])
    report = evaluate(loaded, None if plan is None else open_plan(plan, loaded, any_scenario))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        show(report)


def open_plan(path: Path, scenario: Scenario, any_scenario: bool) -> Plan:
    """Read a plan, check that it was made for this scenario (with ``any_scenario``: that the number of clients fits),
    and score it again."""
    from fedgap.analysis import check_plan
    from fedgap.planning import Plan, rescore

    chosen = Plan.load(path)
    check_plan(scenario, chosen, other_scenario=any_scenario, label=path)
    scored = rescore(chosen, scenario)
    if scored is not chosen:
        typer.echo(f"{path}: {scored.headline}; {scored.reason}", err=True)
    return scored
