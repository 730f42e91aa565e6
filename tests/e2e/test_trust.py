"""What somebody else's file, or a second process, cannot do to this machine."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.terminal import fedgap

TOUCH = "{args: [touch, hacked]}"


@pytest.mark.parametrize("override", [
    ("model.name=subprocess:Popen", f"model.arguments={TOUCH}"), ("data.name=subprocess:Popen",),
    ("pruning.importance=subprocess:Popen",), ("learning.aggregator=subprocess:Popen",),
    ("objective=subprocess:Popen",), ("selection=subprocess:Popen",), ("scheme=subprocess:Popen",),
    ("scenario.fleet.kind=subprocess:Popen", "scenario.fleet.args=[touch, hacked]"),
], ids=lambda override: override[0].partition("=")[0])
def test_an_experiment_cannot_call_an_arbitrary_function(tmp_path, monkeypatch, override):
    """Before, the first of these started the process that it names."""
    monkeypatch.chdir(tmp_path)
    base = ("rounds=2", "data.train_samples=600", "data.test_samples=200", "budget.energy_j=100", "budget.delay_s=100")
    answer = fedgap("train", "embedded", *base, *override, "--out", "run")
    errors = [line for line in answer.err.splitlines() if not line.startswith("warning: ")]  # of the plan
    assert (answer.code, len(errors)) == (2, 1), answer.err
    assert "subprocess:Popen is not offered to fedgap" in answer.err
    time.sleep(0.1)
    assert not (tmp_path / "hacked").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


HOLDER = "import sys, time; from pathlib import Path; from fedgap.files import hold_folder\n" \
         "with hold_folder(Path('run')): print('held', flush=True); time.sleep(60)"


@pytest.mark.parametrize("command", [
    ("deploy", "up", "embedded", "--local", "2", "--out", "run"), ("train", "embedded", "--out", "run"),
    ("deploy", "server", "embedded", "--keys", "keys", "--out", "run")], ids=["deploy up", "train", "deploy server"])
def test_a_folder_has_one_user(tmp_path, monkeypatch, command):
    """Before, a second `deploy up` removed the keys of the first."""
    monkeypatch.chdir(tmp_path)
    assert fedgap("deploy", "keys", "keys", "--host", "localhost", "--node", "a").code == 0
    keys = tmp_path / "run" / "deployment" / "keys"
    keys.mkdir(parents=True, mode=0o700)
    (keys / "ca.key").write_text("secret")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        answer = fedgap(*command)
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
        assert re.search(rf"run: process {holder.pid} is using this folder \(.+\); wait until it ends", answer.err)
        assert (keys / "ca.key").read_text() == "secret"
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


def test_the_lock_of_a_dead_process_does_not_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        holder.stdout.readline()
        holder.kill()
    assert (tmp_path / "run" / ".lock").read_text().startswith(f"{holder.pid} ")
    answer = fedgap("train", "embedded", "rounds=2", "model.name=mlp", "data.train_samples=600",
                    "data.test_samples=200", "budget.energy_j=100", "budget.delay_s=100", "--out", "run")
    assert answer.code == 0, answer.err
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_node_makes_its_own_key_and_hands_over_the_public_half(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = fedgap("deploy", "key", "shop-1", "own")
    assert answer.code == 0, answer.err
    assert "wrote own/shop-1, which stays here; give shop-1.pub to the server's operator" in answer.out
    assert (tmp_path / "own" / "shop-1").stat().st_mode & 0o077 == 0
    assert fedgap("deploy", "keys", "keys", "--host", "server.example").code == 0  # without --node
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == ["ca.crt", "ca.key", "server.crt",
                                                                          "server.key"]
    assert fedgap("deploy", "key", "../shop", "own").code == 2
