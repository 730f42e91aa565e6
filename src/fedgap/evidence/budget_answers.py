"""Test the answers of ``fedgap budget``: train their plans with ten seeds, and plans with smaller budgets.

    python -m fedgap.evidence.budget_answers FOLDER --data DATA [--cells 0,1]      make answers and bundles
    python -m fedgap.evidence.budget_answers FOLDER --records RECORDS.jsonl        judge them

An answer is a budget with which the target accuracy should be reached with a confidence of 90 %. It is right if at
least that share of its runs reaches the target. It is thrifty if plans with 1/1.3 of its budget miss the target, so
that a much smaller budget would not have been enough."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.analysis.accuracy_budget import varied_budgets
from fedgap.config import Experiment, Scenario
from fedgap.evidence.bundle import open_data, pack
from fedgap.evidence.store import Store
from fedgap.evidence.training import training_key
from fedgap.files import write_json
from fedgap.learning.data import Dataset
from fedgap.learning.partition import Partition
from fedgap.planning import Plan
from fedgap.planning.budget_search import BudgetSearch, TargetPlan
from fedgap.running.forecast_pilot import samples_processed
from fedgap.running.job import Job
from fedgap.running.prepare import divide, make_job

CONFIDENCE = 0.9
TARGETS = (0.95, 0.96, 0.97, 0.975, 0.98)
SEEDS, FEWER_SEEDS = 10, 5
"""Number of seeds with which an answer's plan is trained, and of the plan with a smaller budget."""
LESS = 1.0 / 1.3
"""The share of an answer's budget that should not be enough to reach the target."""


@dataclass(frozen=True)
class BudgetCell:
    """A fleet and a σ for which answers are tested."""

    name: str
    sigma: float
    overrides: tuple[str, ...]
    partition_seed: int = 0

    def load(self, *overrides: str) -> Experiment:
        """The cell's experiment."""
        return Experiment.load("mnist", [*self.overrides, "mode=practical", f"partition.concentration={self.sigma}",
                                         *overrides])


_PAPER = ("budget.energy_j=125.0", "budget.delay_s=75.0", "scenario.forecast.like=lenet5-mnist")
_CITY = ("scenario=city", "scenario.model.gradient_bits=1421632", "scenario.model.flops_per_sample=1.69e6",
         "budget.energy_j=50.0", "budget.delay_s=60.0", "scenario.forecast.like=lenet5-mnist-city")
CELLS = (BudgetCell("paper, σ = 0.3", 0.3, _PAPER), BudgetCell("paper, σ = 5", 5.0, _PAPER),
         BudgetCell("city, σ = 0.3", 0.3, _CITY), BudgetCell("city, σ = 1", 1.0, _CITY))


def answers(scenario: Scenario, target: float) -> Iterator[tuple[str, TargetPlan]]:
    """Yield the answers of ``fedgap budget`` for a target, by kind: both budgets in proportion, least joules, least
    seconds."""
    search = BudgetSearch(scenario, target, CONFIDENCE)
    for kind, (budgets, first) in varied_budgets(scenario.budget).items():
        point = search.answer(budgets, first, certified=False)  # the budgets agree with certified ones to 1 %
        if point is not None:
            yield kind, point


def with_less(scenario: Scenario, target: float, point: TargetPlan, kind: str) -> TargetPlan | None:
    """The best plan with 1/1.3 of the budget that this kind of answer varies (of both budgets if it varies both)."""
    energy_j = point.energy_j * (1.0 if kind == "least_delay" else LESS)
    delay_s = point.delay_s * (1.0 if kind == "least_energy" else LESS)
    return BudgetSearch(scenario, target, CONFIDENCE).plan_within(energy_j, delay_s)


def jobs_of(cell: BudgetCell, scenario: Scenario, plan: Plan, seeds: int, dataset: Dataset,
            parts: Partition) -> dict[str, Job]:
    """The runs of a plan by training key. They share the division of the data, and differ in the seed of models and
    batches."""
    budgets = (f"budget.energy_j={scenario.budget.energy_j!r}", f"budget.delay_s={scenario.budget.delay_s!r}")
    jobs = {}
    for seed in range(seeds):
        experiment = cell.load(*budgets, f"seed={seed}", f"evaluate_every={plan.rounds}")
        job = replace(make_job(experiment, scenario, plan, dataset, parts), stop={})
        jobs[training_key(job)] = job
    return jobs


def make_bundle(cell: BudgetCell, folder: Path, dataset: Dataset, targets: Sequence[float] = TARGETS) -> dict[str, int]:
    """Write the cell's answers and the bundle of their runs; returns the numbers of answers, runs and samples."""
    _, parts, scenario = divide(cell.load(f"seed={cell.partition_seed}"), dataset)
    jobs: dict[str, Job] = {}
    made: list[dict[str, Any]] = []
    for target in targets:
        for kind, point in answers(scenario, target):
            less = with_less(scenario, target, point, kind)
            own = jobs_of(cell, point.scenario, point.plan, SEEDS, dataset, parts)
            fewer = {} if less is None else jobs_of(cell, less.scenario, less.plan, FEWER_SEEDS, dataset, parts)
            jobs |= own | fewer
            assert point.plan.forecast is not None
            made.append({"cell": cell.name, "target": target, "kind": kind, "energy_j": point.energy_j,
                         "delay_s": point.delay_s, "forecast": point.plan.forecast.accuracy, "surely": point.surely,
                         "outside": list(point.plan.forecast.outside), "rounds": point.plan.rounds,
                         "local_steps": point.plan.local_steps, "runs": list(own), "runs_with_less": list(fewer)})
            print(f"{cell.name} {target:g} {kind}: {point.energy_j:g} J, {point.delay_s:g} s, {point.plan.rounds} "
                  f"rounds of {point.plan.local_steps}, forecast {point.plan.forecast.accuracy:.4f}", flush=True)
            pack(jobs, folder)
            write_json(folder / "answers.json", made)
    return {"answers": len(made), "runs": len(jobs), "samples": sum(map(samples_processed, jobs.values()))}


def judge(made: Sequence[dict[str, Any]], store: Store) -> dict[str, Any]:
    """The share of runs that reach their target, and the share of answers whose smaller budget misses it in most
    runs."""
    def reached(answer: dict[str, Any], runs: str) -> list[bool]:
        return [store[key]["test_accuracy"][-1] >= answer["target"] for key in answer[runs] if key in store]

    own = {position: reached(answer, "runs") for position, answer in enumerate(made)}
    less = {position: reached(answer, "runs_with_less") for position, answer in enumerate(made)}
    trained = [hits for hits in own.values() if hits]
    runs = [hit for hits in trained for hit in hits]
    return {"answers": len(made), "answers_trained": len(trained),
            "runs": len(runs), "runs_reached": float(np.mean(runs)) if runs else None,
            "thrifty": float(np.mean([float(np.mean(hits) < 0.5) for hits in less.values() if hits] or [np.nan])),
            "rows": [answer | {"reached": float(np.mean(own[n])) if own[n] else None,
                               "reached_with_less": float(np.mean(less[n])) if less[n] else None}
                     for n, answer in enumerate(made)]}


def main(arguments: Sequence[str]) -> int:
    """Make the answers and the bundles that train their plans; with ``--records``, judge the answers by the trained
    runs. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedgap.evidence.budget_answers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--cells", default=",".join(map(str, range(len(CELLS)))))
    parser.add_argument("--records", type=Path, default=None)
    given = parser.parse_args(arguments)
    if given.records is not None:
        made = [answer for path in sorted(given.folder.glob("*/answers.json"))
                for answer in json.loads(path.read_text(encoding="utf-8"))]
        print(json.dumps(judge(made, Store(given.records)), indent=1, ensure_ascii=False))
        return 0
    dataset = open_data(CELLS[0].load().data.model_dump(exclude_none=True), given.data)
    for number in map(int, given.cells.split(",")):
        print(f"{CELLS[number].name}: {make_bundle(CELLS[number], given.folder / str(number), dataset)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
