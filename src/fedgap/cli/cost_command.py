"""``fedgap cost`` and ``fedgap bound``: what a plan costs, and what the bound is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgap.cli.arguments import AsJson, Overrides, ScenarioFile
from fedgap.cli.terminal import show
from fedgap.errors import InputError

if TYPE_CHECKING:
    from fedgap.config import Scenario
    from fedgap.planning import Plan

AnyScenario = Annotated[
    bool, typer.Option("--any-scenario", help="Take a plan that was made for another scenario all the same.")
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
    from fedgap.cli import costs
    from fedgap.config import Scenario
    from fedgap.planning.problem import Problem

    loaded = Scenario.load(scenario, overrides or [])
    chosen = open_plan(plan, loaded, any_scenario)
    spent = costs.Spent.of(Problem.of(loaded), chosen)
    if as_json:
        typer.echo(json.dumps(spent.to_dict()))
        return
    show(spent.clients_table(), spent.time_table(), spent.totals_table())


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
    from fedgap.cli import bounds
    from fedgap.config import Scenario

    loaded = Scenario.load(scenario, overrides or [])
    chosen = None if plan is None else open_plan(plan, loaded, any_scenario)
    readings, statements = bounds.Readings.of(loaded, chosen), bounds.Statements.of(loaded)
    if as_json:
        document: dict[str, Any] = {**readings.to_dict(), **statements.to_dict()}
        typer.echo(json.dumps(document))
        return
    show(readings.table(), readings.sentence(), statements.table())


def open_plan(path: Path, scenario: Scenario, any_scenario: bool = False) -> Plan:
    """A plan that was made for this scenario.

    :param any_scenario: take one made for another scenario too, as long as it has as many clients.
    """
    from fedgap.planning import Plan, rescore
    from fedgap.planning.problem import Problem

    chosen = Plan.load(path)
    if not chosen.feasible:
        raise InputError(f"{path}: has no segments: {chosen.reason or 'the plan is infeasible'}")
    clients = chosen.segments[0].selected.size
    if clients != scenario.size:
        raise InputError(f"{path}: has {clients} clients where the scenario has {scenario.size}")
    if chosen.scenario_hash != scenario.hash() and not any_scenario:
        raise InputError(
            f"{path}: was made for another scenario (its hash is {chosen.scenario_hash or 'missing'}, this one's "
            f"{scenario.hash()}); plan again with the same overrides, or take it all the same with --any-scenario"
        )
    if not any_scenario:
        Problem.of(scenario).refuse(chosen)
    return rescore(chosen, scenario)
