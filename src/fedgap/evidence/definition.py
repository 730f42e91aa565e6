"""A figure's definition: ``NAME/config.yaml`` as checked values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from fedgap.errors import InputError
from fedgap.planning import PAPER_SCHEMES

_IN_THE_WHEEL = Path(__file__).with_name("figures")
FOLDER = _IN_THE_WHEEL if _IN_THE_WHEEL.is_dir() else Path(__file__).parents[3] / "experiments"
"""One folder per figure with its definition and results: ``experiments`` in a clone, copied into the wheel by
``setup.py``."""
FIGURES = ("table1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "heterogeneity", "rounds", "measured",
           "learner")
"""What ``fedgap reproduce`` can make."""
PRESETS = ("quick", "paper")
KINDS = ("partitions", "loss", "accuracy", "learners")
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
    """The nominal budget in J or s; ``values`` are multiples of it."""
    vary: str = "delay_s"
    values: tuple[float, ...] = (1.0,)
    status: str = ""
    """Empty if the results exist; otherwise what is missing, in words."""
    turn: int = 0
    """Order in which its runs are trained on another machine: lower first."""

    def points(self) -> Iterator[tuple[float, tuple[str, ...]]]:
        """Yield every varied value (a budget in its unit, σ, or rounds) with the overrides that set it."""
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
    """The panels of each preset."""
    folder: Path = Path()


def figure_names(folder: Path = FOLDER) -> list[str]:
    """Return the names of the figures that have a definition, in the paper's order."""
    return sorted(path.parent.name for path in folder.glob("*/config.yaml"))


def load_figure(name: str, folder: Path = FOLDER) -> Figure:
    """Read and check one figure's definition."""
    path = folder / name / "config.yaml"
    if not path.is_file():
        raise InputError(f"{name}: is not a figure; there are {', '.join(figure_names(folder))}")
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
