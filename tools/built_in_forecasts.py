"""Fit the built-in forecasts to the drawn plans of ``fedgap reproduce forecast`` and write them into the package.

    python -m tools.built_in_forecasts

It reads ``experiments/forecast/results.json`` and rewrites the table in ``src/fedgap/theory/built_in_forecasts.py``.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgap.evidence.forecast_results import fitted

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "forecast" / "results.json"
MODULE = ROOT / "src" / "fedgap" / "theory" / "built_in_forecasts.py"
FLEETS = {"": ("the paper's fleet",), "-city": ("city",), "-any-fleet": ("the paper's fleet", "city")}
"""The endings of the forecasts' names, and the fleets whose runs each is fitted to."""
TASKS = {"lenet5-mnist": ("LeNet-5", "MNIST"), "lenet5-fashion-mnist": ("LeNet-5", "Fashion-MNIST"),
         "resnet20-cifar10": ("ResNet-20", "CIFAR-10")}
"""The beginnings of the forecasts' names, with the model and the data set."""
NAMES = {task + ending: (*TASKS[task], fleets) for task in TASKS for ending, fleets in FLEETS.items()
         if ending != "-any-fleet" or task == "lenet5-mnist"}
"""Each forecast's model, data set and fleets, by its name."""
_WIDTH = 120


def forecast(results: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the section of a built-in forecast, fitted to the rows of ``results``."""
    model, data, fleets = NAMES[name]
    panels = [panel for panel in results["panels"] for fleet in fleets
              if panel["title"].startswith(f"{data}, {fleet.removeprefix('the ')}") and panel.get("rows")]
    rows = [row | {"plan": (place, row["plan"])} for place, panel in enumerate(panels) for row in panel["rows"]]
    origin = f"built in: {model} on {data}, {' and '.join(fleets)}, {len(panels)} cells"
    return fitted(_numbered(rows), origin=origin).to_dict()


def _numbered(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with whole numbers for their plans."""
    numbers = {plan: number for number, plan in enumerate(dict.fromkeys(row["plan"] for row in rows))}
    return [{**row, "plan": numbers[row["plan"]]} for row in rows]


def table(made: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the forecasts as the text of a Python dictionary."""
    lines = ["_FITTED: Mapping[str, Mapping[str, Any]] = {"]
    for name, section in made.items():
        lines.append(f'    "{name}": {{')
        line = "       "
        for key, value in section.items():
            if key == "covariance":
                continue
            entry = f' "{key}": {_text(value)},'
            if len(line + entry) > _WIDTH or key in ("origin", "ranges"):
                lines.append(line)
                line = "       "
            line += entry
        lines += [line, '        "covariance": [']
        lines += [f"            {_text(row)}," for row in section["covariance"]]
        lines += ["        ],", "    },"]
    return "\n".join(part for line in [*lines, "}"] for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, _WIDTH, subsequent_indent=f"{indent} ", break_on_hyphens=False)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_text(one)}' for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Rewrite the table in the module."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    made = {name: forecast(results, name) for name in NAMES}
    source = MODULE.read_text(encoding="utf-8")
    text = re.sub(r"_FITTED: Mapping.*?\n\}", lambda _: table(made), source, count=1, flags=re.DOTALL)
    MODULE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
