"""Run folders and the processes that work on them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgap.errors import InputError
from fedgap.web.runs import Runs
from tests.web.studio_server import Studio

SMALL = {"preset": "paper-mnist", "model": "mlp", "evaluate_every": 2}


def wait(condition: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.2)


def state(studio: Studio, name: str) -> str:
    return studio.client.get(f"/api/runs/{name}").json()["state"]


def test_a_run_is_started_stopped_resumed_and_outlives_its_server(tmp_path: Path) -> None:
    with Studio(tmp_path / "runs") as studio:
        name = studio.post("/api/runs", **SMALL, overrides=["rounds=160"], name="long").json()["name"]
        assert name == "long"
        assert studio.post("/api/runs", **SMALL, name="long").status_code == 422  # taken
        wait(lambda: len(studio.client.get("/api/runs/long/rounds").json()) >= 5)
        assert studio.post("/api/runs/long/resume").status_code == 422  # it is running
        assert studio.post("/api/runs/long/stop").status_code == 200
        wait(lambda: state(studio, "long") == "stopped")
        done = len(studio.client.get("/api/runs/long/rounds").json())
        assert 5 <= done < 160
        assert studio.post("/api/runs/long/stop").status_code == 422  # it stands still
        assert studio.post("/api/runs/long/resume").status_code == 200
        wait(lambda: len(studio.client.get("/api/runs/long/rounds").json()) > done)
        studio.process.kill()  # the server goes, the run stays
        studio.process.wait()
    with Studio(tmp_path / "runs") as again:
        assert state(again, "long") in ("running", "finished")
        wait(lambda: state(again, "long") == "finished")
        rounds = again.client.get("/api/runs/long/rounds").json()
        assert [one["round"] for one in rounds] == list(range(160))
        overview = again.client.get("/api/runs/long").json()
        assert overview["energy_j"] <= overview["energy_budget_j"] * (1 + 1e-6)
        assert overview["delay_s"] <= overview["delay_budget_s"] * (1 + 1e-6)
        assert overview["test_accuracy"] is not None
        assert len(overview["clients"]) == 10
        assert follow(again, "long", 160) == rounds


def follow(studio: Studio, name: str, count: int) -> list[dict]:
    """The rounds that the event stream gives, and the state that it ends with."""
    found: list[dict] = []
    with studio.client.stream("GET", f"/api/runs/{name}/events") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in reply.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind == "rounds":
                found += json.loads(line.removeprefix("data: "))
            elif line.startswith("data: ") and kind == "state" and len(found) >= count:
                assert json.loads(line.removeprefix("data: "))["state"] == "finished"
                return found
    raise AssertionError("the stream ended")


def test_a_run_that_cannot_be_planned_says_why(studio: Studio) -> None:
    name = studio.post("/api/runs", **SMALL, overrides=["budget.delay_s=1"]).json()["name"]
    wait(lambda: state(studio, name) == "failed")
    assert "delay_s" in studio.client.get(f"/api/runs/{name}").json()["message"]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def folder(runs: Runs, name: str, **files: str) -> Path:
    made = runs.root / name
    (made / "job").mkdir(parents=True)
    (made / "job" / "job.json").write_text("{}")
    for file, text in files.items():
        (made / file.replace("_", ".")).write_text(text)
    return made


def test_a_torn_last_line_is_dropped(runs: Runs) -> None:
    folder(runs, "torn", rounds_jsonl='{"round":0,"clients":[1],"train_loss":2.0,"secret":1}\n{"round":1,"cl')
    assert runs.rounds("torn") == [{"round": 0, "clients": [1], "train_loss": 2.0}]
    assert runs.state("torn")[0] == "stopped"


def test_another_process_of_the_same_number_is_not_the_run(runs: Runs) -> None:
    for pid in (os.getpid(), 1, 0, -1, 2**30, "7", True, None):
        folder(runs, f"run{pid}".replace("-", "m"), studio_json=json.dumps({"pid": pid}))
    assert {runs.state(name)[0] for name in runs.names()} == {"stopped"}


def test_the_process_on_the_folder_is(runs: Runs) -> None:
    made = folder(runs, "mine")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(made)])
    try:
        (made / "studio.json").write_text(json.dumps({"pid": process.pid}))
        wait(lambda: runs.state("mine")[0] == "running", 20)
    finally:
        process.kill()
        process.wait()
    assert runs.state("mine")[0] == "stopped"


def test_a_run_from_a_terminal_runs_here_too(runs: Runs) -> None:
    made = folder(runs, "elsewhere", rounds_jsonl='{"round":0}\n')
    assert runs.state("elsewhere")[0] == "stopped"
    code = "import sys, time; log = open(sys.argv[1], 'ab'); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(made / "rounds.jsonl"), "fedgap"])
    try:
        wait(lambda: runs.state("elsewhere") == ("running", "started outside the studio"), 20)
        with pytest.raises(InputError, match="is running"):
            runs.resume("elsewhere")
        runs.stop("elsewhere")
        assert process.wait(20) != 0
        wait(lambda: runs.state("elsewhere")[0] == "stopped", 20)
        with pytest.raises(InputError, match="has stopped already"):
            runs.stop("elsewhere")
    finally:
        process.kill()


def test_a_sweeps_runs_lie_deeper(runs: Runs) -> None:
    folder(runs, "sweep/seed=0")
    folder(runs, "sweep/seed=1")
    folder(runs, "alone")
    folder(runs, "a/b/c/too-deep")
    (runs.root / "empty").mkdir()
    assert set(runs.names()) == {"sweep~seed=0", "sweep~seed=1", "alone"}
    assert runs.folder("sweep~seed=0") == runs.root / "sweep" / "seed=0"
    for name in ("sweep", "sweep~", "~alone", "empty", "a~b~c~too-deep", "sweep/seed=0", ""):
        with pytest.raises(LookupError):
            runs.folder(name)


def test_broken_files_do_not_break_the_list(runs: Runs) -> None:
    folder(runs, "broken", summary_json="{", plan_json="[]", config_yaml="a: [", scenario_yaml="- 1",
           rounds_jsonl="x\n\ny\n")
    overview = runs.overview("broken")
    assert overview["state"] == "finished"
    assert overview["rounds"] == 0
