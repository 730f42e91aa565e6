"""A plan's JSON: there and back, plain numbers only, and bad files named by their key."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning import Plan, plan
from fedgap.planning.problem import Problem
from tests.oracle.scenarios import CASES

SCENARIO = Scenario.load(CASES / "n3_r1.json")
ANSWER = plan(SCENARIO)
INFEASIBLE = plan(Scenario.load(CASES / "n10_infeasible_delay.json"))
CONTRACT = {
    "status", "reason", "theta", "lower_bound", "gap", "bound_scope", "terms", "energy_j", "delay_s", "solve_s",
    "scheme", "solver", "least_budget", "prices", "segments",
}  # fmt: skip


def strict(answer: Plan) -> dict:
    """The plan as JSON without NaN and infinities, read back."""
    return json.loads(json.dumps(answer.to_dict(), allow_nan=False))


@pytest.mark.parametrize("answer", [ANSWER, INFEASIBLE], ids=["feasible", "infeasible"])
def test_json_has_the_contract_s_keys_and_plain_numbers(answer):
    document = strict(answer)
    assert set(document) >= CONTRACT
    assert set(document["terms"]) == {"alpha", "clients", "generalization", "pruning"}
    assert document["status"] == answer.status


def test_an_infeasible_plan_says_so():
    document = strict(INFEASIBLE)
    assert document["theta"] is None
    assert document["segments"] == []
    assert set(document["least_budget"]) == {"energy_j", "delay_s"}
    assert document["reason"]


def test_an_infinite_number_becomes_null():
    prices = {"energy": np.inf, "delay": None}
    odd = replace(ANSWER, theta=np.inf, lower_bound=np.nan, prices=prices, trace=(np.inf, 1.0))
    document = strict(odd)
    assert document["theta"] is None
    assert document["lower_bound"] is None
    assert document["gap"] is None
    assert document["prices"] == {"energy": None, "delay": None}
    assert document["trace"] == [None, 1.0]


@pytest.mark.parametrize("answer", [ANSWER, INFEASIBLE], ids=["feasible", "infeasible"])
def test_saved_and_loaded_it_is_the_same(answer, tmp_path):
    answer.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.to_dict() == answer.to_dict()
    assert loaded.rounds == sum(segment.rounds for segment in answer.segments)
    for one, other in zip(answer.segments, loaded.segments, strict=True):
        assert (one.selected == other.selected).all()
        assert (one.pruning_ratio == other.pruning_ratio).all()
        assert (one.power_w == other.power_w).all()
        assert (one.frequency_hz == other.frequency_hz).all()


def test_gap_is_what_the_contract_says():
    """(θ − lower_bound)/(θ − α): 10 − 9 over 10 − 5."""
    made = replace(ANSWER, theta=10.0, lower_bound=9.0, terms={"alpha": 5.0})
    assert made.gap == pytest.approx(0.2)
    assert replace(made, lower_bound=None).gap is None
    assert replace(made, theta=5.0, lower_bound=5.0).gap == 0.0  # nothing but α


def broken(path: str, value) -> dict:
    """The plan's document with one value changed; the path's parts are keys and indices; None deletes."""
    document = json.loads(json.dumps(ANSWER.to_dict()))
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place = document
    for part in way:
        place = place[part]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("segments", KeyError, "segments"),
        ("segments", "none", "segments"),
        ("segments/0", 7, "segments[0]"),
        ("segments/0/rounds", KeyError, "segments[0].rounds"),
        ("segments/0/rounds", 0, "segments[0].rounds"),
        ("segments/0/rounds", 1.5, "segments[0].rounds"),
        ("segments/0/rounds", True, "segments[0].rounds"),
        ("segments/0/local_steps", 0, "segments[0].local_steps"),
        ("segments/0/local_steps", "auto", "segments[0].local_steps"),
        ("segments/0/clients", [], "segments[0].clients"),
        ("segments/0/clients", {}, "segments[0].clients"),
        ("segments/0/clients/1", 3, "segments[0].clients[1]"),
        ("segments/0/clients/1/selected", KeyError, "segments[0].clients[1].selected"),
        ("segments/0/clients/1/selected", 1, "segments[0].clients[1].selected"),
        ("segments/0/clients/2/power_w", KeyError, "segments[0].clients[2].power_w"),
        ("segments/0/clients/2/power_w", "much", "segments[0].clients[2].power_w"),
        ("segments/0/clients/2/power_w", float("nan"), "segments[0].clients[2].power_w"),
        ("segments/0/clients/0/pruning_ratio", True, "segments[0].clients[0].pruning_ratio"),
        ("segments/0/clients/0/frequency_hz", float("inf"), "segments[0].clients[0].frequency_hz"),
        ("segments/0/clients/0/pruning_ratio", 1, "segments[0].clients[0].pruning_ratio"),
        ("segments/0/clients/0/pruning_ratio", -0.1, "segments[0].clients[0].pruning_ratio"),
        ("segments/0/clients/0/power_w", 0, "segments[0].clients[0].power_w"),
        ("segments/0/clients/0/frequency_hz", -1.0, "segments[0].clients[0].frequency_hz"),
        ("segments/0/rounds", 12345, "rounds"),
        ("status", "perfect", "status"),
        ("theta", "large", "theta"),
        ("theta", [1], "theta"),
        ("theta", float("nan"), "theta"),
        ("lower_bound", "low", "lower_bound"),
        ("energy_j", True, "energy_j"),
        ("terms", 5, "terms"),
        ("terms/alpha", "small", "terms.alpha"),
        ("trace", "falling", "trace"),
        ("trace", [1.0, "a"], "trace[1]"),
        ("least_budget", 3, "least_budget"),
        ("prices", "dear", "prices"),
    ],
)
def test_a_bad_plan_names_its_key(path, value, named, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(broken(path, value)))
    with pytest.raises(InputError) as caught:
        Plan.load(file)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_of_0_1_has_one_local_step():
    assert Plan.from_dict(broken("segments/0/local_steps", KeyError)).local_steps == 1
    several = Plan.from_dict(broken("segments/0/local_steps", 4))
    assert (several.segments[0].local_steps, several.local_steps) == (4, 4)
    assert several.to_dict()["segments"][0]["local_steps"] == 4


def test_a_plan_with_other_local_steps_is_refused():
    with pytest.raises(InputError, match=r"segments\[0\] has local_steps 4, but the scenario has 1; .*local_steps$"):
        Problem.of(SCENARIO).refuse(Plan.from_dict(broken("segments/0/local_steps", 4)))


def test_segments_of_different_fleets_are_refused():
    document = json.loads(json.dumps(ANSWER.to_dict()))
    document["segments"].append({"rounds": 1, "clients": document["segments"][0]["clients"][:2]})
    with pytest.raises(InputError, match="segments"):
        Plan.from_dict(document)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_a_file_that_is_no_plan(text, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InputError):
        Plan.load(file)
    with pytest.raises(InputError, match="missing"):
        Plan.load(tmp_path / "missing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="bytes"):
        Plan.load(tmp_path / "bytes.json")


def test_a_plan_by_hand_needs_its_segments_only():
    """What `fedgap cost --plan` takes: no status, no θ, no terms."""
    made = Plan.from_dict({"segments": ANSWER.to_dict()["segments"]})
    assert made.feasible
    assert made.rounds == 1
    assert made.status == "feasible"
    strict(made)


def test_a_name_instead_of_a_scenario_is_told_how_to_read_one():
    with pytest.raises(InputError, match=r"fedgap\.Scenario\.load\('paper-mnist'\)"):
        plan("paper-mnist")
