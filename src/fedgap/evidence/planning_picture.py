"""Draw how ``forecast`` compares with every rival: the mean difference in each cell, and the mean over the cells with
tight budgets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgap.evidence.planning_value import MARGIN, fleet_of
from fedgap.report.figures import PAGE_WIDTH, new_figure, plain_axes, save_figure

SHARE_STYLES = {0.125: ("#D55E00", "o", 0.22), 0.25: ("#E69F00", "s", 0.0), 1.0: ("#0072B2", "^", -0.22)}
"""Colour and mark of each share of the budgets, and the vertical offset of its marks, because a line has dozens."""
OTHER_SHARE = ("#999999", "D", 0.0)
FILLED = "city"
"""The fleet whose marks are filled; those of other fleets are hollow."""


def draw_planning(results: Mapping[str, Any], path: Path) -> None:
    """Draw one row per rival: a mark for its difference in each cell, and a bar for its mean over the tight cells.

    Cells and rivals are explained in :mod:`fedgap.evidence.planning_value`. A mark's style shows the share of the
    budgets and the fleet."""
    from matplotlib.ticker import SymmetricalLogLocator

    answer = results["judged"]
    rivals = [entry["rival"] for entry in sorted(answer["pooled"], key=lambda entry: entry["difference"])]
    if not rivals:
        return
    figure = new_figure(PAGE_WIDTH, 0.36 * len(rivals) + 1.5)
    ax = figure.subplots()
    for cell in answer["cells"]:
        colour, mark, shift = SHARE_STYLES.get(cell["share"], OTHER_SHARE)
        face = colour if fleet_of(cell["cell"]) == FILLED else "none"
        for entry in cell["rivals"]:
            if "difference" in entry and entry["rival"] in rivals:
                ax.plot(100 * entry["difference"], rivals.index(entry["rival"]) + shift, mark, color=colour,
                        markersize=4, alpha=0.6, markerfacecolor=face, markeredgewidth=0.8)
    for entry in answer["pooled"]:
        ax.errorbar(100 * entry["difference"], rivals.index(entry["rival"]), xerr=100 * (entry["half"] or 0.0),
                    color="#000000", marker="|", markersize=14, markeredgewidth=2, capsize=3)
    ax.axvline(0.0, color="#999999", linewidth=0.8)
    ax.axvline(-100 * MARGIN, color="#999999", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(rivals)), rivals)
    ax.set_xscale("symlog", linthresh=1.0)
    ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0, subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(ylim=(-0.6, len(rivals) - 0.4), xlabel="accuracy of forecast minus this, points (logarithmic beyond ±1)")
    plain_axes(ax, "x")
    present = {cell["share"] for cell in answer["cells"]}
    handles = [ax.plot([], [], mark, color=colour, label=f"budgets × {share:g}")[0]
               for share, (colour, mark, _) in SHARE_STYLES.items() if share in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9, title_fontsize=9,
                  title=f"a mark per cell, filled over the {FILLED} fleet; bars: mean over the tight cells with its 95 "
                        f"% interval; dotted: the margin of {100 * MARGIN:g} points")
    save_figure(figure, path)
