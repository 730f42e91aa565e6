"""Forecast against every rival: the mean difference in each cell and its mean over the tight ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgap.report.figures import new_figure, save_figure

SHARE_STYLES = {0.125: ("#D55E00", "o"), 0.25: ("#E69F00", "s"), 1.0: ("#0072B2", "^")}
"""Colour and mark of each share of the budgets."""


def draw_planning(results: Mapping[str, Any], path: Path) -> None:
    """One line per rival; a mark per cell, by its budgets; a bar for the mean over the tight cells."""
    answer = results["judged"]
    rivals = [entry["rival"] for entry in sorted(answer["pooled"], key=lambda entry: entry["difference"])]
    if not rivals:
        return
    figure = new_figure(7.5, 0.34 * len(rivals) + 1.8)
    ax = figure.subplots()
    for cell in answer["cells"]:
        colour, mark = SHARE_STYLES.get(cell["share"], ("#999999", "D"))
        for entry in cell["rivals"]:
            if "difference" in entry and entry["rival"] in rivals:
                ax.plot(100 * entry["difference"], rivals.index(entry["rival"]), mark, color=colour, markersize=5,
                        alpha=0.7, markeredgewidth=0)
    for entry in answer["pooled"]:
        ax.errorbar(100 * entry["difference"], rivals.index(entry["rival"]), xerr=100 * (entry["half"] or 0.0),
                    color="#000000", marker="|", markersize=12, capsize=3)
    ax.axvline(0.0, color="#999999", linewidth=0.8)
    ax.set_yticks(range(len(rivals)), rivals)
    ax.set_xscale("symlog", linthresh=1.0)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(ylim=(-0.6, len(rivals) - 0.4), xlabel="accuracy of forecast minus this, points")
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    present = {cell["share"] for cell in answer["cells"]}
    handles = [ax.plot([], [], mark, color=colour, label=f"budgets × {share:g}")[0]
               for share, (colour, mark) in SHARE_STYLES.items() if share in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9, title_fontsize=9,
                  title="a mark per cell; bars: mean over the tight cells with its 95 % interval")
    save_figure(figure, path)
