"""The trainings that a forecast is judged on: every cell's drawn plans and its pilot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedgap.evidence.definition import Cell
from fedgap.evidence.drawn_plans import PILOT_SHARE, DrawnRun, draw_plans, pilot_runs_of, plans_file, runs_of
from fedgap.running.job import Job
from fedgap.running.worker_pool import all_in_processes

if TYPE_CHECKING:
    from fedgap.evidence.reproduce import Workshop


@dataclass(frozen=True, eq=False)
class CellRuns:
    """A cell with its trainings."""

    cell: Cell
    drawn: list[DrawnRun]
    pilot: list[DrawnRun]


def cell_runs(cells: Sequence[Cell], shop: Workshop) -> list[CellRuns]:
    """Draw the cells' plans, or read those that were drawn before, and prepare their trainings."""
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
            made.append(CellRuns(cell, drawn, list(pilot_runs_of(cell, samples, dataset))))
            advance()
    return made


def _draw_in_child(task: tuple[Cell, Path]) -> str:
    cell, folder = task
    draw_plans(cell, folder)
    return cell.title


def jobs_by_turn(cells: Sequence[Cell], shop: Workshop) -> dict[int, dict[str, Job]]:
    """The runs that have no record yet, by turn; a cell's pilot has the turn after the cell's."""
    jobs: dict[int, dict[str, Job]] = {}
    for made in cell_runs(cells, shop):
        for turn, runs in ((made.cell.turn, made.drawn), (made.cell.turn + 1, made.pilot)):
            for run in runs:
                if run.key not in shop.store:
                    jobs.setdefault(turn, {})[run.key] = run.job
    return dict(sorted(jobs.items()))
