"""Draw the clients' label distributions and generalization statements, as in the paper's Fig. 3."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgap.report.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#DDDDDD")
"""Tol's muted colours, which colour-blind people can tell apart; more classes than these go from dark to light."""


def draw_partitions(
    panels: Sequence[tuple[str, NDArray[np.int64], NDArray[np.float64] | None]], path: str | Path | None = None
) -> Figure:
    """One panel per partition: its title, ``label_counts`` (N, classes) as stacked bars, φ_n (N,) as a line over them.

    Saved where a path is given; the file's ending decides its format (.png, .pdf, .svg).
    """
    from matplotlib import colormaps
    from matplotlib.patheffects import Normal, Stroke
    from matplotlib.ticker import MaxNLocator

    columns = len(panels) if len(panels) <= 3 else 2  # four in a row are too small to read on a printed page
    rows = -(-len(panels) // columns)
    figure = new_figure(4.4 * columns, 3.4 * rows + 0.2)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(panels):]:
        ax.set_visible(False)
    for ax, (title, counts, phi) in zip(axes, panels, strict=False):
        clients, classes = np.arange(len(counts)), counts.shape[1]
        colours = COLOURS if classes <= len(COLOURS) else colormaps["cividis"](np.linspace(0.0, 1.0, classes))
        base = np.zeros(len(counts))
        for z in range(classes):
            ax.bar(clients, counts[:, z], bottom=base, width=0.8, color=colours[z], edgecolor="white", linewidth=0.4,
                   label=str(z))
            base += counts[:, z]
        ax.set(title=title, xlabel="client", ylabel="training samples")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if phi is not None:
            line = ax.twinx()
            line.plot(clients, phi, "k.-", markersize=8, linewidth=1.2,
                      path_effects=[Stroke(linewidth=3.5, foreground="white"), Normal()])
            line.set(ylabel="generalization statement φ", ylim=(0, 1.15 * float(np.max(phi))))
    if panels[0][1].shape[1] <= 20:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], title="class", loc="outside right upper", fontsize=8)
    return save_figure(figure, path)
