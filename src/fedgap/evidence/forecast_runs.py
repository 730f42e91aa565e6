"""The trainings on which a forecast is judged: the drawn plans and the pilot of every cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgap.evidence.definition import Cell, Figure
from fedgap.evidence.drawn_plans import PILOT_SHARE, DrawnRun, draw_plans, pilot_runs_of, plans_file, runs_of
from fedgap.evidence.forecast_results import cell_results
from fedgap.evidence.results import provenance
from fedgap.evidence.store import Store
from fedgap.evidence.training_workers import train_all
from fedgap.evidence.workshop import Workshop
from fedgap.running.job import Job
from fedgap.running.worker_pool import all_in_processes

FEWEST_PLANS = 15
"""A cell with fewer trained plans is not judged."""


@dataclass(frozen=True, eq=False)
class CellRuns:
    """A cell with the trainings of its drawn plans and of its pilot."""

    cell: Cell
    drawn: list[DrawnRun]
    pilot: list[DrawnRun]


def cell_runs(cells: Sequence[Cell], shop: Workshop) -> list[CellRuns]:
    """Draw the cells' plans (or read those that were drawn before), and prepare their trainings."""
    folder = shop.out / "plans"
    missing = {plans_file(cell, folder): cell for cell in cells if not plans_file(cell, folder).is_file()}
    with shop.bar("drawing plans", len(missing)) as advance:
        for _ in all_in_processes(_draw_in_child, [(cell, folder) for cell in missing.values()], shop.workers,
                                  lambda task: task[0].title):
            advance()
    made = []
    with shop.bar("preparing runs", len(cells)) as advance:
        for cell in cells:
            dataset = shop.dataset(cell.experiment, cell.overrides)
            drawn = list(runs_of(cell, draw_plans(cell, folder), dataset))
            samples = PILOT_SHARE * sum(run.facts["samples"] for run in drawn)
            pilot = list(pilot_runs_of(cell, samples, dataset)) if cell.pilot else []
            made.append(CellRuns(cell, drawn, pilot))
            advance()
    return made


def _draw_in_child(task: tuple[Cell, Path]) -> str:
    cell, folder = task
    draw_plans(cell, folder)
    return cell.title


def jobs_by_turn(cells: Sequence[Cell], shop: Workshop) -> dict[int, dict[str, Job]]:
    """The runs that have no record yet, by turn; the pilot of a cell has the turn after the cell's."""
    jobs: dict[int, dict[str, Job]] = {}
    for made in cell_runs(cells, shop):
        for turn, runs in ((made.cell.turn, made.drawn), (made.cell.turn + 1, made.pilot)):
            for run in runs:
                if run.key not in shop.store:
                    jobs.setdefault(turn, {})[run.key] = run.job
    return dict(sorted(jobs.items()))


def forecast_results(figure: Figure, shop: Workshop) -> dict[str, Any]:
    """Train the runs that have no record yet, and judge the forecast in every cell with enough trained plans."""
    made = cell_runs(figure.cells[shop.preset], shop)
    if shop.train:
        _train(made, shop)
    panels = [_panel(cell, shop.store) for cell in made]
    keys = [row["run"] for panel in panels for row in (*panel.get("rows", ()), *panel.get("pilot_rows", ()))]
    return {"figure": figure.name, "title": figure.title, "kind": figure.kind, "xlabel": figure.xlabel,
            "preset": shop.preset, "panels": panels, "provenance": provenance(keys, shop.store)}


def _train(made: Sequence[CellRuns], shop: Workshop) -> None:
    todo = [{run.key: run.job for run in (*cell.pilot, *cell.drawn) if run.key not in shop.store} for cell in made]
    with shop.bar("training", sum(map(len, todo))) as advance:
        for cell, jobs in zip(made, todo, strict=True):
            dataset = shop.dataset(cell.cell.experiment, cell.cell.overrides)
            for runs, data in ((cell.drawn, dataset), (cell.pilot, None)):
                part = {run.key: run.job for run in runs if run.key in jobs}
                if part:
                    data = data or dataset.with_validation(next(iter(part.values())).data["validation"], 0)
                    for record in train_all(part, data, workers=shop.workers):
                        shop.store.add([record])
                        advance()


def _panel(made: CellRuns, store: Store) -> dict[str, Any]:
    rows = [run.facts | {"accuracy": store[run.key]["test_accuracy"][-1]} for run in made.drawn if run.key in store]
    pilot = [run.facts | {"validation_accuracy": store[run.key]["validation_accuracy"][-1]}
             for run in made.pilot if run.key in store]
    missing = len(made.drawn) + len(made.pilot) - len(rows) - len(pilot)
    if len({row["plan"] for row in rows}) < FEWEST_PLANS:
        return {"title": made.cell.title, "experiment": made.cell.experiment, "status": f"{missing} runs not trained"}
    result = cell_results(made.cell.title, rows, pilot)
    return result | {"experiment": made.cell.experiment} | ({"missing": missing} if missing else {})
