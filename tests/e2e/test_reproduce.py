"""``fedgap reproduce`` from a definition to results and picture; it resumes, and it says what is missing."""

import json
from pathlib import Path

import pytest

from fedgap.cli.main import run
from fedgap.evidence.definition import FOLDER
from fedgap.evidence.reproduce import reproduce
from fedgap.evidence.workshop import Workshop

TINY = """
title: Tiny
kind: {kind}
xlabel: x
presets:
  quick:
    - title: tiny
      experiment: embedded
      overrides: [rounds=6, budget.energy_j=3.75, evaluate_every=3, engine.threads=1]
      modes: [repaired]
      schemes: [proposed, all_clients, fixed_frequency]
      seeds: 0-1
      vary: delay_s
      nominal: 2.25
      values: [1.0]
    - {{title: later, experiment: embedded, status: not yet run}}
  paper: []
"""


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    for name, kind in (("fig5", "loss"), ("fig7", "accuracy")):
        (tmp_path / "definitions" / name).mkdir(parents=True)
        (tmp_path / "definitions" / name / "config.yaml").write_text(TINY.format(kind=kind), encoding="utf-8")
    return tmp_path / "definitions"


def test_figures_are_made_and_gone_on_with(definitions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    untrained = reproduce(["fig7"], Workshop(out, "quick", workers=1, definitions=definitions, train=False))
    assert untrained["fig7"]["panels"][0]["missing"] >= 2
    found = reproduce(["fig5", "fig7"], Workshop(out, "quick", workers=1, definitions=definitions))
    for name in ("fig5", "fig7"):
        written = json.loads((out / name / "results.json").read_text(encoding="utf-8"))
        assert written == json.loads(json.dumps(found[name]))
        assert (out / name / f"{name}.png").stat().st_size > 10_000
        first, second = written["panels"]
        assert second["status"] == "not yet run"
        assert len(first["rows"]) == 6
        assert {c["baseline"] for c in first["comparisons"]} == {"all_clients", "fixed_frequency"}
    # Both figures need the same runs; identical plans share one.
    records = (out / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(records) == len({row["run"] for row in found["fig5"]["panels"][0]["rows"]}) <= 6
    curve = found["fig5"]["panels"][0]["curves"][0]
    assert curve["x"][-1] <= 2.25 * (1 + 1e-6)
    before = (out / "runs.jsonl").read_bytes()
    again = reproduce(["fig5"], Workshop(out, "quick", workers=1, definitions=definitions))
    assert again["fig5"]["panels"] == found["fig5"]["panels"]
    assert (out / "runs.jsonl").read_bytes() == before


def test_runs_for_another_machine_come_by_turn_and_once(definitions: Path, tmp_path: Path) -> None:
    """What waits is written too; a run that an earlier turn has is not in a later one."""
    from fedgap.evidence.bundle import unpack
    from fedgap.evidence.gpu_bundles import hand_over

    path = definitions / "fig7" / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(
        "- {title: later, experiment: embedded, status: not yet run}",
        "- {title: later, experiment: embedded, status: not yet run, turn: 2, modes: [repaired], seeds: [0, 7], "
        "schemes: [proposed], overrides: [rounds=6, budget.energy_j=3.75, evaluate_every=3, engine.threads=1], "
        "nominal: 2.25}"), encoding="utf-8")
    parts = hand_over(["fig7"], Workshop(tmp_path / "out", "quick", workers=1, definitions=definitions), tmp_path / "b")
    assert [part.folder.name for part in parts] == ["0", "2"]
    first, later = (unpack(part.folder) for part in parts)
    assert [part.runs for part in parts] == [len(first), len(later)] == [len(first), 1]
    assert not first.keys() & later.keys()
    assert {job.seed for job in later.values()} == {7}
    assert all(part.gpu_s > 0.0 for part in parts)


def test_the_command_without_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "table1", "fig3", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "resnet44" in said
    assert "rank correlation with KL" in said
    assert (tmp_path / "fig3" / "fig3.png").is_file()
    table = json.loads((tmp_path / "table1" / "results.json").read_text(encoding="utf-8"))
    derived = {(row["model"], row["quantity"]): row["derived"] for row in table["rows"]}
    assert derived["lenet5", "gradient_bits"] == 1_421_632
    assert derived["resnet44", "gradient_bits"] == 21_074_752


def test_redrawing_takes_the_results_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "table1", "rounds", "--redraw", "--out", str(tmp_path)]) == 0
    path = tmp_path / "rounds" / "results.json"
    assert path.read_bytes() == (FOLDER / "rounds" / "results.json").read_bytes()
    committed = (tmp_path / "rounds" / "rounds.png").read_bytes()
    changed = json.loads(path.read_text(encoding="utf-8"))
    changed["panels"][0]["title"] = "My own results"
    path.write_text(json.dumps(changed), encoding="utf-8")
    assert run(["reproduce", "rounds", "--redraw", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "rounds" / "rounds.png").read_bytes() != committed
    assert "My own results" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    (["fig9"], "fig9: must be one of"), (["fig3", "--preset", "slow"], "--preset: must be one of quick, paper"),
    (["fig3", "--redraw", "--data", "."], "--redraw: cannot be combined with --data or --bundle"),
])
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path,
                               capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
