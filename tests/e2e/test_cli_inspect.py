"""``fedgap cost`` and ``fedgap bound``."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.planning import Plan
from tests.e2e.terminal import fedgap

CASES = Path(__file__).parents[1] / "cases"
TIGHT = CASES / "n10_mnist_mean_tight.json"


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    assert fedgap("plan", TIGHT, "--out", path, "--quiet").code == 0
    return path


def test_what_is_planned_is_what_it_costs(plan_file):
    plan = json.loads(plan_file.read_text())
    answer = fedgap("cost", TIGHT, "--plan", plan_file, "--json")
    cost = json.loads(answer.out)
    assert answer.code == 0
    assert cost["energy_j"] == pytest.approx(plan["energy_j"], rel=1e-12)
    assert cost["delay_s"] == pytest.approx(plan["delay_s"], rel=1e-12)
    clients = cost["clients"]
    spent = sum(client["compute_j"] + client["upload_j"] for client in clients)
    assert spent + cost["broadcast_j"] == pytest.approx(plan["energy_j"], rel=1e-12)
    for client, decided in zip(clients, plan["segments"][0]["clients"], strict=True):
        busy = client["compute_s"] + client["upload_s"] + client["download_s"]
        assert client["rounds"] == (180 if decided["selected"] else 0)
        assert busy + client["waiting_s"] == pytest.approx(plan["delay_s"] if decided["selected"] else 0.0, rel=1e-6)


def test_the_straggler_is_named(tmp_path):
    """Two clients at full speed, one with a hundredth of the clock: it ends last, the other waits."""
    cost = cost_of(tmp_path, ["clients[1].max_frequency_hz=5e6"], clients=[0, 1])
    assert cost["segments"][0]["straggler"] == "client 1"
    assert cost["clients"][0]["waiting_s"] > 0.0
    assert cost["clients"][1]["waiting_s"] == 0.0
    assert cost["clients"][1]["straggler_rounds"] == 180


def cost_of(folder, overrides, clients):
    """The cost of ``clients`` alone, at full power and clock in all 180 rounds."""
    scenario = Scenario.load(TIGHT, overrides)
    fleet = scenario.fleet()
    chosen = [n in clients for n in range(scenario.size)]
    rows = [
        {"selected": a, "pruning_ratio": 0.0, "power_w": float(p), "frequency_hz": float(f)}
        for a, p, f in zip(chosen, fleet.max_power_w, fleet.max_frequency_hz, strict=True)
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps({"segments": [{"rounds": 180, "clients": rows}], "scenario_hash": scenario.hash()}))
    assert fedgap("cost", TIGHT, *overrides, "--plan", path).code == 0
    return json.loads(fedgap("cost", TIGHT, *overrides, "--plan", path, "--json").out)


def test_the_table_of_costs(plan_file):
    answer = fedgap("cost", TIGHT, "--plan", plan_file)
    assert "Who spends what in 180 rounds" in answer.out
    assert "nobody: all 5 end together" in answer.out
    assert "150 s  150 s  100 %" in answer.out


def test_a_plan_of_another_scenario_is_refused_unless_asked_for(plan_file):
    answer = fedgap("cost", TIGHT, "budget.delay_s=140", "--plan", plan_file)
    assert (answer.code, answer.out) == (2, "")
    assert "was made for another scenario" in answer.err
    assert answer.err.count("\n") == 1
    assert fedgap("cost", TIGHT, "budget.delay_s=140", "--plan", plan_file, "--any-scenario").code == 0
    other = CASES / "n3_r1.json"
    refused = fedgap("cost", other, "--plan", plan_file, "--any-scenario")
    assert "must have as many clients as the scenario, 3; got 10" in refused.err


@pytest.mark.parametrize(("text", "message"), [
    ("nothing", "is not JSON"),
    ("[]", "plan: must be a JSON object with a list of segments"),
    ('{"segments": []}', "has no segments: the plan is infeasible"),
    ('{"segments": [{"rounds": 0}]}', "segments[0].rounds: must be a whole number of at least 1; got 0"),
    ('{"segments": [{"rounds": 1, "clients": [{"selected": 1}]}]}', "segments[0].clients[0].selected: must be true or"),
])
def test_a_bad_plan_is_one_line(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    answer = fedgap("cost", TIGHT, "--plan", path)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_the_bound_of_a_plan_is_the_plans_theta(plan_file):
    plan = Plan.load(plan_file)
    assert "starting point of Algorithm 1" not in fedgap("bound", TIGHT, "--plan", plan_file).out
    bound = json.loads(fedgap("bound", TIGHT, "--plan", plan_file, "--json").out)
    readings = {(r["constants"], r["aggregation"]): r for r in bound["readings"]}
    own = readings["printed", "mean"]
    assert own["theta"] == pytest.approx(plan.theta, rel=1e-12)
    assert bound["reading"] == {"constants": "printed", "aggregation": "mean"}
    # corrected constants are 1/η² = 10⁴ times larger in two terms; k selected clients make k² of the sum
    corrected, summed = readings["corrected", "mean"], readings["printed", "sum"]
    for term in ("clients", "generalization"):
        assert corrected[term] == pytest.approx(1e4 * own[term], rel=1e-9)
    assert corrected["pruning"] == own["pruning"]
    assert summed["generalization"] == pytest.approx(plan.segments[0].selected.sum() ** 2 * own["generalization"])
    assert "mixture needs" in readings["printed", "mixture"]["reason"]


def test_the_bound_without_a_plan_shows_everybody_and_every_statement():
    answer = fedgap("bound", "paper-mnist")
    assert answer.code == 0
    assert "all clients in all 400 rounds, pruned as much as allowed" in answer.out
    assert "→ corrected  mixture" in answer.out
    assert "an estimate, not a bound" in answer.out
    assert "It is not a plan and may exceed the budgets, so a plan has another θ." in " ".join(answer.out.split())
    bound = json.loads(fedgap("bound", "paper-mnist", "--json").out)
    scenario = Scenario.load("paper-mnist")
    assert [client["used"] for client in bound["clients"]] == pytest.approx(scenario.phi().tolist())
    assert [client["size_normalised"] for client in bound["clients"]] == pytest.approx(scenario.phi().tolist())
    printed = Scenario.load("paper-mnist", ["bound.statement=as_printed"]).phi()
    assert [client["as_printed"] for client in bound["clients"]] == pytest.approx(printed.tolist())
    assert bound["pruning_weight"] == {"used": 10.0, "theorem": 170.0**2 * 470.0, "secant": 10.0}
    assert np.isfinite([r["theta"] for r in bound["readings"]]).all()


def test_a_statement_without_value_is_a_dash_and_zeros_are_counted():
    """One class only, against a target of another: beyond the singularity of Lemma 1."""
    counts = ["clients[0].label_counts=[9000,0,0,0,0,0,0,0,0,0]", "clients[0].target_counts=[0,9000,0,0,0,0,0,0,0,0]"]
    bound = json.loads(fedgap("bound", "paper-mnist", *counts, "--json").out)
    first = bound["clients"][0]
    assert first["smoothed_zeros"] == 18
    assert first["size_normalised"] is None
    assert first["as_printed"] is not None
    reasons = [r.get("reason", "") for r in bound["readings"] if r["aggregation"] == "mean"]
    assert all("φ has no value" in reason for reason in reasons)
    assert fedgap("bound", "paper-mnist", *counts).code == 0
