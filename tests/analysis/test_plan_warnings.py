"""Warnings about plans that are hardly meant."""

from dataclasses import replace

import numpy as np
import pytest

import fedgap
from fedgap.analysis.plan_warnings import plan_warnings


@pytest.fixture(scope="module")
def planned():
    scenario = fedgap.Scenario.load("paper-mnist", ["fleet.count=2", "rounds=5", "budget.energy_j=10",
                                                    "budget.delay_s=5"])
    return scenario, fedgap.plan(scenario)


def test_an_ordinary_plan_has_none(planned):
    assert plan_warnings(*planned) == []


def test_unused_budgets_are_named(planned):
    scenario, plan = planned
    (line,) = plan_warnings(scenario, replace(plan, energy_j=0.0099 * scenario.budget.energy_j))
    assert line.startswith("budget.energy_j: the plan uses 0.0099 of it")


@pytest.mark.parametrize(("key", "value", "words"), [
    ("frequency_hz", 9e5, "clients[0].min_frequency_hz: client 0 has a planned clock of 900 kHz (1 more likewise)"),
    ("power_w", 5e-8, "clients[0].min_power_w: client 0 has a planned transmit power of 50.0 nW (1 more likewise)"),
])
def test_implausible_clocks_and_powers_are_named(planned, key, value, words):
    scenario, plan = planned
    segments = tuple(replace(s, selected=np.ones(2, dtype=bool), **{key: np.full(2, value)}) for s in plan.segments)
    (line,) = plan_warnings(scenario, replace(plan, segments=segments))
    assert line.startswith(words)
