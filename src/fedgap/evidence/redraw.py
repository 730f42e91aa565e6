"""Draw figures again from existing results, without plans, data, training or torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgap.evidence.definition import FOLDER
from fedgap.evidence.figure_pictures import draw_figure


def redraw(names: Sequence[str], out: Path) -> dict[str, dict[str, Any]]:
    """Draw the figures into ``out/FIGURE`` and return their results.

    They are drawn from ``out/FIGURE/results.json`` if an earlier ``fedgap reproduce`` left one there, otherwise from
    the results of the preset ``paper`` that come with fedgap, which are copied there.
    """
    drawn = {}
    for name in names:
        path = out / name / "results.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(FOLDER / name / "results.json", path)
        drawn[name] = json.loads(path.read_text(encoding="utf-8"))
        draw_figure(drawn[name], path.with_name(f"{name}.png"))
    return drawn
