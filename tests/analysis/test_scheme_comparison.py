"""Schemes side by side."""

from pathlib import Path

import numpy as np
import pytest

import fedgap
from fedgap.analysis import mean_pruning_ratio
from fedgap.planning import PAPER_SCHEMES

SMALL = Path(__file__).parents[1] / "cases" / "n3_r1.json"


@pytest.fixture(scope="module")
def small():
    return fedgap.Scenario.load(SMALL, ["rounds=10", "budget.energy_j=9", "budget.delay_s=13"])


@pytest.fixture(scope="module")
def comparison(small):
    return fedgap.compare(small)


def test_the_paper_s_six_in_order(small, comparison):
    assert [plan.scheme for plan in comparison] == list(PAPER_SCHEMES)
    assert len(comparison) == 6
    assert comparison["proposed"].theta == pytest.approx(fedgap.plan(small).theta, rel=1e-9)
    assert all(plan.theta >= comparison["proposed"].theta * (1 - 1e-9) for plan in comparison)
    assert comparison.to_dict()["plans"][1]["scheme"] == "no_pruning"


def test_a_scheme_that_carries_fewer_rounds_says_so(comparison):
    unpruned = comparison["no_pruning"]
    assert 0 < unpruned.rounds < 10
    assert unpruned.theta == np.inf
    assert f"planned again with {unpruned.rounds} of 10 rounds" in " ".join(str(comparison).split())


def test_some_schemes_and_each_plan_as_it_is_there(small):
    seen = []
    result = fedgap.compare(small, ["fixed_power", "proposed"], on_plan=seen.append)
    assert [plan.scheme for plan in result] == ["fixed_power", "proposed"]
    assert seen == list(result.plans)
    with pytest.raises(fedgap.errors.InputError, match="scheme"):
        fedgap.compare(small, ["fixed_powr"])


def test_a_scheme_may_be_an_object_or_an_import(small, monkeypatch):
    monkeypatch.setenv("FEDGAP_ALLOW", "math:pi")
    plain = fedgap.Scheme(name="plain", title="Neither pruning nor power are decided", prune=False, power=False)
    result = fedgap.compare(small, [plain, "fedgap.planning.schemes.proposed:SCHEME"])
    assert [plan.scheme for plan in result] == ["plain", "proposed"]
    with pytest.raises(fedgap.errors.InputError, match=r"scheme: must be a fedgap\.Scheme"):
        fedgap.compare(small, ["math:pi"])


def test_ctrl_c_keeps_what_was_planned(small):
    def stop(plan):
        raise KeyboardInterrupt

    result = fedgap.compare(small, on_plan=stop)
    assert result.interrupted
    assert [plan.scheme for plan in result] == ["proposed"]


def test_the_picture_has_a_row_for_each_scheme(comparison, tmp_path):
    path = tmp_path / "new" / "schemes.png"
    figure = comparison.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(PAPER_SCHEMES)
    with pytest.raises(fedgap.errors.InputError, match=r"path: must end in \.png"):
        comparison.plot(tmp_path / "schemes.gif")


def test_the_mean_pruning_ratio(plan):
    """(0 + 0.5)/2 in three rounds, 0 in one."""
    assert mean_pruning_ratio(plan) == pytest.approx(3 * 0.25 / 4)
