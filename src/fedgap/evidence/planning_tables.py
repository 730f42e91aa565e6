"""The comparisons of the figure ``panel`` as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgap.evidence.equal_accuracy import AXES
from fedgap.evidence.planning_value import pooled_difference, spending
from fedgap.report.uncut_table import Sheet


def planning_tables(head: str, results: Mapping[str, Any]) -> list[Sheet | str]:
    """A table of the rivals over the tight cells, one of all cells, and sentences about regret and missing runs."""
    answer, panel = results["judged"], results["panels"][0]
    if not answer["cells"]:
        return [f"{head}: {panel['status'] or 'no cell has runs of forecast yet'}."]
    pooled = Sheet(f"{head}. Forecast minus rival over the tight cells, points (paired over seeds, Holm over rivals)",
                   "rival", "cells", "seeds", "difference", "verdict", "seconds to equal accuracy", "joules")
    for entry in answer["pooled"]:
        pooled.add_row(entry["rival"], str(entry["cells"]), str(entry["seeds"]),
                       pooled_difference(entry).signed(100), entry["verdict"],
                       *(spending(entry, axis) for axis in AXES))
    cells = Sheet(f"{head}. Cell by cell: accuracy in %, differences in points", "cell", "budgets", "forecast", "best",
                  "regret", "rivals", "not inferior by 0.3", "not shown against", left=("best",))
    for cell in answer["cells"]:
        mine = next(entry for entry in cell["rivals"] if entry["rival"] == "forecast")
        rivals = [entry for entry in cell["rivals"] if "difference" in entry]
        lost = [entry["rival"] for entry in rivals if not entry["not_inferior"]]
        cells.add_row(cell["cell"], f"× {cell['share']:g}", f"{100 * mine['accuracy']:.2f}", cell["best"],
                      f"{100 * cell['regret']:.2f}", str(len(rivals)),
                      str(len(rivals) - len(lost)), ", ".join(lost) or "–")
    said = [f"Mean regret over {name} cells ({value['cells']}): {100 * value['mean']:.2f} points."
            for name, value in answer["regret"].items()
            if name == "all" or value["cells"] < answer["regret"]["all"]["cells"]]
    if panel["missing"]:
        said.append(f"{panel['missing']} runs are not trained yet.")
    return [pooled, cells, *said]
