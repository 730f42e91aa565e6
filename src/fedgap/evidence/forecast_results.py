"""Judge the forecast on plans that were not used to fit it, and judge a forecast fitted to a cheap pilot on all
plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.streams import stream
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import FEATURES, PlanFeatures
from fedgap.theory.forecast_fit import fit

Row = Mapping[str, Any]
FOLDS = 5


def features_of(row: Row) -> PlanFeatures:
    """The features of a run's plan from which the forecast is computed.

    Rows from before clients could take turns lack the features of single rounds, which were those of all rounds."""
    return PlanFeatures(**{name: row[name] for name in FEATURES if name in row})


def fitted(rows: Sequence[Row], accuracy: str = "accuracy", origin: str = "") -> FittedForecast:
    """Fit the forecast to runs. ``accuracy`` is the key of the rows with the accuracy to fit."""
    plans = [row["plan"] for row in rows] if "plan" in rows[0] else None
    return fit([features_of(row) for row in rows], [1.0 - row[accuracy] for row in rows], origin=origin,
               plans=plans)


def held_out(rows: Sequence[Row]) -> list[FittedForecast]:
    """For each run, a forecast fitted without the fold (a fifth of the plans) that contains its plan."""
    numbers = sorted({row["plan"] for row in rows})
    shuffled = stream(0, "planning").permutation(len(numbers))
    fold_of = {number: int(place) % FOLDS for number, place in zip(numbers, shuffled, strict=True)}
    fits = [fitted([row for row in rows if fold_of[row["plan"]] != fold]) for fold in range(FOLDS)]
    return [fits[fold_of[row["plan"]]] for row in rows]


def judged(rows: Sequence[Row], forecasts: Sequence[FittedForecast]) -> dict[str, Any]:
    """How well forecasts (one per run) predict the accuracies of the runs.

    Plans are compared by their means over seeds. The better half are the plans with an accuracy above the median. The
    chosen plan is the one with the smallest forecast error; ``missed_points`` says how many percentage points the best
    plan is above it: among all plans, and as mean and maximum over pairs of budgets. So that a single lucky run does
    not count as the best plan, only the chosen plan and plans with several seeds are considered."""
    from scipy.stats import spearmanr

    predictions = [forecast.predict(features_of(row))
                   for row, forecast in zip(rows, forecasts, strict=True)]
    reached = np.array([row["accuracy"] for row in rows])
    better_runs = reached >= np.median(reached)
    inside = [p.low <= row["accuracy"] <= p.high for row, p in zip(rows, predictions, strict=True)]
    plans: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        plans.setdefault(row["plan"], []).append(place)
    accuracy = np.array([np.mean([rows[i]["accuracy"] for i in places]) for places in plans.values()])
    expected = np.array([np.mean([predictions[i].accuracy for i in places]) for places in plans.values()])
    repeated = np.array([len(places) > 1 for places in plans.values()])
    budgets = [(rows[places[0]]["energy_j"], rows[places[0]]["delay_s"]) for places in plans.values()]
    better = accuracy >= np.median(accuracy)
    per_budget = [_missed(accuracy[mask], expected[mask], repeated[mask]) for pair in sorted(set(budgets))
                  if (mask := np.array([pair == other for other in budgets])).sum() > 1]
    return {"plans": len(plans), "runs": len(rows), "rank": _digits(spearmanr(expected, accuracy).statistic),
            "rank_better_half": _digits(spearmanr(expected[better], accuracy[better]).statistic),
            "points_better_half": _digits(100.0 * np.abs(expected - accuracy)[better].mean()),
            "chosen": _digits(float(accuracy[expected.argmax()])),
            "best": _digits(_best(accuracy, expected, repeated)),
            "missed_points": _digits(_missed(accuracy, expected, repeated)),
            "missed_points_per_budget": {"mean": _digits(float(np.mean(per_budget))),
                                         "most": _digits(float(np.max(per_budget)))},
            "coverage": _digits(float(np.mean(inside))),
            "coverage_better_half": _digits(float(np.mean(np.array(inside)[better_runs])))}


def _best(accuracy: Floats, expected: Floats, repeated: Bools) -> float:
    counted = repeated | (np.arange(len(accuracy)) == expected.argmax())
    return float(accuracy[counted if repeated.any() else slice(None)].max())


def _missed(accuracy: Floats, expected: Floats, repeated: Bools) -> float:
    return 100.0 * (_best(accuracy, expected, repeated) - float(accuracy[expected.argmax()]))


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def cell_results(title: str, rows: Sequence[Row], pilot: Sequence[Row]) -> dict[str, Any]:
    """The results of one cell: the judgement on held-out plans, the fit to all plans, and the fit to the pilot's
    validation accuracies."""
    forecasts = held_out(rows)
    result: dict[str, Any] = {"title": title, "status": "", "held_out": judged(rows, forecasts),
                              "weights": fitted(rows, origin=title).to_dict()}
    accuracies = {"forecast": [f.predict(features_of(row)).accuracy for row, f in zip(rows, forecasts, strict=True)]}
    if pilot:
        cheap = fitted(pilot, "validation_accuracy", f"pilot of {title}")
        share = sum(row["samples"] for row in pilot) / sum(row["samples"] for row in rows)
        result["pilot"] = judged(rows, [cheap] * len(rows)) | {
            "pilot_runs": len(pilot), "samples_share": _digits(share), "weights": cheap.to_dict()}
        accuracies["pilot_forecast"] = [cheap.predict(features_of(row)).accuracy for row in rows]
    named = [dict(zip(accuracies, map(_digits, values), strict=True))
             for values in zip(*accuracies.values(), strict=True)]
    result["rows"] = [{**row, **extra} for row, extra in zip(rows, named, strict=True)]
    result["pilot_rows"] = list(pilot)
    return result
