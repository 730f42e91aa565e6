"""The figures as pictures, in the paper's form: one panel per data set, one line per scheme, intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.evidence.forecast_picture import draw_forecast
from fedgap.evidence.planning_picture import draw_planning
from fedgap.registry import SCHEMES
from fedgap.report.figures import new_figure, save_figure
from fedgap.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(SCHEMES.built_in, ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9",
                                     "#999999"), strict=True))
"""Okabe and Ito's colours and a grey, which colour-blind people can tell apart; marks and dashes differ too."""
MARKS = dict(zip(SCHEMES.built_in, "osD^vXP*", strict=True))
DASHES: dict[str, Any] = dict(zip(SCHEMES.built_in, ("-", (0, (5, 1.5)), (0, (4, 1, 1, 1)), (0, (2, 1)), (0, (1, 1)),
                                            (0, (6, 1, 1, 1, 1, 1)), (0, (3, 1, 1, 1)), (0, (8, 2))), strict=True))
MODES = {"repaired": "repaired", "as_printed": "as printed"}
SIGMA_STYLES = {5.0: ("#0072B2", "o"), 1.0: ("#009E73", "^"), 0.3: ("#D55E00", "s"), 0.1: ("#CC79A7", "D")}
"""Colour and mark of each σ in a figure of learners."""
LEAST_ERROR = 1.0
"""The least error, in per cent, that an interval reaches down to in a figure of learners."""


def draw_figure(results: Mapping[str, Any], path: Path) -> None:
    """Draw a figure's results into ``path``. A table has no picture, nor has a figure without a single run."""
    if results["kind"] == "partitions":
        _draw_partitions(results, path)
    elif any(panel.get("rows") for panel in results.get("panels", [])):
        others = {"learners": _draw_learners, "forecast": draw_forecast, "planning": draw_planning}
        others.get(results["kind"], _draw_schemes)(results, path)


def _draw_partitions(results: Mapping[str, Any], path: Path) -> None:
    """One picture per mode: ``fig3.png`` repaired, ``fig3-as_printed.png`` as printed."""
    from fedgap.running.partition_picture import draw_partitions

    rows = [row for row in results["rows"] if row["label_counts"] is not None]
    for mode in MODES:
        panels = [(f"{results['panel']}, σ = {row['sigma']:g}, seed {row['seed']}", np.array(row["label_counts"]),
                   np.array(row["phi"][mode])) for row in rows]
        draw_partitions(panels, path if mode == "repaired" else path.with_stem(f"{path.stem}-{mode}"))


def _draw_learners(results: Mapping[str, Any], path: Path) -> None:
    """One line per learner, one axis per data set (the panels' titles begin with it), one mark per σ."""
    from matplotlib.ticker import LogLocator, NullFormatter

    by_data: dict[str, list[Mapping[str, Any]]] = {}
    for panel in results["panels"]:
        if panel.get("rows"):
            by_data.setdefault(panel["title"].partition(",")[0], []).append(panel)
    lines = [len(panels) for panels in by_data.values()]
    figure = new_figure(8.0, 0.36 * sum(lines) + 1.3 * len(lines))
    axes = figure.subplots(len(lines), 1, squeeze=False, height_ratios=lines)[:, 0]
    for ax, (data, panels) in zip(axes, by_data.items(), strict=True):
        for place, panel in enumerate(panels):
            for position, (sigma, (colour, mark)) in enumerate(SIGMA_STYLES.items()):
                accuracies = [100 * row["accuracy"] for row in panel["rows"]
                              if row["value"] == sigma and row["accuracy"] is not None]
                if accuracies:
                    mean = interval(accuracies)
                    error, half = 100.0 - mean.mean, mean.half or 0.0
                    reach = [[min(half, error - LEAST_ERROR)], [half]]  # a logarithmic axis has no zero
                    ax.errorbar(error, place + 0.16 * (position - 1.5), xerr=reach, color=colour, marker=mark,
                                markersize=5, capsize=2.5)
        ax.set_yticks(range(len(panels)), [panel["title"].partition(", ")[2] or panel["title"] for panel in panels])
        ax.set(ylim=(len(panels) - 0.5, -0.5), title=data, xlabel="test error, %", xscale="log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(axis="x", color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    present = {row["value"] for panel in results["panels"] for row in panel.get("rows", [])}
    handles = [axes[0].plot([], [], color=colour, marker=mark, linestyle="", label=f"σ = {sigma:g}")[0]
               for sigma, (colour, mark) in SIGMA_STYLES.items() if sigma in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9,
                  title="means over seeds with 95 % intervals", title_fontsize=9)
    save_figure(figure, path)


def _draw_schemes(results: Mapping[str, Any], path: Path) -> None:
    """A figure of losses or accuracies: an axis for each panel that has results and each of its modes, two in a row."""
    panels = [panel for panel in results["panels"] if panel.get("rows")]
    cells = [(panel, mode) for panel in panels for mode in dict.fromkeys(row["mode"] for row in panel["rows"])]
    columns = min(2, len(cells))
    lines = -(-len(cells) // columns)
    figure = new_figure(5.6 * columns, 4.1 * lines + 0.6)
    loss = results["kind"] == "loss"
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat[len(cells):]:
        ax.set_visible(False)
    axes_by_panel: dict[str, list[Axes]] = {}
    for ax, (panel, mode) in zip(axes.flat, cells, strict=False):
        (_draw_losses if loss else _draw_accuracies)(ax, panel, mode)
        few = panel.get("missing_by_mode", {}).get(mode)
        missing = f"\n({few} distinct run{'s' * (few > 1)} not trained yet)" if few else ""
        ax.set_title(fill(f"{panel['title']}, {MODES[mode]}", 62) + missing, fontsize=10)
        ax.set(xlabel=results["xlabel"], ylabel="training loss, nats" if loss else "test accuracy, %")
        ax.set_axisbelow(True)
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        axes_by_panel.setdefault(panel["title"], []).append(ax)
    if loss:  # accuracies of the two modes lie too far apart for one axis: schemes could not be told from each other
        for group in axes_by_panel.values():
            means = np.concatenate([np.array(line.get_ydata(), dtype=float) for ax in group for line in ax.get_lines()])
            for ax in group:  # by the means: intervals of few seeds would squeeze them, and may run out of the panel
                ax.set_ylim(0.85 * float(means.min()), 1.2 * float(means.max()))
    names = _present(row for panel in panels for row in panel["rows"])
    handles = [axes[0][0].plot([], [], marker=MARKS[name], linestyle=DASHES[name], color=COLOURS[name],
                               label=SCHEMES.load(name).title)[0] for name in names]
    said = "; bands" if loss else ", side by side at each value; bars"
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9, title_fontsize=9,
                  title=f"means over seeds{said}: 95 % intervals")
    save_figure(figure, path)


def _present(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the rows' schemes in the paper's order."""
    present = {row["scheme"] for row in rows}
    return [name for name in SCHEMES.built_in if name in present]


def _draw_losses(ax: Axes, panel: Mapping[str, Any], mode: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    curves = [curve for curve in panel["curves"] if curve["mode"] == mode]
    shaded: list[Any] = []  # schemes that trained the same models share one band
    for position, curve in enumerate(curves):
        name, x, mean = curve["scheme"], np.array(curve["x"]), np.array(curve["mean"])
        half = np.zeros(len(x)) if curve["half"] is None else np.array(curve["half"])
        if curve["mean"] not in shaded:
            ax.fill_between(x, mean - half, mean + half, color=COLOURS[name], alpha=0.13, linewidth=0)
            shaded.append(curve["mean"])
        ax.plot(x, mean, linestyle=DASHES[name], color=COLOURS[name], marker=MARKS[name], markersize=5,
                markevery=(position, 8), linewidth=1.4)
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(left=0)


def _draw_accuracies(ax: Axes, panel: Mapping[str, Any], mode: str) -> None:
    rows = [row for row in panel["rows"] if row["mode"] == mode]
    values = sorted({row["value"] for row in rows})
    names = _present(rows)
    places = np.arange(len(values))
    for position, name in enumerate(names):
        at, points = [], []
        for place, value in zip(places, values, strict=True):
            accuracies = [row["accuracy"] for row in rows
                     if row["scheme"] == name and row["value"] == value and row["accuracy"] is not None]
            if accuracies:
                at.append(place + 0.09 * (position - (len(names) - 1) / 2))
                points.append(interval([100 * x for x in accuracies]))
        ax.errorbar(at, [p.mean for p in points], [p.half or 0.0 for p in points], color=COLOURS[name],
                    marker=MARKS[name], markersize=5, linestyle=DASHES[name], linewidth=1.2, capsize=2.5)
    ax.set_xticks(places, [f"{value:g}" for value in values])
    ax.set_xlim(-0.5, len(values) - 0.5)
