"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedgap.registry import OBJECTIVES, RULES, SCHEMES, SELECTION
from fedgap.registry import allow as allow_references

Solver = Literal["exact", "alternating"]
NAMED = "NAME|package.module:NAME"

ScenarioFile = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="A scenario's file, or a preset: paper-mnist, paper-cifar10, city."),
]
_EXPERIMENT = "An experiment's file, or a preset: embedded, mnist, cifar10."
ExperimentFile = Annotated[str, typer.Argument(metavar="EXPERIMENT", help=_EXPERIMENT)]
OptionalExperimentFile = Annotated[str | None, typer.Argument(metavar="EXPERIMENT", help=_EXPERIMENT,
                                                              show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key.path=value",
        help="Keys to change, for example budget.delay_s=120 clients\\[3].phi=4.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables and no progress.")]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw a picture into this file: .png, .pdf or .svg.",
                 show_default=False),
]
SolverOption = Annotated[
    Solver, typer.Option("--solver", help="exact (certified), or alternating (the paper's Algorithm 1).")
]
_SCHEME = typer.Option("--scheme", metavar=NAMED, show_default=False,
                       help="What the planner may decide. Default: forecast if the scenario has a key auto, otherwise "
                            "proposed.")
SchemeOption = Annotated[str | None, _SCHEME]
_SCHEMES = typer.Option("--schemes", metavar="NAME,NAME", show_default=False,
                        help="Schemes or published rules to compare, or all. Default: the paper's six schemes.")
SchemesOption = Annotated[str | None, _SCHEMES]
_OBJECTIVE = typer.Option("--objective", metavar=NAMED, help="What to minimise instead of the scheme's objective.",
                          show_default=False)
ObjectiveOption = Annotated[str | None, _OBJECTIVE]
_SELECTION = typer.Option(
    "--selection", metavar=NAMED, show_default=False,
    help="A rule that selects the clients; the planner then decides the rest for them. With --solver alternating, this "
         "can also be how the paper's problem P5 is solved: printed (a and μ in turn), relaxed (then rounded), or "
         "exact.")
SelectionOption = Annotated[str | None, _SELECTION]


_ALLOW = Annotated[list[str] | None, typer.Option(
    "--allow", metavar="package.module:NAME", show_default=False,
    help="Let files use this object although its module does not list it in __fedgap__. May be repeated.")]


def allowing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option ``--allow`` to a command, because code that a file names will run, and the user must decide
    that."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, allow: list[str] | None = None, **options: Any) -> None:
        allow_references(*(allow or ()))
        command(*arguments, **options)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("allow", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ALLOW)
    parameters = [*signature.parameters.values(), option]
    vars(wrapped)["__signature__"] = signature.replace(parameters=parameters)
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def list_known_names() -> None:
    """Add all registered names to the help texts. This searches the installed packages, so it is done only for
    --help."""
    options: tuple[tuple[Any, list[str]], ...] = (
        (_SCHEME, SCHEMES.names()), (_SCHEMES, [*SCHEMES.names(), *RULES.names()]),
        (_OBJECTIVE, OBJECTIVES.names()), (_SELECTION, SELECTION.names()))
    for option, names in options:
        text = option.help.partition(" Known: ")[0]
        option.help = f"{text} Known: {', '.join(names)}."
