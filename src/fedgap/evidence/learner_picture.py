"""Draw learners side by side: one axis per task, one line per learner, one mark per σ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgap.report.figures import PAGE_WIDTH, log_ticks, new_figure, plain_axes, save_figure, side_by_side
from fedgap.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = Mapping[str, Any]
SIGMA_STYLES = {5.0: ("#0072B2", "o"), 1.0: ("#009E73", "^"), 0.3: ("#D55E00", "s"), 0.1: ("#CC79A7", "D")}
"""Colour and mark of each σ."""
LEAST_ERROR = 1.0
"""Intervals are cut off below this error in per cent."""
SHIFT = 0.17
"""The vertical distance, in lines, by which marks are moved apart that would cover each other."""
TOUCH = 0.03
"""Marks whose errors differ by less than this share are taken to cover each other."""


def draw_learners(results: Mapping[str, Any], path: Path) -> None:
    """Draw one axis per data set. The title of a panel begins with the name of its data set."""
    by_data: dict[str, list[Panel]] = {}
    for panel in results["panels"]:
        if panel.get("rows"):
            by_data.setdefault(panel["title"].partition(", ")[0], []).append(panel)
    lines = {data: _lines(panels) for data, panels in by_data.items()}
    counts = [len(of_data) for of_data in lines.values()]
    figure = new_figure(PAGE_WIDTH, 0.3 * sum(counts) + 0.7 * len(counts) + 0.6)
    axes = figure.subplots(len(counts), 1, squeeze=False, height_ratios=counts)[:, 0]
    for ax, (data, of_data) in zip(axes, lines.items(), strict=True):
        for place, (_, panel) in enumerate(of_data):
            if panel is not None:
                _draw_line(ax, place, panel)
        ax.set_yticks(range(len(of_data)), [label for label, _ in of_data])
        for (_, panel), tick in zip(of_data, ax.yaxis.get_major_ticks(), strict=True):
            if panel is None:
                tick.label1.set_fontstyle("italic")
                tick.tick1line.set_visible(False)
        ax.set_ylim(len(of_data) - 0.5, -0.5)
        ax.set_title(data, fontsize=10)
        _scale_errors(ax)
        plain_axes(ax, "x")
    axes[-1].set_xlabel("test error, % (logarithmic)")
    present = {row["value"] for panel in results["panels"] for row in panel.get("rows", [])}
    handles = [axes[0].plot([], [], color=colour, marker=mark, linestyle="", label=f"σ = {sigma:g}")[0]
               for sigma, (colour, mark) in SIGMA_STYLES.items() if sigma in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9,
                  title="means over seeds with 95 % intervals", title_fontsize=9)
    save_figure(figure, path)


def _lines(panels: list[Panel]) -> list[tuple[str, Panel | None]]:
    """The lines of an axis: each is a panel with its label, or a heading.

    Titles consist of data set, condition and learner, separated by commas. If every condition has several learners,
    each condition becomes a heading above its learners."""
    by_condition: dict[str, list[tuple[str, Panel]]] = {}
    for panel in panels:
        condition, _, learner = panel["title"].partition(", ")[2].partition(", ")
        by_condition.setdefault(condition, []).append((learner, panel))
    if len(by_condition) > 1 and min(len(members) for members in by_condition.values()) > 1:
        return [line for condition, members in by_condition.items() for line in [(condition, None), *members]]
    return [(panel["title"].partition(", ")[2] or panel["title"], panel) for panel in panels]


def _draw_line(ax: Axes, place: int, panel: Panel) -> None:
    """Draw the errors of one learner: on its line, or around it if marks would cover each other."""
    means = []
    for sigma in SIGMA_STYLES:
        accuracies = [100 * row["accuracy"] for row in panel["rows"]
                      if row["value"] == sigma and row["accuracy"] is not None]
        if accuracies:
            means.append((sigma, interval(accuracies)))
    points = [(100.0 - mean.mean, mean.half or 0.0) for _, mean in means]
    shifts = side_by_side([(error - half - TOUCH * error, error + half + TOUCH * error) for error, half in points])
    for (sigma, _), (error, half), shift in zip(means, points, shifts, strict=True):
        colour, mark = SIGMA_STYLES[sigma]
        reach = [[max(min(half, error - LEAST_ERROR), 0.0)], [half]]  # a logarithmic axis has no zero
        ax.errorbar(error, place + SHIFT * shift, xerr=reach, color=colour, marker=mark, markersize=5, capsize=2.5)


def _scale_errors(ax: Axes) -> None:
    """Set a logarithmic axis with round numbers as ticks."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    narrow = high < 4.0 * low
    log_ticks(ax.xaxis, range(1, 10) if narrow else (1.0, 2.0, 5.0))
