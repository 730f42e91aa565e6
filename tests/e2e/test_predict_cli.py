"""``fedgap predict`` and ``fedgap export`` as a person calls them, with the commands of the how-to page."""

import csv
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.terminal import fedgap

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-the-trained-model.md"
FAST = ["rounds=8", "model.name=mlp", "scenario.learning.rate=0.05", "engine.threads=1", "engine.device=cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished run and the page's file of samples."""
    folder = tmp_path_factory.mktemp("predict")
    assert fedgap("train", "embedded", *FAST, "--out", folder / "runs" / "first").code == 0
    scripts = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    subprocess.run([sys.executable, "-c", scripts[0]], cwd=folder, check=True)
    return folder


def test_the_reported_accuracy_comes_out_again(place):
    run, out = place / "runs" / "first", place / "predictions.csv"
    reported = json.loads((run / "summary.json").read_bytes())["test_accuracy"]
    answer = fedgap("predict", run, place / "digits.npz", "--out", out)
    assert answer.code == 0, answer.err
    assert "1,000 samples, the first 10" in answer.out
    assert f"Accuracy: {reported:.2%} (95 % interval" in answer.out
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    labels = np.load(place / "digits.npz")["y"]
    assert np.mean([int(row["class_name"]) == label for row, label in zip(rows, labels, strict=True)]) == reported
    answer = json.loads(fedgap("predict", run, place / "digits.npz", "--json").out)
    assert answer["accuracy"] == reported
    assert answer["classes"] == [int(row["class"]) for row in rows]
    assert answer["interval"][0] < reported < answer["interval"][1]


def test_the_pages_python_and_export_run(place):
    answer = fedgap("export", place / "runs" / "first", "--out", place / "model.pt")
    assert answer.code == 0, answer.err
    assert "takes samples (n, 1, 28, 28) without standardisation and returns probabilities (n, 10)" in answer.out
    scripts = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", scripts[1]], cwd=place, check=True, capture_output=True, text=True)
    first, second = done.stdout.split()
    assert first == second
    done = subprocess.run([sys.executable, "-c", scripts[2]], cwd=place, check=True, capture_output=True, text=True)
    assert done.stdout.strip() in "0123456789"


def test_onnx_is_written_or_one_line_says_what_to_install(place):
    out = place / "model.onnx"
    answer = fedgap("export", place / "runs" / "first", "--format", "onnx", "--out", out)
    if find_spec("onnx") and find_spec("onnxscript"):
        assert answer.code == 0, answer.err
        assert out.is_file()
        return
    assert answer.code == 2
    assert re.fullmatch(r"fedgap: --format: onnx needs the package .+; pip install .*onnxscript\n", answer.err)
    assert not out.exists()


def test_without_labels_there_is_no_accuracy(place):
    np.savez(place / "unlabelled.npz", test_x=np.load(place / "digits.npz")["x"][:3])
    answer = fedgap("predict", place / "runs" / "first", place / "unlabelled.npz")
    assert answer.code == 0
    assert "3 samples" in answer.out
    assert "Accuracy" not in answer.out
    assert json.loads(fedgap("predict", place / "runs" / "first", place / "unlabelled.npz", "--json").out)[
        "accuracy"] is None


@pytest.mark.parametrize(("arguments", "says"), [
    (["predict", "absent", "digits.npz"], "absent: holds no run; start one with `fedgap train`"),
    (["predict", "runs/first", "absent.npz"], "absent.npz: cannot be read as .npz"),
    (["predict", "runs/first", "wrong.npz"], "data: one sample of x of wrong.npz has shape (1, 5, 5)"),
    (["predict", "runs/first", "digits.npz", "--out", "p.txt"], "--out: p.txt must end in .npz or .csv"),
    (["export", "runs/first", "--out", "absent/model.pt"], "--out: the folder absent must exist"),
])
def test_what_is_wrong_is_one_line(place, monkeypatch, arguments, says):
    monkeypatch.chdir(place)
    np.savez("wrong.npz", x=np.zeros((2, 5, 5)))
    answer = fedgap(*arguments)
    assert answer.code == 2
    assert answer.err.startswith(f"fedgap: {says}")
    assert answer.err.count("\n") == 1
