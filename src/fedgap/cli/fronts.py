"""The trade between joules, seconds and θ, over a grid of budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.cli.number_format import number
from fedgap.cli.uncut_table import Sheet

if TYPE_CHECKING:
    from fedgap.planning import Plan

LEAST, MOST = 0.6, 2.0
"""The grid's range, as multiples of the scenario's own budgets."""
WIDEST = 9
"""Values of a budget that fit side by side on a hundred columns."""


def factors(points: int) -> list[float]:
    """So many multiples between ``LEAST`` and ``MOST``, evenly in their logarithm, 1 among them."""
    grid = np.geomspace(LEAST, MOST, points)
    grid[np.abs(np.log(grid)).argmin()] = 1.0
    return [round(float(factor), 4) for factor in grid]


@dataclass(frozen=True, eq=False)
class Point:
    """One pair of budgets and the best plan for it."""

    budget_energy_j: float
    budget_delay_s: float
    plan: Plan

    @property
    def theta(self) -> float:
        """θ of the plan; infinite where the budgets carry none."""
        return self.plan.theta

    def to_dict(self) -> dict[str, Any]:
        """A row of the JSON or CSV answer."""
        used = self.plan.feasible
        return {
            "budget_energy_j": self.budget_energy_j,
            "budget_delay_s": self.budget_delay_s,
            "status": self.plan.status,
            "theta": self.theta if np.isfinite(self.theta) else None,
            "gap": self.plan.gap,
            "energy_j": self.plan.energy_j if used else None,
            "delay_s": self.plan.delay_s if used else None,
        }


def efficient(points: list[Point]) -> list[bool]:
    """Which points are on the Pareto front: no smaller pair of budgets does as well."""
    budgets = np.array([(p.budget_energy_j, p.budget_delay_s) for p in points]).reshape(-1, 2)
    theta = np.array([p.theta for p in points])
    front = []
    for own, value in zip(budgets, theta, strict=True):
        smaller = np.all(budgets <= own, axis=-1) & np.any(budgets < own, axis=-1)
        front.append(bool(np.isfinite(value) and not np.any(smaller & (theta <= value * (1.0 + 1e-9)))))
    return front


def front_table(points: list[Point], own: tuple[float, float]) -> Sheet:
    """θ by energy budget (down) and delay budget (across); a list where the grid is too wide."""
    delays = sorted({p.budget_delay_s for p in points})
    energies = sorted({p.budget_energy_j for p in points})
    on_front = dict(zip(((p.budget_energy_j, p.budget_delay_s) for p in points), efficient(points), strict=True))
    found = {(p.budget_energy_j, p.budget_delay_s): p for p in points}
    caption = "[θ] the scenario's own; * off the Pareto front: smaller budgets do as well; ∞ no plan fits"
    if len(delays) > WIDEST:
        made = Sheet("What other budgets buy", "energy budget", "delay budget", "θ", "energy used", "delay used",
                     caption=caption)
        for key, p in found.items():
            used = [f"{p.plan.energy_j:.4g} J", f"{p.plan.delay_s:.4g} s"] if p.plan.feasible else ["–", "–"]
            made.add_row(f"{key[0]:.4g} J", f"{key[1]:.4g} s", _cell(p, on_front[key], key == own), *used)
        return made
    made = Sheet("θ by energy budget (down) and delay budget (across)", "", *(f"{d:.4g} s" for d in delays),
                 caption=caption)
    for energy in energies:
        cells = [
            _cell(found[key], on_front[key], key == own) if (key := (energy, delay)) in found else ""
            for delay in delays
        ]
        made.add_row(f"{energy:.4g} J", *cells)
    return made


def _cell(point: Point, on_front: bool, own: bool) -> str:
    text = number(point.theta, 5)
    if np.isfinite(point.theta) and not on_front:
        text += "*"
    return f"[{text}]" if own else text
