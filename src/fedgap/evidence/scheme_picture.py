"""Draw schemes as in the paper's figures: losses against what was spent, or accuracies against a threshold, with
intervals over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.registry import SCHEMES
from fedgap.report.figures import PAGE_WIDTH, log_ticks, new_figure, plain_axes, save_figure, side_by_side
from fedgap.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(SCHEMES.built_in, ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9",
                                     "#999999"), strict=True))
"""Okabe and Ito's colours and a grey, which colour-blind people can tell apart. Marks and dashes differ as well."""
MARKS = dict(zip(SCHEMES.built_in, "osD^vXP*", strict=True))
DASHES: dict[str, Any] = dict(zip(SCHEMES.built_in, ("-", (0, (5, 1.5)), (0, (4, 1, 1, 1)), (0, (2, 1)), (0, (1, 1)),
                                            (0, (6, 1, 1, 1, 1, 1)), (0, (3, 1, 1, 1)), (0, (8, 2))), strict=True))
MODES = {"repaired": "repaired", "as_printed": "as printed"}
WHOLE_ROW = 8
"""The width of a row of cells: two wide ones, or a wide one and two strips."""
WIDE, STRIP = 4, 2
"""The width of a cell with several values, and of a cell with a single value."""
LETTERS = 13
"""Number of letters of a title that fit into one unit of width."""
SHIFT = 0.05
"""The horizontal distance, in ticks, by which marks are moved apart that would cover each other."""
TOUCH = 0.02
"""Marks that are closer than this share of the axis are taken to cover each other."""


@dataclass(frozen=True)
class SchemeCell:
    """One panel of a figure in one mode."""

    panel: Mapping[str, Any]
    mode: str
    loss: bool

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The rows of the panel's runs in this mode."""
        return [row for row in self.panel["rows"] if row["mode"] == self.mode]

    @property
    def values(self) -> list[float]:
        """The values of the quantity that the panel varies, sorted."""
        return sorted({row["value"] for row in self.rows})

    @property
    def width(self) -> int:
        """The width of the cell: a single value needs only a strip."""
        return WIDE if self.loss or len(self.values) > 1 else STRIP

    @property
    def title(self) -> str:
        """The panel and its mode, and how many of its runs are missing."""
        few = self.panel.get("missing_by_mode", {}).get(self.mode)
        missing = f"\n({few} distinct run{'s' * (few > 1)} not trained yet)" if few else ""
        whole = f"{self.panel['title']}, {MODES[self.mode]}"
        held_together = re.sub(r" ?= ?| (?=(J|s|printed)\b)", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"),
                               whole)
        return fill(held_together, LETTERS * self.width) + missing


def draw_schemes(results: Mapping[str, Any], path: Path) -> None:
    """Draw one cell per panel and mode. The cells of a row show one data set and share their y-axis.

    The legend is placed in the space that the last row leaves free, or below the figure."""
    loss = results["kind"] == "loss"
    panels = [panel for panel in results["panels"] if panel.get("rows")]
    rows = arranged([SchemeCell(panel, mode, loss) for panel in panels
                     for mode in dict.fromkeys(row["mode"] for row in panel["rows"])])
    whole = max(sum(cell.width for cell in row) for row in rows)
    free = [whole - sum(cell.width for cell in row) for row in rows]
    width = PAGE_WIDTH * (0.25 + 0.75 * whole / WHOLE_ROW)  # axis labels and the legend need some width as well
    figure = new_figure(width, 3.3 * len(rows) + (0.0 if free[-1] else 0.6))
    grid = figure.add_gridspec(len(rows), whole)
    for number, row in enumerate(rows):
        axes: list[Axes] = []
        for cell in row:
            at = sum(other.width for other in row[:len(axes)])
            stretch = free[number] if cell is row[-1] and number < len(rows) - 1 else 0
            ax = figure.add_subplot(grid[number, at:at + cell.width + stretch], sharey=axes[0] if axes else None)
            axes.append(ax)
            (_draw_losses if loss else _draw_accuracies)(ax, cell)
            ax.set_title(cell.title, fontsize=9)
            ax.set_xlabel(results["xlabel"])
            ax.tick_params(labelleft=len(axes) == 1)
            plain_axes(ax, "both")
        axes[0].set_ylabel("training loss, nats" if loss else "test accuracy, %")
        (_scale_losses if loss else _scale_accuracies)(axes)
    names = _present(row for panel in panels for row in panel["rows"])
    handles = [axes[0].plot([], [], marker=MARKS[name], linestyle=DASHES[name], color=COLOURS[name], label=name)[0]
               for name in names]
    said = "means over seeds\n" + ("bands" if loss else "bars") + ": 95 % intervals"
    if not loss:
        said += "\nscale: logarithm of the error"
    style: dict[str, Any] = {"handles": handles, "frameon": False, "fontsize": 9, "title_fontsize": 9}
    if free[-1]:
        place = figure.add_subplot(grid[-1, whole - free[-1]:])
        place.axis("off")
        place.legend(loc="center", title=said, **style)
    else:
        figure.legend(loc="outside lower center", ncols=min(len(names), 6), title=said.replace("\n", "; "), **style)
    save_figure(figure, path)


def arranged(cells: Sequence[SchemeCell]) -> list[list[SchemeCell]]:
    """Arrange the cells in rows. A row holds cells of one data set; a cell that does not fit begins a new row."""
    rows: list[list[SchemeCell]] = []
    for cell in cells:
        fits = (rows and rows[-1][0].panel["experiment"] == cell.panel["experiment"]
                and sum(other.width for other in rows[-1]) + cell.width <= WHOLE_ROW)
        if fits:
            rows[-1].append(cell)
        else:
            rows.append([cell])
    return rows


def _present(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The schemes that occur in these rows, in the paper's order."""
    present = {row["scheme"] for row in rows}
    return [name for name in SCHEMES.built_in if name in present]


def _draw_losses(ax: Axes, cell: SchemeCell) -> None:
    curves = [curve for curve in cell.panel["curves"] if curve["mode"] == cell.mode]
    shaded: list[Any] = []  # schemes that trained the same models share one band
    for position, curve in enumerate(curves):
        name, x, mean = curve["scheme"], np.array(curve["x"]), np.array(curve["mean"])
        half = np.zeros(len(x)) if curve["half"] is None else np.array(curve["half"])
        if curve["mean"] not in shaded:
            ax.fill_between(x, mean - half, mean + half, color=COLOURS[name], alpha=0.13, linewidth=0)
            shaded.append(curve["mean"])
        ax.plot(x, mean, linestyle=DASHES[name], color=COLOURS[name], marker=MARKS[name], markersize=5,
                markevery=(position, 8), linewidth=1.4)
    ax.set_xlim(left=0)


def _scale_losses(axes: Sequence[Axes]) -> None:
    """Set a logarithmic axis around the means. Intervals of few seeds may leave the picture, because they would squeeze
    the means."""
    means = np.concatenate([np.array(line.get_ydata(), dtype=float) for ax in axes for line in ax.get_lines()])
    low, high = float(means.min()), float(means.max())
    axes[0].set_yscale("log")
    close = high < 4.0 * low
    ticks = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0) if close else (1.0, 2.0, 3.0, 5.0)
    log_ticks(axes[0].yaxis, ticks)
    axes[0].set_ylim(0.9 * low, 1.15 * high)


def _draw_accuracies(ax: Axes, cell: SchemeCell) -> None:
    """Draw the schemes' means at each value: on its tick, or next to it if marks would cover each other."""
    names, values = _present(cell.rows), cell.values
    means = {(name, value): interval(accuracies) for name in names for value in values if (accuracies := [
        100.0 * row["accuracy"] for row in cell.rows
        if row["scheme"] == name and row["value"] == value and row["accuracy"] is not None])}
    ends = {key: (mean.mean - (mean.half or 0.0), mean.mean + (mean.half or 0.0)) for key, mean in means.items()}
    touch = TOUCH * (max(high for _, high in ends.values()) - min(low for low, _ in ends.values()))
    places: dict[tuple[str, float], float] = {}
    for place, value in enumerate(values):
        keys = [(name, value) for name in names if (name, value) in means]
        shifts = side_by_side([(ends[key][0] - touch, ends[key][1] + touch) for key in keys])
        step = SHIFT if len(values) > 1 else 2.0 * SHIFT
        places |= {key: place + step * shift for key, shift in zip(keys, shifts, strict=True)}
    for name in names:
        keys = [(name, value) for value in values if (name, value) in means]
        ax.errorbar([places[key] for key in keys], [means[key].mean for key in keys],
                    [means[key].half or 0.0 for key in keys], color=COLOURS[name], marker=MARKS[name], markersize=5,
                    linestyle=DASHES[name], linewidth=1.2, elinewidth=1.0, capsize=2.0)
    ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    ax.set_xlim(-0.5, len(values) - 0.5)


def _scale_accuracies(axes: Sequence[Axes]) -> None:
    """Scale accuracies by the logarithm of the error, so that schemes of both modes can be distinguished."""
    least = 100.0 - max(float(ax.dataLim.y1) for ax in axes)
    most = 100.0 - min(float(ax.dataLim.y0) for ax in axes)
    least, most = max(least, 0.01), min(most, 100.0)
    axes[0].set_yscale("function", functions=(lambda accuracy: -np.log(np.maximum(100.0 - accuracy, 1e-3)),
                                              lambda position: 100.0 - np.exp(-position)))
    margin = (most / least) ** 0.06
    axes[0].set_ylim(100.0 - most * margin, 100.0 - least / margin)
    axes[0].set_yticks(ticks := error_ticks(least / margin, most * margin), [f"{tick:g}" for tick in ticks])
    axes[0].minorticks_off()


def error_ticks(least: float, most: float) -> list[float]:
    """Accuracies in per cent, for ticks that are well apart on the scale of the logarithm of the error; round numbers
    are preferred."""
    kept: list[float] = []
    for step in (10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1):
        if len(kept) > 3:
            break
        for error in np.arange(np.ceil(least / step) * step, most, step):
            if all(abs(np.log(error / (100.0 - other))) > np.log(most / least) / 9.0 for other in kept):
                kept.append(round(100.0 - float(error), 1))
    return sorted(kept)
