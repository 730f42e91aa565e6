"""Make the results and the picture of a figure from its definition: plan and train what is missing, then write."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgap.errors import FedgapError
from fedgap.evidence import partitions, table1
from fedgap.evidence.cases import Case, Planned, cases, make_plans, plan_case
from fedgap.evidence.definition import Figure, Panel, load_figure
from fedgap.evidence.figure_pictures import draw_figure
from fedgap.evidence.forecast_runs import forecast_results
from fedgap.evidence.planning_results import planning_results
from fedgap.evidence.results import compare_panels, panel_results, provenance
from fedgap.evidence.training import Record
from fedgap.evidence.training_workers import train_all
from fedgap.evidence.workshop import Workshop
from fedgap.files import write_text
from fedgap.running.job import Job


def reproduce(names: Sequence[str], shop: Workshop) -> dict[str, dict[str, Any]]:
    """Make the figures' results. They are returned and written to ``out/FIGURE/results.json``, with the picture next to
    it.

    Existing plans and runs are kept, and a run that several figures need is trained once, so the same call resumes
    where an earlier one stopped."""
    made: dict[str, dict[str, Any]] = {}
    figures = {name: load_figure(name, shop.definitions) for name in names if name != "table1"}
    trained = [f for f in figures.values() if f.kind != "partitions"]
    planned = plan_panels([panel for f in trained for panel in open_panels(f, shop)], shop)
    if shop.train:
        train_missing(planned, shop)
    for name in names:
        if name == "table1":
            made[name] = table1.results()
        elif figures[name].kind == "partitions":
            made[name] = partitions.results(figures[name], shop.preset, shop.dataset)
        elif figures[name].kind == "planning":
            made[name] = planning_results(figures[name], planned, shop)
        elif figures[name].kind == "forecast":
            made[name] = forecast_results(figures[name], shop)
        else:
            made[name] = figure_results(figures[name], planned, shop)
        write(made[name], shop.out / name / "results.json")
        draw_figure(made[name], shop.out / name / f"{name}.png")
    return made


def open_panels(figure: Figure, shop: Workshop) -> list[Panel]:
    """The preset's panels whose runs are to be made: those without a ``status``."""
    return [panel for panel in figure.panels[shop.preset] if not panel.status]


def plan_panels(panels: Sequence[Panel], shop: Workshop) -> dict[Case, Planned | str]:
    """The plan of every distinct case of these panels, or the reason why it has none."""
    todo = list(dict.fromkeys(case for panel in panels for case in cases(panel)))
    plans = shop.out / "plans"
    with shop.bar("planning", len(todo)) as advance:
        make_plans(todo, plans, workers=shop.workers, folder=shop.data, done=advance)
    planned: dict[Case, Planned | str] = {}
    for case in todo:
        try:
            planned[case] = plan_case(case, shop.dataset(case.experiment, case.data_overrides), plans)
        except FedgapError as error:
            planned[case] = str(error)
    return planned


def train_missing(planned: dict[Case, Planned | str], shop: Workshop) -> None:
    """Train each distinct run that has no record yet."""
    groups: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for case, answer in planned.items():
        if isinstance(answer, Planned) and answer.job is not None and answer.key not in shop.store:
            groups.setdefault((case.experiment, case.data_overrides), {})[answer.key] = answer.job
    with shop.bar("training", sum(len(jobs) for jobs in groups.values())) as advance:
        for (experiment, overrides), jobs in groups.items():
            for _ in train_new(jobs, experiment, shop, overrides):
                advance()


def train_new(jobs: Mapping[str, Job], experiment: str, shop: Workshop,
              overrides: Sequence[str] = ()) -> Iterator[Record]:
    """Train jobs on the experiment's data. Every record is stored as soon as its run ends, and then yielded."""
    for record in train_all(jobs, shop.dataset(experiment, overrides), workers=shop.workers):
        shop.store.add([record])
        yield record


def figure_results(figure: Figure, planned: dict[Case, Planned | str], shop: Workshop) -> dict[str, Any]:
    """The results of a figure: the rows of panels that were run, and the status of the others."""
    panels: list[dict[str, Any]] = []
    keys: list[str] = []
    for panel in figure.panels[shop.preset]:
        if panel.status:
            panels.append({"title": panel.title, "experiment": panel.experiment, "status": panel.status})
            continue
        members = [planned[case] for case in cases(panel)]
        with_plan = [answer for answer in members if isinstance(answer, Planned)]
        missing = {run.key: run.case.mode for run in with_plan if run.key and run.key not in shop.store}
        trained = [run for run in with_plan if run.key not in missing]
        panels.append(panel_results(figure, panel, trained, shop.store))
        if missing:
            panels[-1]["missing"] = len(missing)
            panels[-1]["missing_by_mode"] = dict(Counter(missing.values()))
        reasons = [answer for answer in members if isinstance(answer, str)]
        if reasons:
            panels[-1]["without_plan"] = {"cases": len(reasons), "reasons": sorted(set(reasons))[:5]}
        keys += [run.key for run in trained if run.key]
    across = compare_panels(figure.panels[shop.preset], panels)
    return {"figure": figure.name, "title": figure.title, "kind": figure.kind, "xlabel": figure.xlabel,
            "preset": shop.preset, "panels": panels, **({"comparisons": across} if across else {}),
            "provenance": provenance(keys, shop.store)}


def write(results: dict[str, Any], path: Path) -> None:
    """Write results as JSON with one row per line, so that differences between versions are readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    for innermost in (r"\[[^{}\[\]]*\]", r"\{[^{}]*\}"):
        text = re.sub(innermost, lambda match: re.sub(r"\s*\n\s*", " ", match.group()), text)
    write_text(path, text + "\n")
