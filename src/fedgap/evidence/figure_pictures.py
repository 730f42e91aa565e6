"""Draw figures as pictures: each kind of figure has a function that draws it from its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.evidence.forecast_picture import draw_forecast
from fedgap.evidence.learner_picture import draw_learners
from fedgap.evidence.planning_picture import draw_planning
from fedgap.evidence.scheme_picture import MODES, draw_schemes


def draw_figure(results: Mapping[str, Any], path: Path) -> None:
    """Draw a figure's results into ``path``. Nothing is drawn for a table, or for a figure without any run."""
    if results["kind"] == "partitions":
        _draw_partitions(results, path)
    elif any(panel.get("rows") for panel in results.get("panels", [])):
        others = {"learners": draw_learners, "forecast": draw_forecast, "planning": draw_planning}
        others.get(results["kind"], draw_schemes)(results, path)


def _draw_partitions(results: Mapping[str, Any], path: Path) -> None:
    """Draw one picture per mode: ``fig3.png`` for repaired, ``fig3-as_printed.png`` for as printed."""
    from fedgap.running.partition_picture import PicturedPartition, draw_partitions

    rows = [row for row in results["rows"] if row["label_counts"] is not None]
    for mode in MODES:
        panels = [PicturedPartition(f"{results['panel']}, σ = {row['sigma']:g}, seed {row['seed']}",
                                    np.array(row["label_counts"]), np.array(row["phi"][mode])) for row in rows]
        draw_partitions(panels, path if mode == "repaired" else path.with_stem(f"{path.stem}-{mode}"))
