"""``fedgap cost`` and ``fedgap bound``: what a plan costs, and what the bound is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgap.cli.arguments import AsJson, Overrides, ScenarioFile
from fedgap.cli.terminal import show

if TYPE_CHECKING:
    from fedgap.config import Scenario
    from fedgap.planning import Plan

AnyScenario = Annotated[
    bool, typer.Option("--any-scenario", help="Accept a plan that was made for another scenario.")
]


def cost(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    *,
    plan: Annotated[Path, typer.Option(metavar="FILE", help="A plan, from fedgap plan --out.")],
    any_scenario: AnyScenario = False,
    as_json: AsJson = False,
) -> None:
    """Show who spends what, where the rounds' time goes, and which client is the straggler."""
    from fedgap.analysis import cost as evaluate
    from fedgap.config import Scenario

    loaded = Scenario.load(scenario, overrides or [])
    report = evaluate(loaded, open_plan(plan, loaded, any_scenario))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        show(report)


def bound(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A plan to evaluate; without one, everybody takes part in every round, "
                     "pruned to the most.", show_default=False),
    ] = None,
    any_scenario: AnyScenario = False,
    as_json: AsJson = False,
) -> None:
    """Show the terms of the bound θ in every reading, what dominates it, and each client's statement φ."""
    from fedgap.analysis import bound as evaluate
    from fedgap.config import Scenario

    loaded = Scenario.load(scenario, overrides or [])
    report = evaluate(loaded, None if plan is None else open_plan(plan, loaded, any_scenario))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        show(report)


def open_plan(path: Path, scenario: Scenario, any_scenario: bool) -> Plan:
    """Read a plan, check that it was made for this scenario (or for any with as many clients), and score it again."""
    from fedgap.analysis import check_plan
    from fedgap.planning import Plan, rescore

    chosen = Plan.load(path)
    check_plan(scenario, chosen, other_scenario=any_scenario, label=path)
    scored = rescore(chosen, scenario)
    if scored is not chosen:
        typer.echo(f"{path}: {scored.headline}; {scored.reason}", err=True)
    return scored
