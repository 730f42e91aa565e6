"""``fedgap budget``: from a target accuracy to budgets, and on to a run."""

import json

import pytest

from tests.e2e.terminal import fedgap

LEARNER = ("learning.local_steps=4", "forecast.like=lenet5-mnist")
EXPERIMENT = ("mode=practical", "scenario.forecast.like=lenet5-mnist", "learning.local_steps=8", "rounds=40")


def test_the_contract(tmp_path):
    picture = tmp_path / "frontier.png"
    answer = fedgap("budget", "paper-mnist", *LEARNER, "--accuracy", 0.9, "--points", 2, "--json", "--picture", picture)
    assert (answer.code, answer.err) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = json.loads(answer.out)
    assert (result["accuracy"], result["confidence"]) == (0.9, 0.9)
    assert result["energy_j"] / result["delay_s"] == pytest.approx(250 / 150, rel=2e-3)
    assert result["least_energy_j"] <= result["energy_j"]
    assert result["least_delay_s"] <= result["delay_s"] * 1.01
    assert len(result["frontier"]) == len(result["frontier_plans"]) == 2
    assert set(result["plans"]) == {"both", "least_energy", "least_delay"}
    for plan in result["plans"].values():
        assert plan["forecast"]["accuracy"] > 0.9
        assert plan["forecast"]["low"] < plan["forecast"]["accuracy"] < plan["forecast"]["high"]


@pytest.mark.full
def test_an_experiment_s_plan_is_trained(tmp_path):
    out = tmp_path / "plans"
    answer = fedgap("budget", "embedded", *EXPERIMENT, "--accuracy", 0.8, "--points", 0, "--out", out)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("80 % with 90 % confidence takes ")
    command = answer.out.strip().splitlines()[-1].partition("Train with: ")[2].split()
    assert command[:3] == ["fedgap", "train", "embedded"]
    trained = fedgap(*command[1:], "--out", tmp_path / "run", "--json")
    assert trained.code == 0, trained.err
    run = json.loads(trained.out)
    plan = json.loads((out / "both.json").read_text())
    assert run["rounds"] == plan["rounds"]
    again = json.loads(fedgap("plan", out / "least_energy.yaml", "--scheme", "forecast", "--json").out)
    kept = json.loads((out / "least_energy.json").read_text())
    assert again["scenario_hash"] == kept["scenario_hash"]
    assert again["forecast"]["accuracy"] == pytest.approx(kept["forecast"]["accuracy"], abs=1e-3)


@pytest.mark.parametrize(("arguments", "code", "begins"), [
    (["--accuracy", "1.2"], 2, "fedgap: --accuracy: must be above 0 and below 1"),
    (["--accuracy", "0"], 2, "fedgap: --accuracy: must be above 0 and below 1"),
    (["--accuracy", "0.9", "--confidence", "1"], 2, "fedgap: --confidence: must be above 0 and below 1"),
    (["--accuracy", "0.9", "--picture", "front.gif"], 2, "fedgap: --picture: must end in"),
    (["--accuracy", "0.999"], 3, "fedgap: accuracy: 0.999 with 0.9 confidence cannot be reached"),
    (["budget.energy_j=1e-9", "budget.delay_s=1e-9", "--accuracy", "0.9"], 3,
     "fedgap: accuracy: 0.9 with 0.9 confidence cannot be reached: not even one round fits 1,000,000 times the "
     "scenario's budgets; raise budget.energy_j"),
    ([], 2, "fedgap: Missing option '--accuracy'"),
])
def test_one_line_where_there_is_no_answer(arguments, code, begins):
    answer = fedgap("budget", "paper-mnist", *arguments)
    assert answer.code == code
    assert answer.err.startswith(begins)
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_neither_a_file_nor_a_preset():
    answer = fedgap("budget", "paper-mnst", "--accuracy", 0.9)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
