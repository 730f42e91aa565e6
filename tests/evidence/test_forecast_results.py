"""How a forecast is judged, on runs whose truth is known."""

import numpy as np
import pytest

from fedgap.evidence.forecast_results import cell_results, features_of, held_out, judged
from fedgap.theory.fitted_forecast import FittedForecast
from fedgap.theory.forecast import Forecast

TRUTH = Forecast(start=3.0, rounds_power=0.9, steps_power=0.6, slowed_by_pruning=0.8, slowed_by_divergence=1.5,
                 few_clients=0.06, divergence=0.08, coarse_uploads=1.0, floor=0.012, slow_start=5.0)


def rows_of(count, noise, seed=0):
    random = np.random.default_rng(seed)
    rows = []
    for plan in range(count):
        known = {"rounds": float(np.exp(random.uniform(2.5, 6))), "local_steps": float(2 ** random.integers(0, 6)),
                 "few_clients": 1.0 / random.integers(3, 40), "pruning": random.uniform(0, 0.6),
                 "divergence": random.uniform(0, 0.2), "upload_bits": 32}
        budget = random.choice([10.0, 20.0])
        for seed_of_run in range(2 if plan % 3 == 0 else 1):
            row = {"plan": plan, "run": f"{plan}-{seed_of_run}", "seed": seed_of_run, **known, "energy_j": budget,
                   "delay_s": budget, "samples": 1000}
            error = TRUTH.error(features_of(row)) * np.exp(noise * random.standard_normal())
            rows.append(row | {"accuracy": 1.0 - error})
    return rows


def test_the_truth_itself_is_judged_perfect():
    rows = rows_of(40, 0.0)
    found = judged(rows, [FittedForecast(TRUTH, "", spread=0.1)] * len(rows))
    assert (found["plans"], found["runs"]) == (40, 54)
    assert found["rank"] == found["rank_better_half"] == found["coverage"] == 1.0
    assert found["points_better_half"] == 0.0
    assert found["missed_points"] == 0.0


def test_a_forecast_that_prefers_the_worst_is_found_out():
    rows = rows_of(40, 0.0)
    worst = min(rows, key=lambda row: row["accuracy"])
    forecasts = [FittedForecast(Forecast(*[0.0] * 8, floor=row["accuracy"]), "", spread=0.01) for row in rows]
    found = judged(rows, forecasts)
    assert found["rank"] == pytest.approx(-1.0)
    best = max(row["accuracy"] for row in rows if row["plan"] % 3 == 0)
    assert found["chosen"] == pytest.approx(worst["accuracy"], rel=1e-3)
    assert found["missed_points"] == pytest.approx(100 * (best - worst["accuracy"]), rel=1e-2)
    assert found["coverage"] < 0.2


def test_no_plan_helps_to_forecast_itself():
    rows = rows_of(30, 0.05)
    forecasts = held_out(rows)
    by_plan = {}
    for row, forecast in zip(rows, forecasts, strict=True):
        assert by_plan.setdefault(row["plan"], forecast) is forecast
    assert len({id(forecast) for forecast in forecasts}) == 5
    assert all(forecast.runs < len(rows) for forecast in forecasts)
    assert sum({id(f): len(rows) - f.runs for f in forecasts}.values()) == len(rows)


def test_a_cell_judges_held_out_plans_and_the_pilot():
    rows = rows_of(60, 0.05)
    pilot = [{"pilot": n, "validation_accuracy": row.pop("accuracy"), **row, "samples": 100}
             for n, row in enumerate(rows_of(20, 0.05, seed=1))]
    found = cell_results("a cell", rows, [{key: value for key, value in row.items() if key != "plan"}
                                          for row in pilot])
    assert found["held_out"]["rank"] > 0.9
    assert found["pilot"]["rank"] > 0.8
    assert found["pilot"]["samples_share"] == pytest.approx(100 * len(pilot) / (1000 * len(rows)), rel=1e-3)
    assert found["rows"][0].keys() >= {"forecast", "pilot_forecast", "accuracy"}
    alone = cell_results("a cell without a pilot", rows, [])
    assert alone["held_out"] == found["held_out"]
    assert "pilot" not in alone
    assert "pilot_forecast" not in alone["rows"][0]


def test_rows_from_before_clients_could_take_turns_are_read():
    """They lack the features of single rounds, which were those of all rounds together."""
    (row,) = rows_of(1, 0.0)[:1]
    old = features_of(row)
    assert (old.few_at_once, old.divergence_at_once) == (row["few_clients"], row["divergence"])
    new = features_of(row | {"few_at_once": 0.5, "divergence_at_once": 0.7})
    assert (new.few_at_once, new.divergence_at_once) == (0.5, 0.7)
    assert (new.few_clients, new.divergence) == (row["few_clients"], row["divergence"])
