"""A figure's definition: ``experiments/NAME/config.yaml`` as checked values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from fedgap.errors import InputError
from fedgap.planning import PAPER_SCHEMES

FOLDER = Path(__file__).parents[3] / "experiments"
"""Where a clone of the repository keeps the figures."""
PRESETS = ("quick", "paper")
KINDS = ("partitions", "loss", "accuracy")
_VARIED = {"delay_s": "budget.delay_s={!r}", "energy_j": "budget.energy_j={!r}",
           "sigma": "partition.concentration={!r}", "rounds": "rounds={:.0f}"}


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: which runs it needs, and how it is titled."""

    title: str
    experiment: str
    """A preset or a file."""
    modes: tuple[str, ...] = ("repaired", "as_printed")
    schemes: tuple[str, ...] = tuple(PAPER_SCHEMES)
    seeds: tuple[int, ...] = (0,)
    overrides: tuple[str, ...] = ()
    nominal: float = 1.0
    """What ``values`` are multiples of: the nominal budget, in J or s."""
    vary: str = "delay_s"
    values: tuple[float, ...] = (1.0,)
    status: str = ""
    """"" where the results are there; otherwise what is missing, in words."""
    turn: int = 0
    """When its runs are trained on another machine: the lower, the earlier."""

    def points(self) -> Iterator[tuple[float, tuple[str, ...]]]:
        """Each varied value (a budget in its unit, σ, or rounds) with the overrides that set it."""
        for value in self.values:
            number = round(self.nominal * value, 6)
            yield number, (_VARIED[self.vary].format(number),)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper."""

    name: str
    title: str
    kind: str
    xlabel: str
    panels: dict[str, tuple[Panel, ...]] = field(default_factory=dict)
    """By preset."""
    folder: Path = Path()


def figure_names(folder: Path = FOLDER) -> list[str]:
    """The figures that have a definition, in the paper's order."""
    return sorted(path.parent.name for path in folder.glob("*/config.yaml"))


def load_figure(name: str, folder: Path = FOLDER) -> Figure:
    """Reads and checks one figure's definition."""
    path = folder / name / "config.yaml"
    if not path.is_file():
        known = ", ".join(figure_names(folder)) or f"nothing in {folder}; run this in a clone of the repository"
        raise InputError(f"{name}: is no figure here; there are {known}")
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        panels = {preset: tuple(_panel(entry) for entry in written["presets"][preset]) for preset in PRESETS}
        figure = Figure(name, written["title"], written["kind"], written.get("xlabel", ""), panels, path.parent)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if figure.kind not in KINDS:
        raise InputError(f"{path}: kind: must be one of {', '.join(KINDS)}; got {figure.kind!r}")
    return figure


def _panel(entry: dict[str, Any]) -> Panel:
    known = {f.name for f in fields(Panel)}
    if unknown := set(entry) - known:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r}; a panel has {', '.join(sorted(known))}")
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if isinstance(seeds := lists.get("seeds"), str):
        first, last = (int(part) for part in seeds.split("-"))
        lists["seeds"] = tuple(range(first, last + 1))
    if lists.get("vary", "delay_s") not in _VARIED:
        raise ValueError(f"vary: must be one of {', '.join(_VARIED)}")
    return Panel(**lists)
