"""Scenarios in and out, and plans as they come."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

import fedgap
from fedgap.planning import PAPER_SCHEMES
from fedgap.planning.problem import Problem
from fedgap.planning.single_selection import best_single_selection
from fedgap.planning.task import Task
from fedgap.registry import SCHEMES
from tests.web.studio_server import Studio

CASES = Path(__file__).parents[1] / "cases"


def until(stages: object, *names: str) -> list[dict]:
    """The stages up to the last of these, and the connection closed."""
    found = []
    for stage in stages:  # type: ignore[attr-defined]
        found.append(stage)
        if set(names) <= {one["stage"] for one in found}:
            break
    return found


def test_a_draft_then_the_certified_plan_then_the_schemes(studio: Studio) -> None:
    overrides = ["budget.delay_s=140"]
    stages = until(studio.stages(preset="paper-mnist", overrides=overrides), "frontier")
    assert [stage["stage"] for stage in stages] == ["draft", "plan", "grid", *["scheme"] * 6, "frontier"]
    expected = fedgap.plan(fedgap.Scenario.load("paper-mnist", overrides))
    first, plan = stages[0]["plan"], stages[1]["plan"]
    assert plan["theta"] == pytest.approx(expected.theta, rel=1e-9)
    assert plan["status"] == "optimal"
    assert plan["gap"] <= 1e-3
    assert first["theta"] >= plan["lower_bound"] * (1 - 1e-9)
    assert first["gap"] is None
    assert [stage["plan"]["scheme"] for stage in stages if stage["stage"] == "scheme"] == list(PAPER_SCHEMES)
    assert stages[-1]["theta"] == pytest.approx(fedgap.plan(fedgap.Scenario.load("paper-mnist")).theta, rel=1e-9)


def test_a_drawn_plan_adds_up(studio: Studio) -> None:
    plan = until(studio.stages(preset="paper-cifar10"), "plan")[-1]["plan"]
    energy = sum(plan["clients"]["compute_j"]) + sum(plan["clients"]["upload_j"]) + plan["clients"]["broadcast_j"]
    assert energy == pytest.approx(plan["energy_j"], rel=1e-9)
    delay = 0.0
    for segment in plan["segments"]:
        cost = segment["cost"]
        times = np.sum([cost["compute_s"], cost["upload_s"], cost["download_s"]], axis=0)
        assert cost["delay_s"] == pytest.approx(times.max())
        assert all(segment["clients"][n]["selected"] for n in cost["stragglers"])
        delay += segment["rounds"] * cost["delay_s"]
    assert delay == pytest.approx(plan["delay_s"], rel=1e-9)
    assert plan["clients"]["rounds"] == [
        sum(s["rounds"] for s in plan["segments"] if s["clients"][n]["selected"]) for n in range(10)]


def test_budgets_that_do_not_fit_come_with_advice(studio: Studio) -> None:
    stages = until(studio.stages(preset="paper-mnist", overrides=["budget.delay_s=60"]), "plan")
    first, plan = (stage["plan"] for stage in stages)
    assert plan["status"] == first["status"] == "infeasible"
    assert plan["segments"] == first["segments"] == []
    assert (plan["reason"], plan["least_budget"]) == (first["reason"], first["least_budget"])  # said at once
    enough = plan["least_budget"]["delay_s"]
    again = until(studio.stages(preset="paper-mnist", overrides=[f"budget.delay_s={enough!r}"]), "plan")[-1]["plan"]
    assert again["status"] != "infeasible"


def test_a_closed_connection_frees_the_solver(studio: Studio) -> None:
    for delay in (900, 950, 1000):
        until(studio.stages(preset="city", overrides=[f"budget.delay_s={delay}"]), "draft")  # then hung up
    plan = until(studio.stages(preset="paper-mnist"), "plan")[-1]["plan"]
    assert plan["status"] == "optimal"


@pytest.mark.parametrize("case", ["n10_mnist_mean_tight", "n10_cifar_mean", "n1_loose", "n3_r1"])
def test_the_draft_is_the_best_plan_of_one_selection(case: str) -> None:
    scenario = fedgap.Scenario.load(CASES / f"{case}.json")
    expected = json.loads((CASES / f"{case}.expected.json").read_text())
    problem = Problem.of(scenario)
    found = best_single_selection(Task.of(problem, SCHEMES.load("proposed")))
    assert found is not None
    assert found.theta == pytest.approx(expected["single_selection_theta"], rel=1e-6)
    assert problem.violation(found.segments) <= 1e-6


@pytest.mark.parametrize("scheme", SCHEMES.built_in)
@pytest.mark.parametrize("preset", ["paper-mnist", "city"])
def test_a_draft_keeps_its_budgets_and_its_scheme(preset: str, scheme: str) -> None:
    scenario = fedgap.Scenario.load(preset,
                                    ["budget.delay_s=1200", "learning.local_steps=2"] if preset == "city" else
                                    ["budget.delay_s=250"])
    problem = Problem.of(scenario)
    found = best_single_selection(Task.of(problem, SCHEMES.load(scheme)))
    assert found is not None
    assert problem.violation(found.segments) <= 1e-6
    if preset == "paper-mnist":
        best = fedgap.plan(scenario, scheme=scheme)
        assert best.lower_bound is None or found.theta >= best.lower_bound * (1 - 1e-9)
    for segment in found.segments:
        on = segment.selected
        assert SCHEMES.load(scheme).prune or not segment.pruning_ratio[on].any()
        assert SCHEMES.load(scheme).select or on.all()
        assert SCHEMES.load(scheme).power or np.allclose(segment.power_w[on], problem.fleet.max_power_w[on])
        fastest = problem.fleet.max_frequency_hz[on]
        assert SCHEMES.load(scheme).frequency or np.allclose(segment.frequency_hz[on], fastest)


def test_yaml_goes_out_and_comes_back(studio: Studio) -> None:
    source = {"preset": "paper-mnist", "overrides": ["budget.delay_s=123", "clients[3].max_power_w=0.25"]}
    before = studio.post("/api/scenario", **source).json()
    file = studio.post("/api/scenario/yaml", **source).json()
    after = studio.post("/api/scenario/upload", kind="yaml", text=file["text"]).json()
    assert after["hash"] == before["hash"]
    assert after["scenario"]["clients"][3]["max_power_w"] == 0.25


@pytest.mark.parametrize("preset", ["paper-mnist", "city"])
def test_csv_goes_out_and_comes_back(studio: Studio, preset: str) -> None:
    before = studio.post("/api/scenario", preset=preset).json()
    file = studio.post("/api/scenario/csv", preset=preset).json()
    assert file["name"] == "fleet.csv"
    after = studio.post("/api/scenario/upload", preset=preset, kind="csv", text=file["text"]).json()
    assert after["scenario"]["clients"] == before["scenario"]["clients"]
    assert after["scenario"]["bound"] == before["scenario"]["bound"]
    assert after["phi"] == pytest.approx(before["phi"])


def test_a_bad_cell_is_named(studio: Studio) -> None:
    text = studio.post("/api/scenario/csv", preset="paper-mnist").json()["text"].splitlines()
    column = text[0].split(",").index("max_power_w")
    cells = text[4].split(",")
    text[4] = ",".join([*cells[:column], "plenty", *cells[column + 1 :]])
    reply = studio.post("/api/scenario/upload", preset="paper-mnist", kind="csv", text="\n".join(text))
    assert reply.status_code == 422
    assert reply.json()["key"] == "clients[3].max_power_w"
    assert "line 5" in reply.json()["message"]
    assert "/tmp" not in reply.json()["message"]


@pytest.mark.parametrize(("override", "key"), [
    ("budget.delay_s=-1", "budget.delay_s"), ("rounds=0", "rounds"), ("learning.rate=fast", "learning.rate"),
    ("labels.concentration=0", "labels.concentration"), ("clients[2].phi=-3", "clients[2].phi"), ("mode=both", "mode"),
])  # fmt: skip
def test_a_refusal_names_the_field(studio: Studio, override: str, key: str) -> None:
    for path in ("/api/scenario", "/api/plan"):
        reply = studio.post(path, preset="paper-mnist", overrides=[override])
        assert reply.status_code == 422
        assert reply.json()["key"] == key


def test_ctrl_c_during_a_plan_ends_the_studio_without_a_traceback(tmp_path: Path) -> None:
    with Studio(tmp_path / "runs") as studio:
        stages = studio.stages(preset="city", overrides=[])
        assert next(stages)["stage"] == "draft"
        studio.process.send_signal(signal.SIGINT)
        assert studio.process.wait(30) in (0, 130)
        stages.close()
        studio.listener.join(30)  # until all that was written is read
        assert studio.errors == ["fedgap: interrupted\n"]
