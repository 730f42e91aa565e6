"""``fedgap compare`` and ``fedgap frontier``."""

import csv
import io
import json
from pathlib import Path

import pytest

from fedgap.planning import PAPER_SCHEMES
from fedgap.planning import plan as solve
from fedgap.registry import RULES, SCHEMES
from tests.e2e.terminal import fedgap

CASES = Path(__file__).parents[1] / "cases"
SMALL = CASES / "n3_r1.json"
INFEASIBLE = CASES / "n10_infeasible_delay.json"
PNG = b"\x89PNG"


def test_all_schemes_side_by_side(tmp_path):
    picture = tmp_path / "new" / "schemes.png"
    table = fedgap("compare", SMALL, "--picture", picture)
    assert (table.code, table.err) == (0, "")
    assert picture.read_bytes().startswith(PNG)
    plans = json.loads(fedgap("compare", SMALL, "--json").out)["plans"]
    assert [plan["scheme"] for plan in plans] == list(PAPER_SCHEMES)
    best = plans[0]["theta"]
    assert all(plan["theta"] is None or plan["theta"] >= best * (1 - 1e-9) for plan in plans)
    for plan in plans:
        alone = json.loads(fedgap("plan", SMALL, "--scheme", plan["scheme"], "--json").out)
        assert (alone["theta"] or 0.0) == pytest.approx(plan["theta"] or 0.0, rel=1e-9)
        assert plan["scheme"] in table.out


@pytest.mark.parametrize(("command", "module"), [("compare", "scheme_comparison"), ("frontier", "budget_frontier")])
def test_ctrl_c_shows_what_was_planned_so_far(monkeypatch, command, module):
    answers = []

    def cut_short(*arguments, **options):
        if len(answers) == 2:
            raise KeyboardInterrupt
        answers.append(solve(*arguments, **options))
        return answers[-1]

    monkeypatch.setattr(f"fedgap.analysis.{module}.plan", cut_short)
    answer = fedgap(command, SMALL, "--json")
    assert (answer.code, answer.err) == (130, "fedgap: interrupted; the tables show what was planned so far\n")
    assert len(json.loads(answer.out)["plans" if command == "compare" else "points"]) == 2


def test_some_schemes_in_the_order_asked_for():
    names = ["fixed_power", "proposed"]
    plans = json.loads(fedgap("compare", SMALL, "--schemes", ",".join(names), "--json").out)["plans"]
    assert [plan["scheme"] for plan in plans] == names
    wrong = fedgap("compare", SMALL, "--schemes", "proposed,fixed_powr")
    assert wrong.code == 2
    assert wrong.err.startswith("fedgap: --schemes: must be one of proposed, ")
    assert "did you mean 'fixed_power'?" in wrong.err
    assert "did you mean 'oort'?" in fedgap("compare", SMALL, "--schemes", "oorrt").err
    twice = fedgap("compare", SMALL, "--schemes", "oort,proposed,oort")
    assert (twice.code, twice.err) == (2, "fedgap: --schemes: each name can be given once; oort is given 2 times\n")


def test_all_schemes_and_published_rules_are_planned():
    plans = json.loads(fedgap("compare", SMALL, "--schemes", "all", "--json").out)["plans"]
    assert [plan["scheme"] for plan in plans] == [*SCHEMES.names(), *RULES.names()]
    assert {plan["scheme"] for plan in plans if not plan["segments"]} == {"no_pruning"}  # not even one round fits


def test_nothing_feasible_is_3():
    answer = fedgap("compare", INFEASIBLE, "budget.energy_j=1e-3")
    assert answer.code == 3
    assert answer.err.count("\n") == 1


def test_a_scheme_that_carries_fewer_rounds_is_said_so(tmp_path):
    picture = tmp_path / "schemes.svg"
    budgets = ("rounds=10", "budget.energy_j=9", "budget.delay_s=13")
    answer = fedgap("compare", SMALL, *budgets, "--picture", picture)
    assert answer.code == 0
    row = next(line for line in answer.out.splitlines() if line.startswith("no_pruning"))
    rounds = int(row.split()[1])
    assert 0 < rounds < 10
    assert f"planned again with {rounds} of 10 rounds" in " ".join(answer.out.split())
    assert f"{rounds} of 10 rounds" in picture.read_text()


def test_the_frontier_falls_with_both_budgets(tmp_path):
    picture = tmp_path / "front.png"
    answer = fedgap("frontier", SMALL, "--points", 3, "--picture", picture, "--csv")
    assert answer.code == 0
    assert picture.read_bytes().startswith(PNG)
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert len(rows) == 9
    theta = {(float(r["budget_energy_j"]), float(r["budget_delay_s"])): float(r["theta"] or "inf") for r in rows}
    for (energy, delay), value in theta.items():
        assert all(value <= other * (1 + 1e-3) for (e, d), other in theta.items() if e <= energy and d <= delay)
        if value < float("inf"):
            row = next(r for r in rows if (float(r["budget_energy_j"]), float(r["budget_delay_s"])) == (energy, delay))
            assert float(row["energy_j"]) <= energy * (1 + 1e-6)
            assert float(row["delay_s"]) <= delay * (1 + 1e-6)
    same = json.loads(fedgap("frontier", SMALL, "--points", 3, "--json").out)["points"]
    assert [p["theta"] for p in same] == [pytest.approx(float(r["theta"])) if r["theta"] else None for r in rows]


def test_the_front_has_no_point_that_a_smaller_budget_matches():
    points = json.loads(fedgap("frontier", SMALL, "--points", 4, "--json").out)["points"]
    front = [p for p in points if p["on_front"]]
    assert front
    for p in front:
        for q in points:
            smaller = q["budget_energy_j"] <= p["budget_energy_j"] and q["budget_delay_s"] <= p["budget_delay_s"]
            if q is not p and smaller and q["theta"] is not None:
                assert q["theta"] > p["theta"]


def test_tables_of_the_frontier():
    matrix = fedgap("frontier", SMALL, "--points", 3)
    assert matrix.out.count("[") == 2  # the scenario's own cell, and its mark in the caption
    listed = fedgap("frontier", CASES / "n1_loose.json", "--points", 10)
    assert len([line for line in listed.out.splitlines() if " J " in line]) == 100
    for answer in (matrix, listed):
        assert answer.code == 0


def test_bad_options_are_one_line(tmp_path):
    for arguments in (["--csv", "--json"], ["--picture", tmp_path / "front.gif"], ["--points", 1]):
        answer = fedgap("frontier", SMALL, *arguments)
        assert answer.code == 2
        assert answer.err.count("\n") == 1
    assert fedgap("frontier", INFEASIBLE, "budget.energy_j=1e-3", "--points", 2).code == 3


def test_published_rules_are_planned_beside_schemes(tmp_path):
    picture = tmp_path / "rules.png"
    answer = fedgap("compare", CASES / "n10_mnist_mean_tight.json", "--schemes", "all_clients,random_k,luo", "--json",
                    "--picture", picture)
    plans = json.loads(answer.out)["plans"]
    assert [plan["scheme"] for plan in plans] == ["all_clients", "random_k", "luo"]
    assert all(plan["forecast"]["accuracy"] > 0.0 for plan in plans)
    assert picture.read_bytes().startswith(PNG)


def test_schemes_and_rules_are_trained_and_compared_with_the_best(tmp_path):
    small = ["data.train_samples=800", "data.test_samples=200", "model.name=mlp", "engine.threads=1", "rounds=6",
             "mode=practical", "learning.local_steps=1", "budget.energy_j=6", "budget.delay_s=5"]
    command = ("compare", "embedded", *small, "--schemes", "all_clients,power_of_choice", "--train", "--seeds", "2",
               "--workers", "1", "--out", tmp_path / "runs", "--json")
    answer = json.loads(fedgap(*command).out)
    first, second = answer["rows"]
    assert first["test_accuracy"]["mean"] >= second["test_accuracy"]["mean"]
    assert {row["values"]["scheme"] for row in answer["rows"]} == {"all_clients", "power_of_choice"}
    assert all(row["runs"] == 2 and row["forecast_accuracy"] is not None for row in answer["rows"])
    (against,) = answer["against_best"].values()
    assert against["mean"] == pytest.approx(second["test_accuracy"]["mean"] - first["test_accuracy"]["mean"])
    again = fedgap(*command[:-1])  # nothing is trained again
    assert "minus the best" in again.out
    missing = fedgap("compare", "embedded", "--train")
    assert (missing.code, missing.err) == (2, "fedgap: --out: missing; --train needs a folder for its runs\n")
