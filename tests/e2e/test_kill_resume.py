"""Runs killed with SIGKILL at random moments and resumed end bit-identical to the uninterrupted one."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgap.config import Experiment
from fedgap.running.prepare import divide, prepare
from fedgap.running.run import Run
from fedgap.running.train_and_resume import write_run
from tests.running.plans import by_hand

KILLED_RUNS = 50 if os.environ.get("FEDGAP_FULL") == "1" else 1
ROUNDS = 40


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fedgap.running.run", str(folder)], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE)


def lines(folder: Path) -> int:
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def results(folder: Path) -> tuple[bytes, bytes, dict]:
    summary = json.loads((folder / "summary.json").read_bytes())
    del summary["wall_s"]
    return (folder / "model.safetensors").read_bytes(), (folder / "rounds.jsonl").read_bytes(), summary


def assert_nothing_torn(folder: Path) -> None:
    """Whatever is there can be read: JSON is whole, and the log ends in at most one torn line."""
    for path in folder.rglob("*.json"):
        json.loads(path.read_bytes())
    if (folder / "rounds.jsonl").exists():
        history = Run(folder).history
        assert [event["round"] for event in history] == list(range(len(history)))
    if (folder / "checkpoint" / "latest.json").exists():
        latest = json.loads((folder / "checkpoint" / "latest.json").read_bytes())
        assert (folder / "checkpoint" / latest["file"]).is_file()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A run folder that is ready to execute: LeNet on the embedded digits, faults and pruning included."""
    folder = tmp_path_factory.mktemp("kill") / "prepared"
    experiment = Experiment.load("embedded", [
        f"rounds={ROUNDS}", "data.train_samples=500", "data.test_samples=100", "engine.threads=1", "engine.device=cpu",
        "evaluate_every=5", "checkpoint_every=2", "budget.energy_j=1e6", "budget.delay_s=1e6",
        "faults.dropout_probability=0.1"])
    _, _, scenario = divide(experiment)
    plan = by_hand(scenario, (1, range(10), 0.0), (20, [0, 1, 2], 0.4), (ROUNDS - 21, [3, 4], 0.2))
    return write_run(prepare(experiment, plan), folder, copy_data=True)


def kill_at_random(process: subprocess.Popen[bytes], folder: Path, dice: random.Random) -> None:
    """Kills during the start, or after a random number of rounds and a moment: amid computing, writing or syncing."""
    before = lines(folder)
    target = -1 if dice.random() < 0.1 else before + dice.randrange(ROUNDS - before) if before < ROUNDS else before
    while process.poll() is None and lines(folder) < target:
        time.sleep(0.001)
    time.sleep(dice.random() * (2.0 if target < 0 else 0.05))
    process.kill()


def test_killed_runs_end_bit_identical(prepared, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(prepared, whole)
    process = start(whole)
    _, error = process.communicate()
    assert process.returncode == 0, error.decode()
    expected, dice, killed = results(whole), random.Random(0), 0
    for number in range(KILLED_RUNS):
        folder = tmp_path / f"killed{number}"
        shutil.copytree(prepared, folder)
        for attempt in range(10):
            process = start(folder)
            if attempt < 2:
                kill_at_random(process, folder, dice)
            _, error = process.communicate()
            assert process.returncode in (0, -9), error.decode()
            killed += process.returncode == -9
            assert_nothing_torn(folder)
            if process.returncode == 0:
                break
        assert results(folder) == expected
        assert not list(folder.rglob(".*.part"))
        shutil.rmtree(folder)
    assert killed >= KILLED_RUNS  # most were killed twice, some had ended before their second kill


def fedgap_process(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fedgap", *arguments], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE)


def test_a_run_by_a_policy_that_is_killed_and_resumed_by_commands_ends_bit_identical(tmp_path):
    """``replan`` decides in a changing world; its state and the rounds decided so far are in the checkpoint."""
    command = ("train", "embedded", "policy=replan", "mode=practical", "rounds=14", "budget.energy_j=14",
               "budget.delay_s=9", "scheme=forecast", "learning.local_steps=1", "data.train_samples=500",
               "data.test_samples=100", "evaluate_every=7", "checkpoint_every=2", "engine.threads=1",
               "engine.device=cpu", "scenario.world.step_s=0.5", "scenario.world.fading.doppler_hz=0.3",
               "scenario.world.availability.mean_on_s=4", "scenario.world.availability.mean_off_s=2")
    folders = {name: tmp_path / name for name in ("whole", "killed")}
    processes = {name: fedgap_process(*command, "--out", str(folder)) for name, folder in folders.items()}
    killed = folders["killed"]
    while processes["killed"].poll() is None and lines(killed) < 4:
        time.sleep(0.001)
    processes["killed"].kill()
    errors = {name: process.communicate()[1].decode() for name, process in processes.items()}
    assert (processes["whole"].returncode, processes["killed"].returncode) == (0, -9), errors
    assert not (killed / "summary.json").exists()
    assert (killed / "checkpoint" / "latest.json").exists()
    assert_nothing_torn(killed)
    resumed = fedgap_process("resume", str(killed))
    error = resumed.communicate()[1].decode()
    assert resumed.returncode == 0, error
    assert lines(killed) >= 8
    assert results(killed) == results(folders["whole"])
