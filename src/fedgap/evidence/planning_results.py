"""The results of the figure ``panel``, which compares planners: one row per run, and the comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgap.evidence.cases import Case, Planned, cases
from fedgap.evidence.definition import Figure
from fedgap.evidence.equal_accuracy import AXES, TOTALS
from fedgap.evidence.planning_value import judged
from fedgap.evidence.results import elapsed, measured, provenance
from fedgap.evidence.store import Store
from fedgap.evidence.workshop import Workshop
from fedgap.running.job import Job


def planning_results(figure: Figure, planned: Mapping[Case, Planned | str], shop: Workshop) -> dict[str, Any]:
    """The rows of every trained run, what is missing, and the comparisons of :mod:`~fedgap.evidence.planning_value`."""
    rows: list[dict[str, Any]] = []
    runs: dict[str, Mapping[str, Any]] = {}
    missing: dict[str, int] = {}
    reasons: set[str] = set()
    waiting = [f"{panel.title}, budgets × {panel.values[0]:g}" for panel in figure.panels[shop.preset] if panel.status]
    for panel in figure.panels[shop.preset]:
        for case in () if panel.status else cases(panel):
            answer = planned[case]
            if isinstance(answer, str):
                reasons.add(answer)
            elif answer.key and answer.key not in shop.store:
                missing[panel.title] = missing.get(panel.title, 0) + 1
            else:
                rows.append({"cell": panel.title} | _as_trained(answer, shop.store))
                if answer.job is not None:
                    runs[answer.key] = _with_totals(shop.store[answer.key], answer.job)
    keys = list(runs)
    panels = [{"title": figure.title, "status": "" if rows else "not trained yet", "rows": rows,
               "missing": sum(missing.values()), "missing_by_cell": missing, "waiting": sorted(set(waiting)),
               "without_plan": sorted(reasons)[:5]}]
    return {"figure": figure.name, "title": figure.title, "kind": figure.kind, "xlabel": figure.xlabel,
            "preset": shop.preset, "panels": panels, "judged": judged(rows, runs),
            "provenance": provenance(keys, shop.store)}


def _as_trained(answer: Planned, store: Store) -> dict[str, Any]:
    """The row of a case. If a rule decided during training, it has the rounds, joules and seconds that were really
    used."""
    row = measured(answer, store)
    if answer.job is not None and answer.job.policy:
        run = store[answer.key]
        row |= {"rounds": run["rounds"], "energy_j": run["energy_total_j"][-1], "delay_s": run["delay_total_s"][-1]}
    return row


def _with_totals(run: Mapping[str, Any], job: Job) -> Mapping[str, Any]:
    """The record of a run with what it had spent at each evaluation. Records of runs with a rule already contain it."""
    if job.policy:
        return run
    evaluated = np.array(run["round"]) - 1
    return {**run, **{total: elapsed(job, AXES[axis])[evaluated].tolist() for axis, total in TOTALS.items()}}
