"""A precision that the processor cannot compute in is found in a child process, refused in one line, and not tested."""

import os
import sys
from pathlib import Path

import pytest
from torch import nn

from fedgap.cli.main import run
from fedgap.errors import InputError
from fedgap.learning.engine import Engine, cpu_probe

VARIABLE = cpu_probe.ANSWER_VARIABLE.format("BFLOAT16")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
DIES_WITH_AMX = f"import os\nif {cpu_probe.LIMIT[0]!r} not in os.environ: os.abort()"


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has probed yet; what a test finds out is forgotten after it."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv(cpu_probe.LIMIT[0], raising=False)


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(cpu_probe, "CHILD", (sys.executable, "-c", code))


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(("code", "answer", "remedy"), [
    (DIES, cpu_probe.FAILS, "use float32"),
    (DIES_WITH_AMX, cpu_probe.WORKS_LIMITED,
     "use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"),
    ("raise SystemExit(1)  # a wrong result", cpu_probe.FAILS, "use float32"),
])
def test_a_dying_child_is_a_precision_that_is_refused(monkeypatch, code, answer, remedy):
    child(monkeypatch, code)
    with pytest.raises(InputError) as caught:
        Engine(nn.Linear(2, 2), precision="bfloat16")
    assert str(caught.value) == (
        f"engine.precision: this computer's processor cannot compute in bfloat16; {remedy}")
    assert os.environ[VARIABLE] == answer


@pytest.mark.usefixtures("unknown")
def test_training_is_refused_in_one_line(monkeypatch, tmp_path: Path, capsys):
    child(monkeypatch, DIES)
    arguments = ["train", "embedded", "engine.precision=bfloat16", "engine.device=cpu", "rounds=2",
                 "budget.energy_j=1.25", "budget.delay_s=0.75", "--out", str(tmp_path / "run")]
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert "engine.precision: this computer's processor cannot compute in bfloat16; use float32" in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("unknown")
def test_a_child_that_hangs_does_not_work(monkeypatch):
    child(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(cpu_probe, "PATIENCE_S", 0.2)
    assert cpu_probe.probe("bfloat16") == cpu_probe.FAILS


@pytest.mark.usefixtures("unknown")
def test_a_precision_is_probed_once(monkeypatch):
    child(monkeypatch, "")
    assert cpu_probe.probe("bfloat16") == cpu_probe.WORKS
    child(monkeypatch, DIES)
    assert cpu_probe.probe("bfloat16") == cpu_probe.WORKS  # remembered, also by the processes that this one starts
    Engine(nn.Linear(2, 2), precision="bfloat16")


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("precision", ["float32", "float64", "tf32"])
def test_the_usual_precisions_start_no_child(monkeypatch, precision):
    child(monkeypatch, DIES)
    Engine(nn.Linear(2, 2), precision=precision)
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("precision", ["bfloat16"])
@pytest.mark.usefixtures("cpu_precision")
def test_the_real_kernels_pass_where_the_precision_works(precision):
    cpu_probe.run_kernels(precision)


@pytest.mark.parametrize("precision", ["bfloat16"])
@pytest.mark.usefixtures("cpu_precision")
def test_wrong_products_do_not_pass(monkeypatch, precision):
    right = cpu_probe.functional.linear
    monkeypatch.setattr(cpu_probe.functional, "linear",
                        lambda x, weight, bias: right(x, weight, bias) * (1.2 if "bfloat16" in str(x.dtype) else 1.0))
    with pytest.raises(SystemExit):
        cpu_probe.run_kernels(precision)
