"""The definition of a figure: reads and checks ``NAME/config.yaml``.

A figure has panels. A panel names an experiment, one varied quantity and the modes, schemes and seeds to run. A figure
of the kind ``forecast`` has cells instead: a task, a fleet and a σ, for which plans are drawn at random. A turn is the
order in which runs are trained on another machine."""

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
"""The figures and tables that ``fedgap reproduce`` can make."""
PRESETS = ("quick", "paper")
KINDS = ("partitions", "loss", "accuracy", "learners", "forecast", "planning")
_VARIED = {"delay_s": "budget.delay_s={!r}", "energy_j": "budget.energy_j={!r}",
           "sigma": "partition.concentration={!r}", "rounds": "rounds={:.0f}"}
BUDGETS = "budgets"
"""The varied quantity of panels of the kind ``planning``: both budgets, as a share of the nominal ones."""


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: the runs that it needs, and its title."""

    title: str
    experiment: str
    """The name of a preset, or a file."""
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
    """Position in the order in which runs are trained on another machine; lower numbers first."""
    budget: tuple[float, float] = (1.0, 1.0)
    """The nominal budgets in J and s, if both are varied."""
    reference: str = ""
    """In a figure of learners, the title of the panel with which this one is compared seed by seed."""

    def points(self) -> Iterator[tuple[float, tuple[str, ...]]]:
        """Yield each varied value (a budget in its unit, σ, or the number of rounds) with the overrides that set it."""
        for value in self.values:
            if self.vary == BUDGETS:
                energy_j, delay_s = (round(value * nominal, 6) for nominal in self.budget)
                yield value, (f"budget.energy_j={energy_j!r}", f"budget.delay_s={delay_s!r}")
                continue
            number = round(self.nominal * value, 6)
            yield number, (_VARIED[self.vary].format(number),)


@dataclass(frozen=True)
class Cell:
    """One task, fleet and σ, for which plans are drawn at random."""

    title: str
    experiment: str
    """The name of a preset, or a file."""
    overrides: tuple[str, ...]
    sigma: float
    budgets: tuple[tuple[float, float], ...]
    """Pairs of budgets in J and s, from which plans draw one."""
    plans: int
    """Number of plans that are drawn."""
    repeats: tuple[int, int]
    """Of the plans that a rough forecast ranks highest: how many are trained with three seeds, and how many of the next
    ones with two."""
    most_samples: float
    """Maximum number of training samples that a run processes."""
    turn: int = 0
    """Position in the order of training, as in a panel; the cell's pilot is trained in the next turn."""
    take_turns: bool = False
    """Whether the clients of most plans take turns, in groups, instead of taking part in all rounds."""
    first_seed: int = 0
    """The plans are trained with this seed and the next one or two."""
    pilot: bool = True
    """Whether a pilot is trained as well, and how well it forecasts is judged."""

    def load(self, *overrides: str) -> Experiment:
        """The cell's experiment, with further overrides."""
        from fedgap.config import Experiment

        return Experiment.load(self.experiment, [*self.overrides, f"partition.concentration={self.sigma}", *overrides])


@dataclass(frozen=True)
class Figure:
    """A figure (or table) of the paper or of fedgap's own evidence."""

    name: str
    title: str
    kind: str
    xlabel: str
    panels: dict[str, tuple[Panel, ...]] = field(default_factory=dict)
    """The panels of each preset."""
    folder: Path = Path()
    cells: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    """For a figure of the kind ``forecast``: the cells of each preset, in place of panels."""


def figure_names(folder: Path = FOLDER) -> list[str]:
    """The names of all figures that have a definition, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/config.yaml"))


def load_figure(name: str, folder: Path = FOLDER) -> Figure:
    """Read and check the definition of a figure."""
    path = folder / name / "config.yaml"
    if not path.is_file():
        raise InputError(f"{name}: must be one of the figures {', '.join(figure_names(folder))}")
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
    """One cell for each σ of an entry."""
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
"""Number of turns that are reserved for one share of the budgets, and the offset of those with ``later_schemes``."""


def _planning_panels(entry: dict[str, Any]) -> list[Panel]:
    """The panels of one task and fleet: for each σ and share of the budgets one with the practical learner, and one
    with the paper's schemes in the paper's modes if ``paper_turn`` is given.

    ``turns`` has pairs of a share of the budgets and the first of its turns, divided by ten."""
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
