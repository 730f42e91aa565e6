"""Draw a plan: one line per client, with what it does and what that costs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.analysis.cost_report import CostReport
from fedgap.arrays import Floats
from fedgap.planning import Plan
from fedgap.report.figures import PAGE_WIDTH, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 40
"""Largest number of clients that are drawn; of a larger fleet, those that spend most energy."""
COLOURS = {"download": "#56B4E9", "compute": "#E69F00", "upload": "#0072B2", "idle": "#999999"}
"""Okabe and Ito's colours, which colour-blind people can tell apart."""
DECADES = 30.0
"""An axis is logarithmic if its largest value is more than this many times the smallest."""


def draw_plan(plan: Plan, cost: CostReport) -> Figure:
    """Draw how often each client takes part, how much it prunes, its power and clock, its seconds and its joules.

    Pruning, power, clock and seconds are means over the rounds in which a client takes part; the joules are those of
    all rounds. A client that never takes part has an empty line.
    """
    from matplotlib.patches import Patch

    shown = np.sort(np.argsort(-cost.client_j, kind="stable")[:MOST_LINES])
    part = cost.rounds[shown] > 0
    rows = np.flatnonzero(part)
    chosen = shown[part]
    figure = new_figure(PAGE_WIDTH, 0.2 * shown.size + 1.6)
    columns = figure.subplots(1, 6, sharey=True)
    take_part, pruned, power, clock, seconds, joules = columns
    _bars(take_part, rows, {"": 100.0 * cost.rounds[chosen] / plan.rounds}, "takes part in,\n% of the rounds")
    _bars(pruned, rows, {"": 100.0 * _mean(plan, "pruning_ratio")[chosen]}, "pruned,\n% of the weights")
    _dots(power, rows, 1e3 * _mean(plan, "power_w")[chosen], "power,\nmW")
    _dots(clock, rows, 1e-9 * _mean(plan, "frequency_hz")[chosen], "clock,\nGHz")
    per_round = {name: getattr(cost, f"{name}_s")[chosen] / cost.rounds[chosen]
                 for name in ("download", "compute", "upload")}
    _bars(seconds, rows, per_round, "time per round,\ns")
    _bars(joules, rows, {name: getattr(cost, f"{name}_j")[chosen] for name in ("compute", "upload", "idle")},
          "energy of all\nrounds, J")
    columns[0].set_yticks(range(shown.size), [cost.names[n] for n in shown], fontsize=8)
    for label, takes_part in zip(columns[0].get_yticklabels(), part, strict=True):
        label.set_color("#000000" if takes_part else "#999999")
    columns[0].set_ylim(shown.size - 0.4, -0.6)
    for ax in columns:
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", labelsize=8)
    used = (f"{plan.rounds} rounds, {plan.energy_j:.4g} of {cost.energy_budget_j:.4g} J, "
            f"{plan.delay_s:.4g} of {cost.delay_budget_s:.4g} s")
    hidden = cost.rounds.size - shown.size
    figure.suptitle(f"{plan.scheme}: {used}" + (f"; {hidden} clients that spend less are left out" if hidden else ""),
                    fontsize=10)
    idle = ["idle"] if cost.idle_j.any() else []
    handles = [Patch(color=COLOURS[name], label=name) for name in ("download", "compute", "upload", *idle)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _mean(plan: Plan, name: str) -> Floats:
    """Return the mean of a segment's field ``name`` over the rounds in which each client takes part, shape (N,)."""
    rounds = sum(segment.rounds * segment.selected for segment in plan.segments)
    total = sum(segment.rounds * np.where(segment.selected, getattr(segment, name), 0.0) for segment in plan.segments)
    return np.asarray(total / np.maximum(rounds, 1))


def _bars(ax: Axes, rows: np.ndarray, parts: dict[str, Floats], label: str) -> None:
    base = np.zeros(rows.size)
    for name, values in parts.items():
        ax.barh(rows, values, left=base, height=0.7, color=COLOURS.get(name, "#444444"))
        base += values
    ax.set_xlim(0.0, 1.05 * float(base.max(initial=1e-9)))
    ax.set_xlabel(label, fontsize=9)
    plain_axes(ax, "x")


def _dots(ax: Axes, rows: np.ndarray, values: Floats, label: str) -> None:
    style: dict[str, Any] = {"color": "#444444", "markersize": 4}
    ax.plot(values, rows, "o", **style)
    if values.size and values.min() > 0.0 and values.max() > DECADES * values.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    else:
        ax.set_xlim(0.0, 1.1 * float(values.max(initial=1e-9)))
    ax.set_xlabel(label, fontsize=9)
    plain_axes(ax, "x")
