"""Draw the clients' label distributions and generalization statements, as in the paper's Fig. 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgap.report.figures import PAGE_WIDTH, log_ticks, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#DDDDDD")
"""Tol's muted colours, which colour-blind people can tell apart. With more classes, colours go from dark to light."""
MOST_CLASSES = 20
"""Maximum number of classes in a legend."""
LETTERS_IN_A_ROW = 45
"""Names that have more letters in total are written vertically."""
MOST_NAMES = 24
"""Maximum number of clients whose names are shown; with more, only some positions are marked."""


@dataclass(frozen=True, eq=False)
class PicturedPartition:
    """One partition for the picture."""

    title: str
    label_counts: NDArray[np.int64]
    """Samples of each client and class, shape (N, classes)."""
    phi: NDArray[np.float64] | None = None
    """φ_n: the clients' generalization statements, shape (N,); by default they are not drawn."""
    names: Sequence[str] = ()
    """The clients' names; if empty, their positions are shown."""


def draw_partitions(partitions: Sequence[PicturedPartition], path: str | Path | None = None) -> Figure:
    """Draw one panel per partition: label counts as stacked bars, φ_n as a line over them.

    Saved if ``path`` is given; the ending of the file decides its format (.png, .pdf, .svg)."""
    columns = min(2, len(partitions))
    rows = -(-len(partitions) // columns)
    classes = partitions[0].label_counts.shape[1]
    figure = new_figure(PAGE_WIDTH if columns > 1 else 5.6, 3.3 * rows + 0.2)
    grid = figure.add_gridspec(rows, columns)
    axes: list[Axes] = []
    for position, partition in enumerate(partitions):
        row, column = divmod(position, columns)
        last_alone = column == 0 and position == len(partitions) - 1
        place = grid[row, :] if last_alone else grid[row, column]
        axes.append(figure.add_subplot(place, sharey=axes[row * columns] if column else None))
        _draw_partition(axes[-1], partition, classes)
        axes[-1].tick_params(labelleft=column == 0)
        if column == 0:
            axes[-1].set_ylabel("training samples")
    _draw_statements(axes, partitions, columns)
    if classes <= MOST_CLASSES:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], title="class", loc="outside right upper", fontsize=8)
    return save_figure(figure, path)


def _draw_partition(ax: Axes, partition: PicturedPartition, classes: int) -> None:
    """Draw the stacked bars of one partition."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    counts = partition.label_counts
    clients = np.arange(len(counts))
    colours = COLOURS if classes <= len(COLOURS) else colormaps["cividis"](np.linspace(0.0, 1.0, classes))
    base = np.zeros(len(counts))
    for label in range(classes):
        ax.bar(clients, counts[:, label], bottom=base, width=0.8, color=colours[label], edgecolor="white",
               linewidth=0.4, label=str(label))
        base += counts[:, label]
    ax.set_title(partition.title, fontsize=10)
    if partition.names and len(counts) <= MOST_NAMES:
        long = max(map(len, partition.names)) * len(counts) > LETTERS_IN_A_ROW
        ax.set_xticks(clients, partition.names, rotation=90 if long else 0, fontsize=8)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("client")


def _draw_statements(axes: Sequence[Axes], partitions: Sequence[PicturedPartition], columns: int) -> None:
    """Draw φ as lines over the bars, all on the same scale: logarithmic if the values span more than a decade."""
    from matplotlib.patheffects import Normal, Stroke

    known = {n: partition.phi for n, partition in enumerate(partitions) if partition.phi is not None}
    if not known:
        return
    low, high = (float(end([end(phi) for phi in known.values()])) for end in (np.min, np.max))
    for n, phi in known.items():
        line = axes[n].twinx()
        line.plot(np.arange(len(phi)), phi, "k.-", markersize=8, linewidth=1.2,
                  path_effects=[Stroke(linewidth=3.5, foreground="white"), Normal()])
        if low > 0.0 and high > 10.0 * low:
            line.set(yscale="log", ylim=(low / 1.5, high * 1.5))
            log_ticks(line.yaxis)
        else:
            line.set_ylim(0, 1.15 * high)
        last = n % columns == columns - 1 or n + 1 not in known
        line.tick_params(which="both", labelright=last)
        if last:
            line.set_ylabel("generalization statement φ")
