"""Forecast against measured error of the drawn plans, one panel per cell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.report.figures import new_figure, save_figure

STEPS_COLOURS = {1: "#000000", 2: "#E69F00", 4: "#56B4E9", 8: "#009E73", 16: "#0072B2", 32: "#D55E00"}
"""By local steps."""
COLUMNS = 4


def draw_forecast(results: Mapping[str, Any], path: Path) -> None:
    """One point per run: the forecast fitted to the other folds' plans across, the measured error upwards."""
    from matplotlib.ticker import LogLocator, NullFormatter

    panels = [panel for panel in results["panels"] if panel.get("rows")]
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(3.3 * columns, 3.3 * lines + 0.5)
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat[len(panels):]:
        ax.set_visible(False)
    for ax, panel in zip(axes.flat, panels, strict=False):
        rows = panel["rows"]
        forecast, measured = (100.0 * (1.0 - np.array([row[key] for row in rows])) for key in ("forecast", "accuracy"))
        ends = [0.9 * min(forecast.min(), measured.min()), 1.1 * max(forecast.max(), measured.max())]
        ax.plot(ends, ends, color="#999999", linewidth=0.8)
        ax.scatter(forecast, measured, s=9, alpha=0.7, linewidths=0,
                   color=[STEPS_COLOURS.get(row["local_steps"], "#CC79A7") for row in rows])
        judged = panel["held_out"]
        ax.set_title(f"{panel['title']}\nrank correlation {judged['rank']:.2f}, better half "
                     f"{judged['rank_better_half']:.2f}", fontsize=9)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("measured test error, %")
    for ax in axes[-1]:
        ax.set_xlabel("forecast test error, %")
    handles = [axes[0][0].plot([], [], "o", color=colour, markersize=4, label=str(steps))[0]
               for steps, colour in STEPS_COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9,
                  title="local steps; each run is forecast by a fit to other plans", title_fontsize=9)
    save_figure(figure, path)
