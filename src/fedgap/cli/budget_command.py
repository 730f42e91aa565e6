"""``fedgap budget``: how many joules and seconds are needed for a target accuracy."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.arguments import AsJson, Overrides, Picture
from fedgap.cli.terminal import downloads, show, steps


def budget(
    experiment: Annotated[str, typer.Argument(
        metavar="EXPERIMENT|SCENARIO", help="A file or a preset: an experiment (embedded, mnist, cifar10), whose "
        "clients have the labels of its data, or a scenario (paper-mnist, paper-cifar10, city).")],
    overrides: Overrides = None,
    *,
    accuracy: Annotated[float, typer.Option(help="The target accuracy on the test set, such as 0.95.")],
    confidence: Annotated[float, typer.Option(help="The probability with which a run must reach it.")] = 0.9,
    points: Annotated[int, typer.Option(min=0, max=50, help="Number of pairs of budgets on the frontier.")] = 5,
    out: Annotated[Path | None, typer.Option(
        metavar="FOLDER", help="Write each plan (NAME.json) and its scenario (NAME.yaml) into this folder.",
        show_default=False)] = None,
    as_json: AsJson = False,
    picture: Picture = None,
) -> None:
    """Find the least joules and seconds with which a run reaches an accuracy, by the forecast."""
    from fedgap.analysis import budget as find
    from fedgap.analysis import budget_steps
    from fedgap.analysis.accuracy_budget import check_target
    from fedgap.config import Experiment, Scenario, kind_of
    from fedgap.report.figures import check_picture

    check_target(accuracy, confidence, "--")
    check_picture(picture, "--picture")
    if kind_of(experiment) == "experiment":
        from fedgap.cli.extras import require

        require("train", "budget")
        from fedgap.running.prepare import divide

        chosen = Experiment.load(experiment, overrides or [])
        with downloads() as progress:
            scenario = divide(chosen, progress=progress)[2]
        begin = [experiment, *(overrides or [])]
    else:
        scenario, begin = Scenario.load(experiment, overrides or []), []
    with steps("planning", budget_steps(points)) as done:
        answer = find(scenario, accuracy, confidence=confidence, points=points, done=done)
    if picture is not None:
        answer.plot(picture)
    names = answer.save(out) if out is not None else []
    if as_json:
        typer.echo(json.dumps(answer.to_dict()))
        return
    show(answer)
    if picture is not None:
        typer.echo(f"\nThe picture is in {picture}.")
    if out is not None:
        both = answer.answers["both"]
        assert both is not None  # otherwise the search would have ended with an error
        budgets = [f"budget.{key}={getattr(both.point, key)!r}" for key in ("energy_j", "delay_s")]
        words = [*begin, *budgets] if begin else ["EXPERIMENT", f"scenario={out / 'both.yaml'}"]
        typer.echo(f"\nPlans and scenarios are in {out}: {', '.join(names)}. Train with: "
                   f"{shlex.join(['fedgap', 'train', *words, '--plan', str(out / 'both.json')])}")
