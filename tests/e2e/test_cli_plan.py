"""``fedgap plan``: the contract's JSON, the shared cases, tables, interruption."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgap.config import Scenario
from fedgap.planning import Plan
from fedgap.planning.problem import Problem
from fedgap.registry import SCHEMES
from tests.e2e.terminal import fedgap

CASES = sorted(path for path in (Path(__file__).parents[1] / "cases").glob("*.json") if ".expected" not in path.name)
TIGHT = next(path for path in CASES if path.name == "n10_mnist_mean_tight.json")
SMALL = next(path for path in CASES if path.name == "n3_r1.json")
KEYS = {"status", "reason", "theta", "lower_bound", "gap", "bound_scope", "terms", "energy_j", "delay_s", "solve_s",
        "scheme", "solver", "least_budget", "prices", "segments"}


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_shared_cases(path):
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    answer = fedgap("plan", path, "--json")
    plan = json.loads(answer.out)
    assert plan.keys() >= KEYS
    assert plan["scenario_hash"] == Scenario.load(path).hash()
    if expected["status"] == "infeasible":
        assert answer.code == 3
        assert plan["status"] == "infeasible"
        assert answer.err == f"fedgap: {plan['reason']}\n"
        least = plan["least_budget"]["delay_s"]
        assert fedgap("plan", path, f"budget.delay_s={least!r}", "--quiet").code == 0
        assert fedgap("plan", path, f"budget.delay_s={0.999 * least!r}", "--quiet").code == 3
        return
    assert (answer.code, answer.err, plan["status"]) == (0, "", "optimal")
    problem, read = Problem.of(Scenario.load(path)), Plan.from_dict(plan)
    assert problem.violation(read.segments) <= 1e-6
    assert expected["theta_lower"] * (1 - 1e-9) <= plan["theta"] <= expected["theta_upper"] * (1 + 1e-6)
    assert plan["theta"] == pytest.approx(problem.objective(read.segments).theta, rel=1e-9)
    assert plan["lower_bound"] <= expected["theta_upper"] * (1 + 1e-9)


@pytest.mark.parametrize("scheme", SCHEMES.built_in)
def test_every_scheme(scheme):
    answer = fedgap("plan", TIGHT, "--scheme", scheme, "--json")
    plan = json.loads(answer.out)
    assert plan["scheme"] == scheme
    assert answer.code == (3 if plan["status"] == "infeasible" else 0)


def test_the_table(tmp_path):
    out = tmp_path / "new" / "plan.json"
    answer = fedgap("plan", TIGHT, "--out", out, "--picture", tmp_path / "plan.svg")
    assert answer.code == 0
    plan = Plan.load(out)
    assert f"proposed: optimal, 180 rounds, θ = {plan.theta:.6g}" in answer.out
    rows = {line[:8]: line for line in answer.out.splitlines() if line.startswith("client ")}
    assert "not selected" in rows["client 1"]
    assert "8.8 %" in rows["client 0"]  # λ of the certified plan: 0.0875
    assert "deadline, both caps" in rows["client 0"]
    assert "unpruned" in rows["client 2"]
    assert "a joule more would not lower θ" in answer.out
    assert "a second more lowers θ by" in answer.out
    assert "Certified: no plan of 180 rounds has θ below 16.92" in answer.out
    assert answer.out.endswith(f"The plan is in {out}.\n\nThe picture is in {tmp_path / 'plan.svg'}.\n")
    assert (tmp_path / "plan.svg").stat().st_size > 1000
    assert fedgap("plan", TIGHT, "--picture", "plan.txt").err.startswith("fedgap: --picture: must end in .png")


def test_a_scheme_s_certificate_is_of_its_own_plans():
    """Everybody taking part costs more here than the proposed plan, which the certificate must not deny."""
    best, own = (fedgap("plan", TIGHT, "budget.delay_s=400", "--scheme", name) for name in ("proposed", "all_clients"))
    theta = float(best.out.partition("θ = ")[2].split()[0])
    said = own.out.partition("Certified: no plan of 180 rounds by all_clients has θ below ")[2]
    assert float(said.partition(",")[0]) > theta


def test_labels_that_are_known_and_not_pooled_are_mentioned():
    small = ["fleet.count=13", "rounds=20", "budget.energy_j=200", "budget.delay_s=60"]
    assert "bound.aggregation=mixture" in fedgap("plan", "city", *small, "--scheme", "proposed").out
    pooled = [*small, "bound.aggregation=mixture", "--scheme", "proposed"]
    assert "aggregation=mixture" not in fedgap("plan", "city", *pooled).out
    assert "aggregation=mixture" not in fedgap("plan", "city", *small, "--scheme", "no_generalization").out


def test_a_shadow_price_is_the_slope_of_theta():
    """∂θ/∂T₀ against a difference of two plans."""
    base = json.loads(fedgap("plan", TIGHT, "--json").out)
    more = json.loads(fedgap("plan", TIGHT, "budget.delay_s=150.01", "--json").out)
    assert (more["theta"] - base["theta"]) / 0.01 == pytest.approx(base["prices"]["delay"], rel=0.02)


def test_a_baseline_that_cannot_finish_says_what_it_carries():
    answer = fedgap("plan", TIGHT, "budget.delay_s=100", "--scheme", "no_pruning")
    assert answer.code == 3
    assert "planned again with" in answer.err
    assert "θ = ∞" in answer.out


def test_quiet_and_unwritable(tmp_path):
    assert fedgap("plan", SMALL, "--quiet").out == ""
    taken = tmp_path / "file"
    taken.write_text("")
    answer = fedgap("plan", SMALL, "--out", taken / "plan.json")
    assert answer.code == 2
    assert answer.err.startswith(f"fedgap: {taken / 'plan.json'}: cannot be written")


def test_algorithm_1_and_its_options():
    printed = json.loads(fedgap("plan", TIGHT, "--solver", "alternating", "--json").out)
    exact = json.loads(
        fedgap("plan", TIGHT, "--solver", "alternating", "--selection", "exact", "--tie-break", "slack", "--json").out)
    best = json.loads(fedgap("plan", TIGHT, "--json").out)
    assert printed["solver"] == "alternating"
    assert printed["lower_bound"] is None
    assert best["theta"] <= exact["theta"] < printed["theta"]
    once = json.loads(fedgap("plan", TIGHT, "--solver", "alternating", "--iterations", 1, "--json").out)
    assert len(once["trace"]) == 2
    assert "There is no certificate" in fedgap("plan", TIGHT, "--solver", "alternating").out


def test_the_horizon():
    best = json.loads(fedgap("plan", SMALL, "rounds=6", "--horizon", "--json").out)
    fixed = [json.loads(fedgap("plan", SMALL, f"rounds={r}", "--json").out)["theta"] for r in range(1, 7)]
    assert best["theta"] == pytest.approx(min(theta for theta in fixed if theta is not None), rel=1e-9)


def test_ctrl_c_prints_the_best_plan_so_far(monkeypatch):
    @contextmanager
    def impatient(alpha, *, quiet=False):
        def progress(what, iteration, best, bound):
            raise KeyboardInterrupt

        yield progress

    monkeypatch.setattr("fedgap.cli.plan_command.planning", impatient)
    answer = fedgap("plan", "paper-mnist", "--json")
    plan = json.loads(answer.out)
    assert (answer.code, answer.err) == (130, f"fedgap: {plan['reason']}\n")
    assert plan["reason"].startswith("interrupted")
    problem = Problem.of(Scenario.load("paper-mnist"))
    assert problem.violation(Plan.from_dict(plan).segments) <= 1e-6
    assert "what binds" in fedgap("plan", "paper-mnist").out


def test_a_name_is_a_name_not_markup():
    answer = fedgap("plan", SMALL, "clients[0].name='[red]x'", "clients[1].name=':smile:'")
    assert "[red]x" in answer.out
    assert ":smile:" in answer.out


def test_a_large_fleet_fits_on_a_screen():
    answer = fedgap("plan", "city", "fleet.count=60", "rounds=50", "budget.energy_j=2000")
    assert answer.code == 0
    assert "clients are not selected" in flat(answer.out)
