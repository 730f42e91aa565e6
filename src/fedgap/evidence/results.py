"""The results of a figure: what was planned and measured in every case, and the comparisons over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.statistics import PairedComparison, holm, interval, paired

if TYPE_CHECKING:  # reading results needs no torch
    from fedgap.evidence.cases import Planned
    from fedgap.evidence.definition import Figure, Panel
    from fedgap.evidence.store import Store
    from fedgap.running.job import Job

MEASURES = {"accuracy": "accuracy", "learners": "accuracy", "loss": "training_loss"}
"""The measure that each kind of figure compares."""
_CURVE_POINTS = 41


def measured(planned: Planned, store: Store) -> dict[str, Any]:
    """The row of a case: the plan's facts and what the trained model reached; None where nothing could be trained."""
    row = planned.facts()
    if planned.job is None:
        return row | {"accuracy": None, "test_loss": None, "training_loss": None}
    run = store[planned.key]
    return row | {"accuracy": run["test_accuracy"][-1], "test_loss": run["test_loss"][-1],
                  "training_loss": run["training_set_loss"][-1]}


def elapsed(job: Job, axis: str) -> np.ndarray:
    """What the job has spent after each round, (R,): seconds for ``delay_s``, joules for ``energy_j``."""
    works = [job.work(segment) for segment in range(len(job.selected))]
    by_segment = [work.delay_s if axis == "delay_s" else work.energy_j + job.broadcast_j() for work in works]
    return np.cumsum(np.array(by_segment)[job.schedule])


def curves(members: Sequence[Planned], store: Store, axis: str) -> list[dict[str, Any]]:
    """Training loss L(ω, D̂) against what was spent: for each mode and scheme the mean over seeds and its interval.

    Seeds spend different amounts per round, so each curve is interpolated linearly to points that all of them have
    reached."""
    groups: dict[tuple[str, str], list[Planned]] = {}
    for planned in members:
        if planned.job is not None:
            groups.setdefault((planned.case.mode, planned.case.scheme), []).append(planned)
    drawn = []
    for (mode, scheme), group in groups.items():
        lines = []
        for planned in group:
            assert planned.job is not None
            run = store[planned.key]
            lines.append((elapsed(planned.job, axis)[np.array(run["round"]) - 1], np.array(run["training_set_loss"])))
        grid = np.linspace(max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines), _CURVE_POINTS)
        values = np.array([np.interp(grid, x, y) for x, y in lines])
        points = [interval(column.tolist()) for column in values.T]
        drawn.append({"mode": mode, "scheme": scheme, "x": _digits(grid), "mean": _digits([p.mean for p in points]),
                      "half": None if points[0].half is None else _digits([p.half or 0.0 for p in points])})
    return drawn


def _digits(values: Sequence[float] | np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def by_seed(rows: Sequence[Mapping[str, Any]], measure: str, **which: Any) -> dict[int, float]:
    """The measure by seed, for the rows whose values equal those in ``which``."""
    return {row["seed"]: row[measure] for row in rows
            if row[measure] is not None and all(row[key] == value for key, value in which.items())}


def compare(rows: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Compare ``proposed`` minus each baseline at every value, in each mode; Holm's correction covers the comparisons
    of one mode."""
    result = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mode_rows = [row for row in rows if row["mode"] == mode]
        places, family = [], []
        for value in dict.fromkeys(row["value"] for row in mode_rows):
            proposed = by_seed(mode_rows, measure, scheme="proposed", value=value)
            for scheme in dict.fromkeys(row["scheme"] for row in mode_rows if row["scheme"] != "proposed"):
                baseline = by_seed(mode_rows, measure, scheme=scheme, value=value)
                if proposed.keys() & baseline.keys():
                    places.append({"mode": mode, "value": value, "baseline": scheme})
                    family.append(paired(proposed, baseline))
        result += [place | written(c) for place, c in zip(places, holm(family), strict=True)]
    return result


def compare_panels(panels: Sequence[Panel], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each panel's reference minus the panel at every value; Holm's correction covers all comparisons of the
    figure."""
    rows = {result["title"]: result.get("rows", []) for result in results}
    places, family = [], []
    for panel in panels:
        for value in dict.fromkeys(row["value"] for row in rows[panel.title] if panel.reference):
            ours, theirs = (by_seed(rows[title], "accuracy", value=value) for title in (panel.reference, panel.title))
            if ours.keys() & theirs.keys():
                places.append({"reference": panel.reference, "baseline": panel.title, "value": value})
                family.append(paired(ours, theirs))
    return [place | written(c) for place, c in zip(places, holm(family), strict=True)]


def written(comparison: PairedComparison) -> dict[str, Any]:
    """A comparison as plain numbers, for JSON."""
    difference = comparison.difference
    return {"difference": float(f"{difference.mean:.4g}"),
            "half": None if difference.half is None else float(f"{difference.half:.4g}"), "seeds": difference.n,
            "p": float(f"{comparison.p:.3g}"), "p_holm": float(f"{comparison.adjusted:.3g}"),
            "detectable": None if comparison.detectable is None else float(f"{comparison.detectable:.4g}"),
            "verdict": comparison.verdict}


def panel_results(figure: Figure, panel: Panel, members: Sequence[Planned], store: Store) -> dict[str, Any]:
    """The rows and comparisons of one panel, and for losses also the curves."""
    rows = [measured(planned, store) for planned in members]
    result: dict[str, Any] = {"title": panel.title, "experiment": panel.experiment, "overrides": list(panel.overrides),
                              "vary": panel.vary, "nominal": panel.nominal, "status": "", "rows": rows}
    result["comparisons"] = compare(rows, MEASURES[figure.kind])
    if figure.kind == "loss":
        result["curves"] = curves(members, store, panel.vary)
    return result


def provenance(keys: Sequence[str], store: Store) -> dict[str, Any]:
    """Where and with which versions the runs were trained, and how many hours that took."""
    runs = [store[key] for key in dict.fromkeys(keys) if key in store]

    def seen(name: str) -> list[str]:
        return sorted({str(run[name]) for run in runs})

    hours = sum(run["wall_s"] for run in runs) / 3600
    return {"distinct_runs": len(runs), "machines": seen("machine"), "torch": seen("torch"), "python": seen("python"),
            "precision": seen("precision"), "hours": float(f"{hours:.3g}")}
