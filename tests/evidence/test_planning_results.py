"""The panel from its definition to its tables, through a bundle that is trained without a planner."""

from pathlib import Path

from fedgap.evidence.bundle import main as train_bundle
from fedgap.evidence.gpu_bundles import hand_over
from fedgap.evidence.reproduce import reproduce
from fedgap.evidence.result_tables import result_tables
from fedgap.evidence.workshop import Workshop

CONFIG = """
title: T
kind: planning
presets:
  paper: []
  quick:
    - title: Digits
      experiment: embedded
      overrides: [data.train_samples=800, data.test_samples=200, model.name=mlp, engine.threads=1, rounds=6,
                  evaluate_every=2, learning.local_steps=1]
      sigmas: [1.0]
      budget: [24.0, 20.0]
      turns: [[0.25, 1]]
      seeds: 0-1
      schemes: [forecast, random_k, power_of_choice]
"""


def test_the_panel_is_planned_trained_elsewhere_and_judged(tmp_path: Path) -> None:
    (tmp_path / "definitions" / "own").mkdir(parents=True)
    (tmp_path / "definitions" / "own" / "config.yaml").write_text(CONFIG, encoding="utf-8")

    def shop() -> Workshop:
        return Workshop(tmp_path / "out", "quick", workers=1, definitions=tmp_path / "definitions", train=False)

    (part,) = hand_over(["own"], shop(), tmp_path / "bundle")
    assert (part.folder.name, part.runs) == ("10", 6)
    records = tmp_path / "out" / "runs.jsonl"
    assert train_bundle([str(part.folder), "--out", str(records), "--device", "cpu", "--at-once", "2"]) == 0
    results = reproduce(["own"], shop())["own"]
    rows = results["panels"][0]["rows"]
    assert len(rows) == 6
    assert results["panels"][0]["missing"] == 0
    assert all(row["energy_j"] <= 6.0 * (1 + 1e-6) and row["delay_s"] <= 5.0 * (1 + 1e-6) for row in rows)
    (cell,) = results["judged"]["cells"]
    assert {entry["rival"] for entry in cell["rivals"]} == {"forecast", "random_k", "power_of_choice"}
    assert {entry["rival"] for entry in results["judged"]["pooled"]} == {"random_k", "power_of_choice"}
    assert (tmp_path / "out" / "own" / "own.png").is_file()
    assert "Mean regret" in str(result_tables(results)[-1])
    assert not hand_over(["own"], shop(), tmp_path / "again")
