"""Sweeps: the grid, resuming, failures that do not stop it, and the table with confidence intervals."""

import csv
import json
import math
import os

import pytest

from fedgap.errors import InputError
from fedgap.running.sweep import Point, confidence, outcome, parse_grid, points, summarise, sweep
from fedgap.running.workers import pack, unpack


def test_the_grid_is_every_combination_in_order(tmp_path):
    grid = parse_grid(["seed=0,1,2", "budget.delay_s=100,150", "model.arguments={a: [1,2]}"])
    assert grid == {"seed": ["0", "1", "2"], "budget.delay_s": ["100", "150"], "model.arguments": ["{a: [1,2]}"]}
    made = points(grid, tmp_path)
    assert len(made) == 6
    assert made[1].overrides == ("seed=0", "budget.delay_s=150", "model.arguments={a: [1,2]}")
    assert made[0].folder.name == "seed=0,budget.delay_s=100,model.arguments=_a___1,2__"
    assert len({point.folder for point in made}) == 6


@pytest.mark.parametrize("bad", [["seed"], ["=3"], ["seed="], ["seed=1,,2"], ["seed=1,1"], ["seed=1", "seed=2"]])
def test_a_bad_grid_gets_one_line(bad):
    with pytest.raises(InputError):
        parse_grid(bad)


def test_confidence_is_students():
    """Five numbers by hand: mean 3, s = sqrt(2.5), t = 2.776445 (4 degrees of freedom)."""
    got = confidence([1, 2, 3, 4, 5])
    assert got["mean"] == 3.0
    assert got["ci95"] == pytest.approx(2.7764451 * math.sqrt(2.5) / math.sqrt(5), rel=1e-7)
    assert confidence([7.0]) == {"mean": 7.0, "ci95": None}
    assert confidence([]) == {"mean": None, "ci95": None}


def test_rows_average_over_seeds_only(tmp_path):
    made = points(parse_grid(["seed=0,1", "budget.delay_s=1,2"]), tmp_path)
    for number, point in enumerate(made[:3]):
        (point.folder / "job").mkdir(parents=True)
        (point.folder / "job" / "job.json").write_text("{}")
        (point.folder / "summary.json").write_text(json.dumps({"test_accuracy": 0.5 + 0.1 * number, "theta": None}))
    first, second = summarise(made)
    assert (first["budget.delay_s"], first["runs"], first["failed"]) == ("1", 2, None)
    assert first["test_accuracy"]["mean"] == pytest.approx(0.6)
    assert first["theta"] == {"mean": None, "ci95": None}
    assert (second["runs"], second["failed"]) == (1, "has not run yet")


@pytest.mark.parametrize("stacked", [False, True])
def test_a_sweep_runs_resumes_extends_and_summarises(small, tmp_path, stacked):
    experiment, seen = small("rounds=4"), []
    out = tmp_path / "sweep"
    grid = parse_grid(["seed=0", "budget.delay_s=1e-6,100"])
    rows = sweep(experiment, grid, out, workers=2, stacked=stacked, report=lambda p, o: seen.append((p, o)))
    assert len(seen) == 2
    assert [row["runs"] for row in rows] == [0, 1]
    assert rows[0]["failed"]  # no plan fits a microsecond; the sweep went on
    assert rows[1]["failed"] is None
    assert rows[1]["rounds"] == {"mean": 4.0, "ci95": None}
    assert 0.0 < rows[1]["test_accuracy"]["mean"] < 1.0
    table = list(csv.DictReader((out / "summary.csv").open()))
    assert float(table[1]["test_accuracy"]) == rows[1]["test_accuracy"]["mean"]
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(stamps) == 1
    more = sweep(experiment, parse_grid(["seed=0,1", "budget.delay_s=100"]), out, workers=2, stacked=stacked)
    assert more[0]["runs"] == 2
    assert more[0]["rounds"] == {"mean": 4.0, "ci95": 0.0}
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())  # nothing was trained twice
    with pytest.raises(InputError, match="a sweep of another experiment"):
        sweep(small("rounds=5"), grid, out)


def test_a_bad_value_is_named_before_anything_runs(small, tmp_path):
    with pytest.raises(InputError, match="seed"):
        sweep(small("rounds=4"), parse_grid(["seed=0,minus"]), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_run_comes_back_from_a_node_whole(tmp_path):
    (tmp_path / "there" / "job").mkdir(parents=True)
    (tmp_path / "there" / "job" / "job.json").write_text("{}")
    (tmp_path / "there" / "summary.json").write_text('{"rounds": 3}')
    unpack(pack(tmp_path / "there"), tmp_path / "here")
    assert outcome(Point((), tmp_path / "here")) == {"summary": {"rounds": 3}}


@pytest.mark.skipif(os.environ.get("FEDGAP_FULL") != "1", reason="starting Ray takes long; `make test-all` does")
def test_on_a_ray_cluster(small, tmp_path):
    pytest.importorskip("ray")
    rows = sweep(small("rounds=4"), parse_grid(["seed=0,1"]), tmp_path / "sweep", ray="local")
    assert rows[0]["runs"] == 2
