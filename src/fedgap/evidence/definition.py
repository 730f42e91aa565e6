"""A figure's definition: ``NAME/config.yaml`` as checked values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedgap.errors import InputError
from fedgap.planning import PAPER_SCHEMES

if TYPE_CHECKING:
    from fedgap.config import Experiment

_IN_THE_WHEEL = Path(__file__).with_name("figures")
FOLDER = _IN_THE_WHEEL if _IN_THE_WHEEL.is_dir() else Path(__file__).parents[3] / "experiments"
"""One folder per figure with its definition and results: ``experiments`` in a clone, copied into the wheel by
``setup.py``."""
FIGURES = ("table1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "heterogeneity", "rounds", "measured",
           "learner", "forecast", "forecast_city", "panel", "structure", "drift")
"""What ``fedgap reproduce`` can make."""
PRESETS = ("quick", "paper")
KINDS = ("partitions", "loss", "accuracy", "learners", "forecast", "planning")
_VARIED = {"delay_s": "budget.delay_s={!r}", "energy_j": "budget.energy_j={!r}",
           "sigma": "partition.concentration={!r}", "rounds": "rounds={:.0f}"}
BUDGETS = "budgets"
"""What a panel of the kind ``planning`` varies: both budgets, as a share of the nominal ones."""


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
    budget: tuple[float, float] = (1.0, 1.0)
    """The nominal budgets in J and s, where both are varied."""
    reference: str = ""
    """In a figure of learners, the title of the panel that is compared with this one, seed by seed."""

    def points(self) -> Iterator[tuple[float, tuple[str, ...]]]:
        """Yield every varied value (a budget in its unit, σ, or rounds) with the overrides that set it."""
        for value in self.values:
            if self.vary == BUDGETS:
                energy_j, delay_s = (round(value * nominal, 6) for nominal in self.budget)
                yield value, (f"budget.energy_j={energy_j!r}", f"budget.delay_s={delay_s!r}")
                continue
            number = round(self.nominal * value, 6)
            yield number, (_VARIED[self.vary].format(number),)


@dataclass(frozen=True)
class Cell:
    """One task, fleet and σ, with the plans that are drawn at random for it."""

    title: str
    experiment: str
    """A preset or a file."""
    overrides: tuple[str, ...]
    sigma: float
    budgets: tuple[tuple[float, float], ...]
    """Pairs of J and s."""
    plans: int
    """How many are drawn."""
    repeats: tuple[int, int]
    """How many of the plans that a first guess likes best are trained with three seeds, and how many with two."""
    most_samples: float
    """No run processes more training samples."""
    turn: int = 0
    """As a panel's; the pilot of the cell has the turn after it."""

    def load(self, *overrides: str) -> Experiment:
        """Return the cell's experiment."""
        from fedgap.config import Experiment

        return Experiment.load(self.experiment, [*self.overrides, f"partition.concentration={self.sigma}", *overrides])


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
    cells: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    """In place of panels, the cells of each preset of a figure of the kind ``forecast``."""


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
        entries: dict[str, Any] = {preset: written["presets"][preset] for preset in PRESETS}
        head = (name, written["title"], written["kind"], written.get("xlabel", ""))
        if written["kind"] == "forecast":
            figure = Figure(*head, dict.fromkeys(PRESETS, ()), path.parent,
                            {preset: tuple(cell for entry in listed for cell in _cells(entry))
                             for preset, listed in entries.items()})
        elif written["kind"] == "planning":
            panels = {preset: tuple(panel for entry in listed for panel in _planning_panels(entry))
                      for preset, listed in entries.items()}
            figure = Figure(*head, panels, path.parent)
        else:
            panels = {preset: tuple(map(_panel, listed)) for preset, listed in entries.items()}
            figure = Figure(*head, panels, path.parent)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if figure.kind not in KINDS:
        raise InputError(f"{path}: kind: must be one of {', '.join(KINDS)}; got {figure.kind!r}")
    return figure


def _check_keys(entry: dict[str, Any], known: set[str]) -> None:
    if unknown := set(entry) - known:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r}; a panel has {', '.join(sorted(known))}")


def _cells(entry: dict[str, Any]) -> list[Cell]:
    """Return one cell for each σ of an entry."""
    _check_keys(entry, {f.name for f in fields(Cell)} - {"sigma"} | {"sigmas"})
    shared = {key: value for key, value in entry.items() if key != "sigmas"}
    shared["overrides"], shared["repeats"] = tuple(entry["overrides"]), tuple(entry["repeats"])
    shared["budgets"] = tuple((float(energy_j), float(delay_s)) for energy_j, delay_s in entry["budgets"])
    return [Cell(**shared | {"title": f"{entry['title']}, σ = {sigma:g}", "sigma": sigma})
            for sigma in entry["sigmas"]]


_PLANNING_KEYS = {"title", "experiment", "overrides", "sigmas", "budget", "turns", "seeds", "schemes", "later_schemes",
                  "paper_overrides", "paper_turn", "status"}
_PAPER_MODES = ("repaired", "as_printed")
_PARTS, _LATER = 10, 5
"""Turns that a share of the budgets has: one for each σ, and so many later one for each with ``later_schemes``."""


def _planning_panels(entry: dict[str, Any]) -> list[Panel]:
    """Return the panels of one task and fleet: for each σ and share of the budgets one with the practical learner and,
    where ``paper_turn`` says when they are trained, one with the paper's schemes in the paper's modes.

    ``turns``: pairs of a share and the first of its turns, in tens.
    """
    _check_keys(entry, _PLANNING_KEYS)
    panels = []
    for place, sigma in enumerate(entry["sigmas"]):
        shared = {"title": f"{entry['title']}, σ = {sigma:g}", "experiment": entry["experiment"],
                  "budget": tuple(entry["budget"]), "vary": BUDGETS, "seeds": entry["seeds"],
                  "status": entry.get("status", "")}
        overrides = [*entry["overrides"], f"partition.concentration={sigma}"]
        for share, tens in entry["turns"]:
            for key, turn in (("schemes", _PARTS * tens + place), ("later_schemes", _PARTS * tens + _LATER + place)):
                if key in entry:
                    panels.append(_panel(shared | {"overrides": overrides, "modes": ["practical"], "values": [share],
                                                   "schemes": entry[key], "turn": turn}))
            if "paper_turn" in entry:
                panels.append(_panel(shared | {
                    "overrides": [*overrides, *entry["paper_overrides"]], "modes": list(_PAPER_MODES),
                    "values": [share], "turn": _PARTS * (entry["paper_turn"] + tens) + place}))
    return panels


def _panel(entry: dict[str, Any]) -> Panel:
    _check_keys(entry, {f.name for f in fields(Panel)})
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if isinstance(seeds := lists.get("seeds"), str):
        first, last = (int(part) for part in seeds.split("-"))
        lists["seeds"] = tuple(range(first, last + 1))
    if lists.get("vary", "delay_s") not in (*_VARIED, BUDGETS):
        raise ValueError(f"vary: must be one of {', '.join(_VARIED)}")
    return Panel(**lists)
