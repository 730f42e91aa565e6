"""Who has what, in the form of the paper's Fig. 3: the clients' label distributions and generalization statements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def draw_partitions(panels: Sequence[tuple[str, NDArray[np.int64], NDArray[np.float64] | None]], path: Path) -> None:
    """One panel a partition: its title, ``label_counts`` (N, classes) as stacked bars, φ_n (N,) as a line over them.

    The file's ending decides its format (.png, .pdf, .svg).
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(4.4 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, counts, phi) in zip(axes, panels, strict=True):
        clients, classes = np.arange(len(counts)), counts.shape[1]
        colours = colormaps["tab10" if classes <= 10 else "turbo"](np.arange(classes) / max(classes - 1, 9))
        base = np.zeros(len(counts))
        for z in range(classes):
            ax.bar(clients, counts[:, z], bottom=base, width=0.8, color=colours[z], label=str(z))
            base += counts[:, z]
        ax.set(title=title, xlabel="client", ylabel="training samples")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if phi is not None:
            line = ax.twinx()
            line.plot(clients, phi, "k.-", markersize=8, linewidth=1)
            line.set(ylabel="generalization statement φ", ylim=(0, 1.15 * float(np.max(phi))))
    if panels[0][1].shape[1] <= 20:
        figure.legend(*axes[0].get_legend_handles_labels(), title="class", loc="outside right upper", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
