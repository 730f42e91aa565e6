"""Helpers for figures: create one, style its axes, keep overlapping markers apart, and save it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedgap.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
PAGE_WIDTH = 9.0
"""The widest figure, in inches. The documentation shows figures about 750 pixels wide, so that text of 10 points in a
figure of this width is 11 pixels high."""


def check_picture(path: str | Path | None, key: str = "path") -> None:
    """Raise an error, before anything is computed, if ``path`` does not have the ending of a picture format."""
    if path is not None and Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"{key}: must end in {', '.join(FORMATS)}; got {str(path)!r}")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches. It opens no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(ax: Axes, grid: Literal["x", "y", "both"] = "x") -> None:
    """Give the axes a light grid behind the data, and a frame at the left and the bottom only."""
    ax.grid(axis=grid, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def log_ticks(axis: Axis, marks: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Put the ticks of a logarithmic axis at ``marks`` times the powers of ten, and write them as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=marks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def side_by_side(intervals: Sequence[tuple[float, float]]) -> list[float]:
    """Return how far to shift each marker, in marker widths, so that no two markers overlap.

    ``intervals`` has the low and the high end of each marker. Markers that overlap, directly or through others between
    them, form a group: they are placed side by side around the group's centre. A marker that overlaps no other has
    the shift 0.

    >>> side_by_side([(0.0, 2.0), (1.0, 3.0), (8.0, 9.0)])
    [-0.5, 0.5, 0.0]
    """
    shifts = [0.0] * len(intervals)
    groups: list[list[int]] = []
    reach = float("-inf")
    for n in sorted(range(len(intervals)), key=lambda n: intervals[n]):
        if intervals[n][0] > reach:
            groups.append([])
        groups[-1].append(n)
        reach = max(reach, intervals[n][1])
    for group in groups:
        lanes: list[list[int]] = []
        for n in sorted(group):  # in the order of ``intervals``, so that the same series has the same place everywhere
            low, high = intervals[n]
            free = (lane for lane in lanes if all(intervals[m][1] < low or high < intervals[m][0] for m in lane))
            lane = next(free, None)
            if lane is None:
                lanes.append([n])
            else:
                lane.append(n)
        for position, lane in enumerate(lanes):
            for n in lane:
                shifts[n] = position - (len(lanes) - 1) / 2
    return shifts


def save_figure(figure: Figure, path: str | Path | None) -> Figure:
    """Save a figure unless ``path`` is None, and return it. The file's ending decides its format."""
    if path is not None:
        check_picture(path)
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Without the name and version of matplotlib, equal figures give equal files.
            figure.savefig(path, dpi=150, metadata={"Software": None} if Path(path).suffix == ".png" else None)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    return figure
