"""Pictures: an empty figure, and where it may be saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedgap.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def check_picture(path: str | Path | None, key: str = "path") -> None:
    """Say before anything is computed that a picture cannot be drawn there."""
    if path is not None and Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"{key}: must end in {', '.join(FORMATS)}; got {str(path)!r}")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that opens no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path | None) -> Figure:
    """Save a figure where a path is given; the file's ending decides its format."""
    if path is not None:
        check_picture(path)
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Without the name and version of matplotlib, equal figures give equal files.
            figure.savefig(path, dpi=150, metadata={"Software": None} if Path(path).suffix == ".png" else None)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    return figure
