"""What a plan spends, against numbers worked out by hand (see ``conftest``)."""

from dataclasses import replace

import numpy as np
import pytest

import fedgap
from fedgap.analysis import SegmentCost
from fedgap.system.cost import RoundCost


def test_by_client_and_cause(scenario, plan):
    report = fedgap.cost(scenario, plan)
    assert report.rounds.tolist() == [4, 3]
    assert report.compute_j == pytest.approx([0.4, 3 * 0.0125])  # half the cycles at a quarter of the energy each
    assert report.upload_j == pytest.approx([1.0, 3 * 0.125])
    assert report.compute_s == pytest.approx([4.0, 3.0])
    assert report.upload_s == pytest.approx([2.0, 0.75])
    assert report.download_s == pytest.approx([4.0, 3.0])
    assert report.waiting_s == pytest.approx([0.0, 0.75])
    assert report.straggler_rounds.tolist() == [4, 0]
    assert report.broadcast_j == pytest.approx(2.0)


def test_by_segment_and_in_all(scenario, plan):
    report = fedgap.cost(scenario, plan)
    assert [segment.energy_j for segment in report.segments] == pytest.approx([0.9875, 0.85])
    assert [segment.delay_s for segment in report.segments] == pytest.approx([2.5, 2.5])
    assert (report.energy_j, report.delay_s) == pytest.approx((3.8125, 10.0))
    assert (report.energy_budget_j, report.delay_budget_s) == (3.8125, 12.0)
    written = report.to_dict()
    assert written["segments"][0] == {"rounds": 3, "local_steps": 1, "delay_s": pytest.approx(2.5),
                                      "energy_j": pytest.approx(0.9875), "straggler": "near"}
    assert written["clients"][1]["name"] == "far"
    assert written["budget"] == {"energy_j": 3.8125, "delay_s": 12.0}


def test_local_steps_are_charged_and_shown(scenario, plan):
    """Four steps compute for 4 s instead of 1 s and take 0.4 J instead of 0.1 J; with 8 bits uploads take 0.127 s."""
    local = replace(plan, segments=tuple(replace(segment, local_steps=4) for segment in plan.segments))
    report = fedgap.cost(scenario, local)
    assert report.compute_s == pytest.approx([16.0, 12.0])
    assert report.compute_j == pytest.approx([1.6, 4 * 3 * 0.0125])
    assert report.upload_s == pytest.approx([2.0, 0.75])
    assert report.to_dict()["segments"][1]["local_steps"] == 4
    assert "local steps" in str(report)
    small = fedgap.cost(scenario.with_overrides(["learning.local_steps=4", "learning.upload_bits=8"]), local)
    assert small.compute_s == pytest.approx([16.0, 12.0])
    assert small.upload_s == pytest.approx([2.0 * 8.125 / 32, 0.75 * 8.125 / 32])
    assert small.download_s == pytest.approx([4.0, 3.0])
    assert small.broadcast_j == pytest.approx(2.0)


def test_it_prints_in_a_terminal_and_in_a_notebook(scenario, plan):
    report = fedgap.cost(scenario, plan)
    text = str(report)
    assert "Who spends what in 4 rounds" in text
    assert "energy  3.8125 J  3.8125 J  100 %" in text
    assert "delay       10 s      12 s   83 %" in text
    html = report._repr_html_()
    assert html.startswith("<pre")
    assert "Who spends what in 4 rounds" in html


def test_a_plan_that_does_not_fit_the_scenario_is_refused(scenario, plan):
    with pytest.raises(fedgap.errors.InputError, match="plan: must have as many clients as the scenario, 10; got 2"):
        fedgap.cost(fedgap.Scenario.load("paper-mnist"), plan)
    with pytest.raises(fedgap.errors.InputError, match="plan: has no segments: too little time"):
        fedgap.cost(scenario, replace(plan, segments=(), reason="too little time"))


@pytest.mark.parametrize(("seconds", "real"), [
    ([1.0, 1.0, 1.0], []),  # all end together
    ([1.0, 0.97, 0.5], []),  # by 3 % only
    ([1.0, 0.6, 0.5], [0]),
    ([1.0, 1.0, 0.5], []),  # most end at the deadline: the third is early, and nobody is late
    ([1.0, 1.0, 0.5, 0.5], [0, 1]),
    ([1.0], []),
])
def test_a_straggler_is_who_the_others_really_wait_for(seconds: list[float], real: list[int]) -> None:
    times, zero = np.array(seconds), np.zeros(len(seconds))
    cost = RoundCost(compute_s=times, upload_s=zero, download_s=zero, compute_j=zero, upload_j=zero,
                     broadcast_j=np.array(0.0), idle_j=zero)
    segment = SegmentCost(1, times > 0, cost, times >= times.max())
    assert np.flatnonzero(segment.real_stragglers).tolist() == real
