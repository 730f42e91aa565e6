"""Who has what, in the form of the paper's Fig. 3: the clients' label distributions and generalization statements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COLOURS = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#DDDDDD")
"""Tol's muted colours, which colour-blind people can tell apart; more classes than these go from dark to light."""


def draw_partitions(panels: Sequence[tuple[str, NDArray[np.int64], NDArray[np.float64] | None]], path: Path) -> None:
    """One panel a partition: its title, ``label_counts`` (N, classes) as stacked bars, φ_n (N,) as a line over them.

    The file's ending decides its format (.png, .pdf, .svg).
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patheffects import Normal, Stroke
    from matplotlib.ticker import MaxNLocator

    columns = len(panels) if len(panels) <= 3 else 2  # four in a row are too small to read on a printed page
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * rows + 0.2), layout="constrained")
    FigureCanvasAgg(figure)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
