"""Draw the measured error of the drawn plans against their forecast, one panel per cell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.report.figures import PAGE_WIDTH, log_ticks, new_figure, plain_axes, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS_COLOURS = {1: "#000000", 2: "#E69F00", 4: "#56B4E9", 8: "#009E73", 16: "#0072B2", 32: "#D55E00"}
"""Colours by the number of local steps."""
IN_TURNS = ", in turns"
"""Part of the title of a cell in which the clients of most plans take turns."""


def draw_forecast(results: Mapping[str, Any], path: Path) -> None:
    """Draw one point per run: on the x-axis the forecast, fitted without the run's plan; on the y-axis the measured
    error.

    There is one row per data set, whose name begins the titles of its panels, and another one for its cells with turns.
    The cells of a row share both axes."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for panel in results["panels"]:
        if panel.get("rows"):
            turns = IN_TURNS if IN_TURNS in panel["title"] else ""
            rows.setdefault(panel["title"].partition(", ")[0] + turns, []).append(panel)
    columns = max(map(len, rows.values()))
    figure = new_figure(max(PAGE_WIDTH * columns / 4, 4.5), 2.2 * len(rows) + 0.7)
    grid = figure.add_gridspec(len(rows), columns)
    for number, (data, panels) in enumerate(rows.items()):
        errors = [_errors(panel) for panel in panels]
        ends = (0.85 * min(float(e.min()) for e in errors), 1.15 * min(100.0, max(float(e.max()) for e in errors)))
        first: Axes | None = None
        for column, (panel, (forecast, measured)) in enumerate(zip(panels, errors, strict=True)):
            ax = figure.add_subplot(grid[number, column], sharex=first, sharey=first)
            ax.plot(ends, ends, color="#999999", linewidth=0.8)
            ax.scatter(forecast, measured, s=8, alpha=0.7, linewidths=0,
                       color=[STEPS_COLOURS.get(row["local_steps"], "#CC79A7") for row in panel["rows"]])
            ax.set_title(panel["title"].partition(", ")[2].replace(IN_TURNS, ""), fontsize=9)
            judged = panel["held_out"]
            ax.text(0.97, 0.04, f"rank correlation {judged['rank']:.2f}\nbetter half {judged['rank_better_half']:.2f}",
                    transform=ax.transAxes, ha="right", va="bottom", fontsize=7.5)
            if first is None:
                first = ax
                _scale_errors(ax, ends)
                ax.set_ylabel(f"{data}\nmeasured test error, %")
            if number == len(rows) - 1:
                ax.set_xlabel("forecast, %")
            ax.tick_params(labelleft=column == 0)
            plain_axes(ax, "both")
    handles = [ax.plot([], [], "o", color=colour, markersize=4, label=str(steps))[0]
               for steps, colour in STEPS_COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9,
                  title="local steps; each run is forecast by a fit to other plans", title_fontsize=9)
    save_figure(figure, path)


def _errors(panel: Mapping[str, Any]) -> np.ndarray:
    """The forecast and the measured errors in per cent, shape (2, runs)."""
    return np.array([[100.0 * (1.0 - row[key]) for row in panel["rows"]] for key in ("forecast", "accuracy")])


def _scale_errors(ax: Axes, ends: tuple[float, float]) -> None:
    """Set two equal logarithmic axes with round numbers as ticks."""
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, box_aspect=1)
    narrow = ends[1] < 6.0 * ends[0]
    for axis in (ax.xaxis, ax.yaxis):
        log_ticks(axis, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if narrow else (1.0, 2.0, 5.0))
