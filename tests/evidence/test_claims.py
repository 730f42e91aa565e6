"""The claims page and the figures' results: written from what is committed, and consistent with it."""

import json
from pathlib import Path

import pytest

from fedgap.evidence import claims
from fedgap.evidence.definition import FOLDER, figure_names, load_figure
from fedgap.evidence.results import MEASURES, compare
from fedgap.evidence.store import Store

RESULTS = sorted(FOLDER.glob("fig[4-8]/results.json")) + sorted(FOLDER.glob("heterogeneity/results.json"))


def comparison(verdict: str, difference: float = 0.02) -> dict[str, object]:
    return {"verdict": verdict, "difference": difference, "half": 0.01, "baseline": "x", "value": 1.0,
            "detectable": 0.03}


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["higher", "higher"], "holds"),
        (["higher", "tie"], "holds in part"),
        (["higher", "identical"], "holds in part"),
        (["higher", "higher", "lower"], "holds in part"),
        (["higher", "lower"], "does not hold"),
        (["tie", "tie"], "does not hold"),
        (["lower"], "does not hold"),
    ],
)
def test_verdicts(verdicts: list[str], expected: str) -> None:
    assert claims.comparisons([comparison(v) for v in verdicts])[0] == expected


def test_a_tie_says_what_it_could_have_hidden() -> None:
    assert "could have hidden 3.00 points" in claims.comparisons([comparison("tie")])[1]


def test_the_page_is_written_from_the_committed_results() -> None:
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page()


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    text = claims.page(tmp_path)
    assert "**" not in text
    assert text.count("not yet measured | not yet measured") == len(claims.CLAIMS)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_repeat_their_runs(path: Path) -> None:
    found, store = json.loads(path.read_text(encoding="utf-8")), Store(FOLDER / "runs.jsonl")
    for panel in found["panels"]:
        for row in panel.get("rows", []):
            if row["run"]:
                run = store[row["run"]]
                assert row["accuracy"] == run["test_accuracy"][-1]
                assert (row["seed"], row["rounds"]) == (run["seed"], run["rounds"])
        if panel.get("rows"):
            assert panel["comparisons"] == compare(panel["rows"], MEASURES[found["kind"]])


@pytest.mark.parametrize("name", figure_names())
def test_definitions_load_and_have_a_readme(name: str) -> None:
    figure = load_figure(name)
    assert all(panel.seeds and panel.values for preset in figure.panels.values() for panel in preset)
    assert f"fedgap reproduce {name}" in (FOLDER / name / "README.md").read_text(encoding="utf-8")
