"""Sweeps: the grid, resuming, failures that do not stop it, and the table with confidence intervals."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

from fedgap.config import Experiment
from fedgap.errors import InputError
from fedgap.running.sweep import SweepRun, outcome, pack, parse_grid, runs_of, sweep, unpack
from fedgap.running.sweep_result import MEASURES, summarise
from fedgap.running.worker_pool import Died, in_processes


def test_the_grid_is_every_combination_in_order(tmp_path):
    grid = parse_grid(["seed=0,1,2", "budget.delay_s=100,150", "model.arguments={a: [1,2]}"])
    assert grid == {"seed": ["0", "1", "2"], "budget.delay_s": ["100", "150"], "model.arguments": ["{a: [1,2]}"]}
    made = runs_of(grid, tmp_path)
    assert len(made) == 6
    assert made[1].overrides == ("seed=0", "budget.delay_s=150", "model.arguments={a: [1,2]}")
    assert made[0].folder.name == "seed=0,budget.delay_s=100,model.arguments=_a___1,2__"
    assert len({run.folder for run in made}) == 6


@pytest.mark.parametrize(("bad", "says"), [
    (["seed"], "seed: must be key=value"), (["=3"], "=3: must be"), (["seed="], "seed=: must be"),
    (["seed=1,,2"], "seed: has an empty value in '1,,2'"), (["seed=1,0,1"], "seed: has the value 1 twice"),
    (["seed=1", "seed=2"], "seed: is given twice")])
def test_a_bad_grid_gets_one_line_that_names_the_key(bad, says):
    with pytest.raises(InputError) as caught:
        parse_grid(bad)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(("grid", "says"), [
    ({"seed": [0, 0]}, "seed: has the value 0 twice"), ({"seed": ["0", "00"]}, "seed: 0 and 00 mean the same run"),
    ({"rounds": [3], "budget.delay_s": ["100", "1e2"]}, "budget.delay_s: 100 and 1e2 mean the same run"),
    ({"scheme": "proposed"}, "scheme: must be a list of values")])
def test_two_copies_of_one_run_are_refused(small, tmp_path, grid, says):
    with pytest.raises(InputError) as caught:
        sweep(small("rounds=4"), grid, tmp_path / "sweep")
    assert str(caught.value).startswith(says)
    assert not (tmp_path / "sweep").exists()


def test_every_run_has_a_folder_of_its_own_that_a_file_system_takes(tmp_path):
    made = runs_of({"data.name": ["a/b.npz", "a_b.npz"], "model.arguments": ["{" + "long" * 99 + "}"]}, tmp_path)
    assert len({run.folder for run in made}) == 2
    for run in made:
        run.folder.mkdir(parents=True)
    wide, = runs_of({"seed": ["0"], "x": ["\N{GREEK SMALL LETTER PHI}" * 150]}, tmp_path)
    assert wide.folder.name.startswith("seed=0,x=")
    wide.folder.mkdir()


def of(seed, scheme, accuracy, **more):
    values = {"seed": str(seed), "scheme": scheme}
    return values, {"summary": {"test_accuracy": accuracy, "theta": None, **more}}


HAND_WORKED = [of(0, "proposed", 0.80), of(0, "all_clients", 0.70), of(1, "proposed", 0.90),
               of(1, "all_clients", 0.78), of(2, "proposed", 0.85), of(2, "all_clients", 0.77)]
"""Differences 0.10, 0.12 and 0.08: mean 0.10, s = 0.02; Student's t with two degrees of freedom is 4.302653."""


def test_means_and_paired_differences_by_hand(tmp_path):
    result = summarise(HAND_WORKED, tmp_path)
    proposed, others = result.rows
    assert (proposed.values, proposed.runs, proposed.failed) == ({"scheme": "proposed"}, 3, None)
    assert proposed.measures["test_accuracy"].mean == pytest.approx(0.85)
    assert proposed.measures["test_accuracy"].half == pytest.approx(4.302653 * 0.05 / math.sqrt(3), rel=1e-6)
    assert others.measures["test_accuracy"].mean == pytest.approx(0.75)
    assert proposed.measures["theta"] is None
    assert set(proposed.measures) == set(MEASURES)
    difference, = result.differences
    assert (difference.first, difference.second) == ("proposed", "all_clients")
    assert difference.comparison.difference.mean == pytest.approx(0.10)
    assert difference.comparison.difference.half == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-6)
    assert difference.comparison.verdict == "higher"
    row = result.to_dict()["rows"][0]
    assert row["theta"] == {"mean": None, "ci95": None}
    assert json.loads(json.dumps(result.to_dict()))["differences"][0]["seeds"] == 3


def test_several_differences_are_corrected_together(tmp_path):
    """Holm: the smallest of two p is doubled. The third scheme has one seed in common only, which tests nothing."""
    alone, = summarise(HAND_WORKED, tmp_path).differences
    more = [*HAND_WORKED, of(0, "no_pruning", 0.80), of(1, "no_pruning", 0.88), of(2, "no_pruning", 0.87),
            of(1, "fixed_power", 0.5)]
    result = summarise(more, tmp_path)
    assert [d.second for d in result.differences] == ["all_clients", "no_pruning", "fixed_power"]
    assert result.differences[0].comparison.adjusted == pytest.approx(2 * alone.comparison.p)
    assert result.differences[2].comparison.verdict == "too few seeds"


def test_policies_are_compared_as_schemes_are(tmp_path):
    def with_policies(values, outcome):
        policy = "replan" if values["scheme"] == "proposed" else "static"
        return {"seed": values["seed"], "policy": policy}, outcome

    result = summarise([with_policies(*run) for run in HAND_WORKED], tmp_path)
    difference, = result.differences
    assert (difference.values, difference.first, difference.second) == ({}, "replan", "static")
    assert difference.comparison.difference.mean == pytest.approx(0.10)
    assert "replan − static" in str(result)


def test_a_result_prints_and_draws_itself(tmp_path):
    result = summarise([*HAND_WORKED, ({"seed": "0", "scheme": "fixed_power"}, {"error": "no plan", "exit_code": 3})],
                       tmp_path)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result)
    text = console.export_text()
    assert "85.00 ± 12.42 %" in text
    assert "proposed − all_clients" in text
    assert "+10.00 ± 4.97" in text
    html = result._repr_html_()
    assert html.startswith("<pre")
    assert "85.00 ± 12.42 %" in html
    figure = result.plot(tmp_path / "deep" / "sweep.png")
    assert (tmp_path / "deep" / "sweep.png").stat().st_size > 5000
    axes, = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["proposed", "all_clients", "fixed_power"]
    means = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1 and line.get_marker() == "o"]
    assert means == pytest.approx([85.0, 75.0])


def test_rows_average_over_seeds_only(tmp_path):
    outcomes = [{"summary": {"test_accuracy": 0.5}}, {"summary": {"test_accuracy": 0.6}},
                {"summary": {"test_accuracy": 0.7}}, {"error": "no plan fits", "exit_code": 3}]
    made = runs_of(parse_grid(["seed=0,1", "budget.delay_s=1,2"]), tmp_path)
    first, second = summarise([(run.values, found) for run, found in zip(made, outcomes, strict=True)], tmp_path).rows
    assert (first.values, first.runs, first.failed) == ({"budget.delay_s": "1"}, 2, None)
    assert first.measures["test_accuracy"].mean == pytest.approx(0.6)
    assert (second.runs, second.failed, second.exit_code) == (1, "no plan fits", 3)


def test_a_swept_key_keeps_its_column(small, tmp_path):
    """``rounds`` is both a key and something a run tells."""
    rows = sweep(small(), parse_grid(["rounds=2,3"]), tmp_path / "sweep", stacked=True).rows
    assert [(row.values["rounds"], row.measures["rounds_trained"].mean) for row in rows] == [("2", 2.0), ("3", 3.0)]
    table = list(csv.DictReader((tmp_path / "sweep" / "summary.csv").open()))
    assert [(row["rounds"], row["rounds_trained"]) for row in table] == [("2", "2.0"), ("3", "3.0")]


@pytest.mark.parametrize("stacked", [False, True])
def test_a_sweep_runs_resumes_extends_and_summarises(small, tmp_path, stacked):
    experiment, seen = small("rounds=4"), []
    out = tmp_path / "sweep"
    grid = parse_grid(["seed=0", "budget.delay_s=1e-6,100"])
    result = sweep(experiment, grid, out, workers=2, stacked=stacked, report=lambda p, o: seen.append((p, o)))
    assert len(seen) == 2
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert rows == result.to_dict()["rows"]
    assert [row["runs"] for row in rows] == [0, 1]
    assert rows[0]["failed"]  # no plan fits a microsecond; the sweep went on
    assert rows[1]["failed"] is None
    assert rows[1]["rounds_trained"] == {"mean": 4.0, "ci95": None}
    assert 0.0 < rows[1]["test_accuracy"]["mean"] < 1.0
    table = list(csv.DictReader((out / "summary.csv").open()))
    assert float(table[1]["test_accuracy"]) == rows[1]["test_accuracy"]["mean"]
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(stamps) == 1
    more, = sweep(experiment, {"seed": [0, 1], "budget.delay_s": [100]}, out, workers=2, stacked=stacked).rows
    assert more.runs == 2
    assert (more.measures["rounds_trained"].mean, more.measures["rounds_trained"].half) == (4.0, 0.0)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())  # nothing was trained twice
    with pytest.raises(InputError, match="a sweep of another experiment"):
        sweep(small("rounds=5"), grid, out)


def test_a_swept_mode_brings_its_own_readings_and_learner(small, tmp_path):
    sweep(small("rounds=3"), {"mode": ["as_printed", "practical"]}, tmp_path / "s", workers=1)
    printed, practical = (Experiment.load(path) for path in sorted((tmp_path / "s" / "runs").glob("*/config.yaml")))
    assert (printed.readings["aggregation"], printed.readings["dense_first"]) == ("sum", False)
    assert (printed.pruning.importance, printed.planning_scenario().learning.local_steps) == ("taylor", 1)
    assert practical.readings["dense_first"]
    assert (practical.pruning.importance, practical.planning_scenario().learning.local_steps) == ("magnitude", "auto")


def test_a_bad_value_is_named_before_anything_runs(small, tmp_path):
    with pytest.raises(InputError, match="seed"):
        sweep(small("rounds=4"), parse_grid(["seed=0,minus"]), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_run_comes_back_from_a_node_whole(tmp_path):
    (tmp_path / "there" / "job").mkdir(parents=True)
    (tmp_path / "there" / "job" / "job.json").write_text("{}")
    (tmp_path / "there" / "summary.json").write_text('{"rounds": 3}')
    unpack(pack(tmp_path / "there"), tmp_path / "here")
    assert outcome(SweepRun((), tmp_path / "here")) == {"summary": {"rounds": 3}}


def test_what_was_missing_is_looked_for_again(small, tmp_path):
    """A run that failed for its input is tried again by the same call; one without a feasible plan is not."""
    experiment, out = small("rounds=2", f"data.name={tmp_path / 'mine.npz'}"), tmp_path / "sweep"
    grid = parse_grid(["seed=0", "budget.delay_s=1e-6,100"])
    rows = sweep(experiment, grid, out, stacked=True).rows
    assert [row.runs for row in rows] == [0, 0]
    assert "mine.npz" in rows[1].failed
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", train_x=draw.normal(size=(800, 9)), train_y=np.arange(800) % 3,
             test_x=draw.normal(size=(200, 9)), test_y=np.arange(200) % 3)
    rows = sweep(experiment, grid, out, stacked=True).rows
    assert [row.runs for row in rows] == [0, 1]
    failed = next(out.rglob("failed.json"))
    stamp = failed.stat().st_mtime_ns
    sweep(experiment, grid, out, stacked=True)
    assert failed.stat().st_mtime_ns == stamp


def test_a_run_whose_process_died_is_told_from_one_that_did_not_start(small, tmp_path, monkeypatch):
    """Its code is at hand only while the sweep runs; it leaves no failed.json, so that the same call tries again."""
    (tmp_path / "deadly.py").write_text("import os\n\n__fedgap__ = [\"data\"]\n\ndef data():\n    os._exit(7)\n")
    experiment = small("rounds=2", "data.name=deadly:data")
    monkeypatch.syspath_prepend(str(tmp_path))  # a spawned process inherits it
    rows = sweep(experiment, {"seed": ["0"]}, tmp_path / "sweep").rows
    assert (rows[0].failed, rows[0].exit_code) == ("the process ended with code 7; see above", 1)


def _work(task):
    """In a worker's process: tell who did it, or die."""
    if task == "die":
        os._exit(7)
    return os.getpid(), task


def test_processes_stay_for_the_next_task_and_one_that_dies_takes_one_task_with_it():
    results = dict(in_processes(_work, ["a", "die", "b", "c"], 1))
    assert results["die"] == Died("the process ended with code 7; see above")
    assert [results[task][1] for task in "abc"] == ["a", "b", "c"]
    assert results["b"][0] == results["c"][0] != results["a"][0]


@pytest.mark.parametrize("stop", ["ctrl-c", pytest.param("terminate", marks=pytest.mark.full)])
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
    rows = sweep(small("rounds=4"), parse_grid(["seed=0,1"]), tmp_path / "sweep", ray="local").rows
    assert rows[0].runs == 2


@pytest.mark.parametrize(("address", "says"), [
    ("127.0.0.1:1", "no cluster answers"), ("here:there", "HOST:PORT"), ("127.0.0.1:99999", "no cluster")])
def test_a_ray_cluster_that_is_not_there_is_said_at_once(small, tmp_path, address, says):
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=says):
        sweep(small("rounds=4"), parse_grid(["seed=0,1"]), tmp_path / "sweep", ray=address)
