"""Sweeps: the grid, resuming, failures that do not stop it, and the table with confidence intervals."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedgap.errors import InputError
from fedgap.running.sweep import Point, confidence, outcome, parse_grid, points, summarise, sweep
from fedgap.running.worker_pool import pack, unpack


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


def test_every_run_has_a_folder_of_its_own_that_a_file_system_takes(tmp_path):
    made = points({"data.name": ["a/b.npz", "a_b.npz"], "model.arguments": ["{" + "long" * 99 + "}"]}, tmp_path)
    assert len({point.folder for point in made}) == 2
    for point in made:
        point.folder.mkdir(parents=True)
    wide, = points({"seed": ["0"], "x": ["\N{GREEK SMALL LETTER PHI}" * 150]}, tmp_path)
    assert wide.folder.name.startswith("seed=0,x=")
    wide.folder.mkdir()


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
    assert (first["values"]["budget.delay_s"], first["runs"], first["failed"]) == ("1", 2, None)
    assert first["test_accuracy"]["mean"] == pytest.approx(0.6)
    assert first["theta"] == {"mean": None, "ci95": None}
    assert (second["runs"], second["failed"]) == (1, "has not run yet")


def test_a_swept_key_keeps_its_column(small, tmp_path):
    """``rounds`` is both a key and something a run tells."""
    rows = sweep(small(), parse_grid(["rounds=2,3"]), tmp_path / "sweep", stacked=True)
    assert [(row["values"]["rounds"], row["rounds_trained"]["mean"]) for row in rows] == [("2", 2.0), ("3", 3.0)]
    table = list(csv.DictReader((tmp_path / "sweep" / "summary.csv").open()))
    assert [(row["rounds"], row["rounds_trained"]) for row in table] == [("2", "2.0"), ("3", "3.0")]


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
    assert rows[1]["rounds_trained"] == {"mean": 4.0, "ci95": None}
    assert 0.0 < rows[1]["test_accuracy"]["mean"] < 1.0
    table = list(csv.DictReader((out / "summary.csv").open()))
    assert float(table[1]["test_accuracy"]) == rows[1]["test_accuracy"]["mean"]
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(stamps) == 1
    more = sweep(experiment, parse_grid(["seed=0,1", "budget.delay_s=100"]), out, workers=2, stacked=stacked)
    assert more[0]["runs"] == 2
    assert more[0]["rounds_trained"] == {"mean": 4.0, "ci95": 0.0}
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


def test_what_was_missing_is_looked_for_again(small, tmp_path):
    """A run that failed for its input is tried again by the same call; one without a feasible plan is not."""
    experiment, out = small("rounds=2", f"data.name={tmp_path / 'mine.npz'}"), tmp_path / "sweep"
    grid = parse_grid(["seed=0", "budget.delay_s=1e-6,100"])
    rows = sweep(experiment, grid, out, stacked=True)
    assert [row["runs"] for row in rows] == [0, 0]
    assert "mine.npz" in rows[1]["failed"]
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", train_x=draw.normal(size=(800, 9)), train_y=np.arange(800) % 3,
             test_x=draw.normal(size=(200, 9)), test_y=np.arange(200) % 3)
    rows = sweep(experiment, grid, out, stacked=True)
    assert [row["runs"] for row in rows] == [0, 1]
    failed = next(out.rglob("failed.json"))
    stamp = failed.stat().st_mtime_ns
    sweep(experiment, grid, out, stacked=True)
    assert failed.stat().st_mtime_ns == stamp


def test_a_run_whose_process_died_is_told_from_one_that_did_not_start(small, tmp_path, monkeypatch):
    """Its code is at hand only while the sweep runs; it leaves no failed.json, so that the same call tries again."""
    (tmp_path / "deadly.py").write_text("import os\n\ndef data():\n    os._exit(7)\n")
    experiment = small("rounds=2", "data.name=deadly:data")
    monkeypatch.syspath_prepend(str(tmp_path))  # a spawned process inherits it
    rows = sweep(experiment, {"seed": ["0"]}, tmp_path / "sweep")
    assert (rows[0]["failed"], rows[0]["exit_code"]) == ("the process ended with code 7; see above", 1)


@pytest.mark.parametrize("stop", ["ctrl-c", "terminate"])
def test_stopping_a_sweep_lets_every_process_write_its_run(tmp_path, stop):
    """A terminal's Ctrl-C goes to the whole process group, a supervisor's SIGTERM to the parent alone; the runs'
    processes must end their round all the same, and none stays behind."""
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "fedgap", "sweep", "embedded", "seed=0,1", "scheme=all_clients", "rounds=2000",
               "model.name=mlp", "data.train_samples=800", "evaluate_every=1000", "checkpoint_every=2000",
               "engine.threads=1", "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and sum(path.stat().st_size > 0 for path in out.rglob("rounds.jsonl")) < 2:
        time.sleep(0.05)
    if stop == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error.decode()
    assert b"Traceback" not in error
    latest = [json.loads(path.read_bytes())["rounds"] for path in sorted(out.rglob("latest.json"))]
    written = [path.read_bytes().count(b"\n") for path in sorted(out.rglob("rounds.jsonl"))]
    assert len(latest) == 2
    assert latest == written


@pytest.mark.skipif(os.environ.get("FEDGAP_FULL") != "1", reason="starting Ray takes long; `make test-all` does")
def test_on_a_ray_cluster(small, tmp_path):
    pytest.importorskip("ray")
    rows = sweep(small("rounds=4"), parse_grid(["seed=0,1"]), tmp_path / "sweep", ray="local")
    assert rows[0]["runs"] == 2


@pytest.mark.parametrize(("address", "says"), [
    ("127.0.0.1:1", "no cluster at 127.0.0.1:1"), ("here:there", "HOST:PORT"), ("127.0.0.1:99999", "no cluster")])
def test_a_ray_cluster_that_is_not_there_is_said_at_once(small, tmp_path, address, says):
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=says):
        sweep(small("rounds=4"), parse_grid(["seed=0,1"]), tmp_path / "sweep", ray=address)
