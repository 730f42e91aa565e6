"""The commands train, resume, sweep and partition as a person calls them, on the embedded digits."""

import json
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedgap.cli.main import run
from fedgap.running.run import main

FEDGAP = str(Path(sys.executable).with_name("fedgap"))
Answer = tuple[int, str, str]
SMALL = ["rounds=6", "data.train_samples=600", "data.test_samples=200", "engine.threads=1", "engine.device=cpu",
         "evaluate_every=3"]


@pytest.fixture
def fedgap(capfd) -> Callable[..., Answer]:
    """Calls a command in this process: exit code, what it said on stdout, and on stderr."""
    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return code, said.out, said.err
    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    done = subprocess.run([FEDGAP, "train", "embedded", *SMALL, "--out", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    assert "round 6/6" in done.stderr
    return folder


def test_train_plans_trains_within_the_budgets_and_leaves_the_contracts_files(trained):
    for name in ("config.yaml", "scenario.yaml", "plan.json", "rounds.jsonl", "checkpoint", "model.safetensors",
                 "model_card.md", "summary.json", "versions.json"):
        assert (trained / name).exists(), name
    plan, summary = (json.loads((trained / name).read_bytes()) for name in ("plan.json", "summary.json"))
    assert summary["rounds"] == 6
    assert summary["energy_j"] == pytest.approx(plan["energy_j"], rel=1e-9)
    assert summary["delay_s"] == pytest.approx(plan["delay_s"], rel=1e-9)
    assert summary["energy_j"] <= 250 * (1 + 1e-6)
    assert summary["delay_s"] <= 150 * (1 + 1e-6)
    assert summary["theta"] == pytest.approx(plan["theta"])


def test_a_model_of_another_size_than_is_charged_is_noted(fedgap, trained, tmp_path):
    """An MLP of 784·64 + 64 + 64·10 + 10 = 50,890 weights has 1,628,480 bits; LeNet-5's, charged, are 1,421,632."""
    small = ["train", "embedded", *SMALL, "rounds=1", "model.name=mlp", "model.arguments={hidden: [64]}"]
    code, out, error = fedgap(*small, "--out", tmp_path / "charged")
    assert code == 0, error
    assert "a gradient of 1,421,632 bits" in out
    assert "scenario.model.gradient_bits=1628480" in " ".join(out.split())
    code, out, error = fedgap(*small, "scenario.model.gradient_bits=1628480", "--out", tmp_path / "own")
    assert code == 0, error
    assert "gradient" not in out
    assert "gradient" not in fedgap("resume", trained)[1]


def test_a_training_that_diverged_stops_and_is_told(fedgap, trained, tmp_path):
    """No validation samples are needed for it."""
    far = tmp_path / "far"
    code, out, error = fedgap("train", "embedded", *SMALL, "scenario.learning.rate=1000", "--out", far)
    assert code == 4, error
    assert error.endswith("fedgap: training diverged: the loss is no longer finite; try a smaller rate, for example "
                          "scenario.learning.rate=3.3e+02 instead of 1000\n")
    assert "3 of 6: training diverged" in out
    assert "probably" not in out  # said once
    code, out, error = fedgap("resume", far, "--json")
    assert code == 4
    assert json.loads(out)["diverged"] is True
    assert main([str(far)]) == 4  # as on a machine without the command line
    code, out, _ = fedgap("resume", trained)
    assert code == 0
    assert "diverged" not in out


def test_the_saved_configuration_trains_the_same_again(fedgap, trained, tmp_path):
    code, out, error = fedgap("train", trained / "config.yaml", "--out", tmp_path / "again", "--json")
    assert code == 0, error
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    assert json.loads(out)["folder"] == str(tmp_path / "again")


def test_a_taken_folder_an_unknown_key_and_no_plan_get_one_line(fedgap, trained, tmp_path):
    for arguments, code, says in (
        (("train", "embedded", "--out", trained), 2, "holds a run already"),
        (("train", "embedded", "sede=3", "--out", tmp_path / "x"), 2, "seed"),
        (("train", "embedded", "data.name=mnist", f"data.folder={tmp_path}"), 2, "needs train-images-idx3-ubyte"),
        (("resume", tmp_path), 2, "holds no run"),
        (("train", "embedded", *SMALL, "budget.delay_s=0.001", "--out", tmp_path / "x"), 3, "delay"),
        (("sweep", "embedded", "seed", "--out", tmp_path / "x"), 2, "key=value"),
    ):
        got, out, error = fedgap(*arguments)
        assert got == code, error
        assert says in error
        assert error.strip().count("\n") == 0
        assert out == ""
    assert not (tmp_path / "x").exists()


def test_resuming_a_finished_run_says_what_came_out(fedgap, trained):
    code, out, _ = fedgap("resume", trained, "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == 6


def test_a_plan_made_before_is_trained_and_another_scenarios_is_refused(fedgap, trained, tmp_path):
    scenario, plan = tmp_path / "fleet.yaml", tmp_path / "plan.json"
    assert fedgap("partition", "embedded", *SMALL, "--scenario", scenario)[0] == 0
    assert fedgap("plan", scenario, "--out", plan)[0] == 0
    code, _, error = fedgap("train", "embedded", *SMALL, "--plan", plan, "--out", tmp_path / "run")
    assert code == 0, error
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    code, _, error = fedgap("train", "embedded", *SMALL, "seed=1", "--plan", plan, "--out", tmp_path / "other")
    assert code == 2
    assert "was made for another scenario" in error


def test_ctrl_c_exits_130_with_everything_on_disk_and_resume_ends_the_same(fedgap, tmp_path):
    arguments = ["train", "embedded", *SMALL, "rounds=60", "model.name=lenet5", "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert fedgap(*arguments, whole)[0] == 0
    process = subprocess.Popen([FEDGAP, *arguments, str(cut)], stderr=subprocess.PIPE, text=True)
    log = cut / "rounds.jsonl"
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= 5):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert f"fedgap resume {cut}" in error
    assert 5 <= log.read_bytes().count(b"\n") < 60
    assert (cut / "checkpoint" / "latest.json").exists()
    assert fedgap("resume", cut)[0] == 0
    for name in ("model.safetensors", "rounds.jsonl"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def limited(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Calls a command whose files may have ``limit`` bytes at most: what a full disk does, without one."""
    return subprocess.run([FEDGAP, *map(str, arguments)], capture_output=True, text=True, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)))


def test_a_disk_that_is_full_is_one_line_and_loses_nothing(fedgap, trained, tmp_path):
    """LeNet-5's checkpoint has three arrays of 44,426 floats, 533 kB, and does not fit; the log and the job do."""
    folder = tmp_path / "full"
    done = limited(300_000, "train", "embedded", *SMALL, "checkpoint_every=2", "--out", folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"fedgap: {folder}/checkpoint/round-000002.safetensors: cannot be written or read (File too large); free some "
        f"space or make it writable, then continue with: fedgap resume {folder}")
    assert not [path for path in folder.rglob("*") if path.name.endswith(".part")]
    code, _, error = fedgap("resume", folder)
    assert code == 0, error
    for name in ("model.safetensors", "rounds.jsonl"):
        assert (folder / name).read_bytes() == (trained / name).read_bytes()
    for limit, arguments in ((2000, ("init", tmp_path / "new")),
                             (2000, ("partition", "embedded", "--picture", tmp_path / "new" / "p.png")),
                             (100, ("reproduce", "fig3", "--out", tmp_path / "new"))):
        done = limited(limit, *arguments)
        assert done.returncode == 2
        assert "(File too large)" in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new" / "scenario.yaml").exists()
    assert fedgap("init", tmp_path / "new")[0] == 0


def test_partition_shows_and_draws_who_has_what(fedgap, tmp_path):
    command = ("partition", "embedded", "partition.concentration=1,5", "--picture", tmp_path / "who.png")
    code, out, error = fedgap(*command, "--json")
    assert code == 0, error
    rows = json.loads(out)["panels"]
    assert [row["overrides"] for row in rows] == [["partition.concentration=1"], ["partition.concentration=5"]]
    assert [sum(counts) for counts in rows[0]["label_counts"]] == [400] * 10
    assert max(rows[0]["phi"]) > max(rows[1]["phi"])
    assert (tmp_path / "who.png").read_bytes()[:4] == b"\x89PNG"
    assert "client 9" in fedgap(*command)[1]


def test_nothing_of_the_users_is_replaced(fedgap, tmp_path):
    """A folder with a file that a run would write is refused, and a run that cannot start leaves no folder behind."""
    assert fedgap("init", tmp_path / "mine")[0] == 0
    before = (tmp_path / "mine" / "scenario.yaml").read_bytes()
    code, _, error = fedgap("train", tmp_path / "mine" / "experiment.yaml", "rounds=2", "--out", tmp_path / "mine")
    assert (code, "holds scenario.yaml" in error) == (2, True)
    assert (tmp_path / "mine" / "scenario.yaml").read_bytes() == before
    assert fedgap("train", "embedded", "--out", "")[0] == 2
    if not torch.cuda.is_available():
        code, _, error = fedgap("train", "embedded", "engine.device=cuda", "--out", tmp_path / "gpu")
        assert (code, "engine.device" in error) == (2, True)
        assert not (tmp_path / "gpu").exists()


def test_damaged_files_are_named_in_one_line(fedgap, trained, tmp_path):
    empty, file = tmp_path / "empty.npz", tmp_path / "file"
    empty.touch()
    file.touch()
    cut = tmp_path / "cut"
    for name, what in (("arrays.npz", b""), ("arrays.npz", b"PK\x03\x04cut"), ("job.json", b"{}"), ("job.json", b"[]")):
        shutil.rmtree(cut, ignore_errors=True)
        shutil.copytree(trained, cut)
        (cut / "summary.json").unlink()
        (cut / "job" / name).write_bytes(what)
        code, _, error = fedgap("resume", cut)
        assert (code, "job" in error, error.count("\n")) == (2, True, 1), error
    (cut / "summary.json").touch()
    nested = tmp_path / "nested.json"
    nested.write_text("[" * 100_000)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("?")
    for command, named in (
        (("resume", cut), "summary.json"),
        (("train", "embedded", f"data.name={empty}", "--out", tmp_path / "a"), "empty.npz"),
        (("train", "embedded", "partition.kind=file", f"partition.file={empty}", "--out", tmp_path / "b"), "empty.npz"),
        (("sweep", "embedded", "seed=0,1", "--out", file), "file"),
        (("sweep", "embedded", "seed=0,1", "--out", tmp_path / "sweep"), "sweep.json"),
        (("train", "embedded", "--plan", nested, "--out", tmp_path / "c"), "nested"),
        (("studio", "--runs", file), "--runs"),
        (("calibrate", "embedded", "--out", tmp_path), "--out"),
        (("partition", "embedded", "--picture", tmp_path / "x.gif"), "--picture"),
    ):
        code, _, error = fedgap(*command)
        assert (code, named in error, error.count("\n")) == (2, True, 1), (command, error)


def test_sweep_prints_one_table_with_confidence_intervals(fedgap, tmp_path):
    code, out, error = fedgap("sweep", "embedded", "seed=0,1", "rounds=2,3", "data.train_samples=600",
                              "data.test_samples=200", "--stacked", "--out", tmp_path / "sweep")
    assert code == 0, error
    assert error.count("accuracy") == 4
    assert " ± " in out
    assert (tmp_path / "sweep" / "summary.csv").exists()


def test_a_prepared_run_is_executed_elsewhere(fedgap, tmp_path):
    assert fedgap("train", "embedded", *SMALL, "--prepare-only", "--out", tmp_path / "far")[0] == 0
    assert not (tmp_path / "far" / "rounds.jsonl").exists()
    done = subprocess.run([sys.executable, "-m", "fedgap.running.run", str(tmp_path / "far")], capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "far" / "summary.json").exists()


@pytest.mark.parametrize("command", [
    ("sweep", "embedded", "seed=0,1", "model.name=my module:Net", "--workers", "2"),
    ("reproduce", "fig7", "--preset", "paper", "--data", "my data", "--workers", "1"),
])
def test_an_interrupted_command_says_how_to_go_on_as_a_shell_wants_it(fedgap, monkeypatch, tmp_path, command):
    import fedgap.evidence.reproduce as evidence
    import fedgap.running.sweep as sweeps

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "sweep", interrupted)
    monkeypatch.setattr(evidence, "reproduce", interrupted)
    code, _, error = fedgap(*command, "--out", tmp_path / "an out")
    assert code == 130
    told = shlex.split(error.partition("Continue with: ")[2])
    assert told[0] == "fedgap"
    assert sorted(told[1:]) == sorted([*command, "--out", str(tmp_path / "an out")])
