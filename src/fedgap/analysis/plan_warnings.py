"""Warnings about plans that are valid but probably not intended.

They are about budgets that are hardly used, and about clocks and powers that no real device can set.
"""

from __future__ import annotations

import numpy as np

from fedgap.config import Scenario
from fedgap.config.checked_fields import SLOWEST_CLOCK_HZ
from fedgap.planning import Plan
from fedgap.planning.problem import Problem
from fedgap.report.number_format import si

UNUSED = 0.01
"""If a plan uses less than this share of a budget, its unit is probably wrong, for example mJ instead of J."""
SLOWEST_SHARE = 0.01
"""No processor runs below this share of its highest clock. (Real ones can be slowed down to about a tenth of it.)"""
QUIETEST_W = 1e-7
"""-40 dBm, the least output power that a phone must be able to set (3GPP TS 36.101). The least power of other radios is
far higher."""


def plan_warnings(scenario: Scenario, plan: Plan) -> list[str]:
    """Return one line per warning. It names a key and, for clocks and powers, the first client that is concerned."""
    if not plan.segments:
        return []
    lines = []
    for key, used, budget in (("energy_j", plan.energy_j, scenario.budget.energy_j),
                              ("delay_s", plan.delay_s, scenario.budget.delay_s)):
        if used < UNUSED * budget:
            lines.append(f"budget.{key}: the plan uses {used / budget:.2g} of it ({used:.4g} of {budget:g}); "
                         "is its unit right?")
    fleet, names = Problem.of(scenario).fleet, scenario.names
    slowest = np.maximum(SLOWEST_CLOCK_HZ, SLOWEST_SHARE * fleet.max_frequency_hz)
    for what, key, unit, value, least in (
        ("clock", "min_frequency_hz", "Hz", [s.frequency_hz for s in plan.segments], slowest),
        ("transmit power", "min_power_w", "W", [s.power_w for s in plan.segments], np.full(fleet.size, QUIETEST_W)),
    ):
        low = np.array([s.selected & (v < least) for s, v in zip(plan.segments, value, strict=True)])
        if low.any():
            segment, client = np.argwhere(low)[0]
            others = int(low.any(axis=0).sum()) - 1
            more = f" ({others} more likewise)" if others else ""
            lines.append(f"clients[{client}].{key}: {names[client]} has a planned {what} of "
                         f"{si(float(value[segment][client]), unit)}{more}, which no such device can set; "
                         f"give {key}")
    return lines
