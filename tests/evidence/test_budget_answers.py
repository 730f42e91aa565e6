"""Answers of ``fedgap budget`` judged by the runs of their plans."""

import pytest

from fedgap.evidence.budget_answers import CELLS, TARGETS, judge
from fedgap.evidence.store import Store


def test_sixty_answers_are_asked_for():
    assert len(CELLS) * len(TARGETS) * 3 == 60  # both in proportion, least joules, least seconds
    assert {cell.load().planning_scenario().fitted_forecast().runs > 0 for cell in CELLS} == {True}


def test_runs_that_reach_and_budgets_that_could_not_be_smaller(tmp_path):
    """Three of four runs reach 95 %. With less, one answer's only run reaches it, and the other's does not."""
    store = Store(tmp_path / "records.jsonl")
    accuracies = {"a": 0.96, "b": 0.94, "c": 0.951, "d": 0.95, "less-1": 0.96, "less-2": 0.90}
    store.add([{"key": key, "test_accuracy": [0.5, accuracy]} for key, accuracy in accuracies.items()])
    made = [{"target": 0.95, "runs": ["a", "b"], "runs_with_less": ["less-1"]},
            {"target": 0.95, "runs": ["c", "d"], "runs_with_less": ["less-2"]},
            {"target": 0.95, "runs": ["not trained"], "runs_with_less": []}]
    result = judge(made, store)
    assert (result["answers"], result["answers_trained"], result["runs"]) == (3, 2, 4)
    assert result["runs_reached"] == pytest.approx(0.75)
    assert result["thrifty"] == pytest.approx(0.5)
    assert [row["reached"] for row in result["rows"]] == [0.5, 1.0, None]
