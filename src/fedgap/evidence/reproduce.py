"""From a figure's definition to its results and picture: plan what has no plan, train what has no record, write."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgap.errors import FedgapError
from fedgap.evidence import partitions, table1
from fedgap.evidence.cases import Case, Planned, cases, make_plans, open_data, plan_case
from fedgap.evidence.definition import FOLDER, Figure, Panel, load_figure
from fedgap.evidence.figure_pictures import draw_figure
from fedgap.evidence.results import panel_results, provenance
from fedgap.evidence.store import Store
from fedgap.evidence.training import Record
from fedgap.evidence.training_workers import train_all
from fedgap.learning.data import Dataset
from fedgap.running.job import Job

Steps = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""(what, how many) → a progress bar, advanced by a call."""


def no_bar(what: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    """Progress that nobody sees."""
    return nullcontext(lambda: None)


@dataclass
class Workshop:
    """Where things are kept: ``plans/`` and ``runs.jsonl`` in ``out``, results and picture in ``out/FIGURE/``."""

    out: Path
    preset: str
    data: Path | None = None
    """The folder of the data set's files, where it is not embedded."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    bar: Steps = no_bar
    definitions: Path = FOLDER
    train: bool = True
    """Whether runs without a record are trained; otherwise they are left out, and counted as ``missing``."""

    def __post_init__(self) -> None:
        self.store = Store(self.out / "runs.jsonl")
        self._datasets: dict[str, Dataset] = {}

    def dataset(self, experiment: str) -> Dataset:
        """The preset experiment's data set, read once."""
        from fedgap.config import Experiment

        chosen = Experiment.load(experiment)
        if chosen.data.name not in self._datasets:
            self._datasets[chosen.data.name] = open_data(chosen, self.data)
        return self._datasets[chosen.data.name]


def reproduce(names: Sequence[str], shop: Workshop) -> dict[str, dict[str, Any]]:
    """Each figure's results, which are also written to ``out/FIGURE/results.json`` with the picture beside.

    Plans and runs that are there already are kept, and a run that several figures need is trained once, so that the
    same call goes on where an earlier one stopped.
    """
    found: dict[str, dict[str, Any]] = {}
    figures = {name: load_figure(name, shop.definitions) for name in names if name != "table1"}
    trained = [f for f in figures.values() if f.kind != "partitions"]
    planned = plan_panels([panel for f in trained for panel in open_panels(f, shop)], shop)
    if shop.train:
        train_missing(planned, shop)
    for name in names:
        if name == "table1":
            found[name] = table1.results()
        elif figures[name].kind == "partitions":
            found[name] = partitions.results(figures[name], shop.preset, shop.dataset)
        else:
            found[name] = figure_results(figures[name], planned, shop)
        write(found[name], shop.out / name / "results.json")
        draw_figure(found[name], shop.out / name / f"{name}.png")
    return found


def open_panels(figure: Figure, shop: Workshop) -> list[Panel]:
    """The preset's panels that are to be run."""
    return [panel for panel in figure.panels[shop.preset] if not panel.status]


def plan_panels(panels: Sequence[Panel], shop: Workshop) -> dict[Case, Planned | str]:
    """Every distinct case's plan, or why it has none."""
    todo = list(dict.fromkeys(case for panel in panels for case in cases(panel)))
    plans = shop.out / "plans"
    with shop.bar("planning", len(todo)) as advance:
        make_plans(todo, plans, workers=shop.workers, folder=shop.data, done=advance)
    found: dict[Case, Planned | str] = {}
    for case in todo:
        try:
            found[case] = plan_case(case, shop.dataset(case.experiment), plans)
        except FedgapError as error:
            found[case] = str(error)
    return found


def train_missing(planned: dict[Case, Planned | str], shop: Workshop) -> None:
    """Trains each distinct run that has no record yet."""
    groups: dict[str, dict[str, Any]] = {}
    for case, each in planned.items():
        if isinstance(each, Planned) and each.job is not None and each.key not in shop.store:
            groups.setdefault(case.experiment, {})[each.key] = each.job
    with shop.bar("training", sum(len(jobs) for jobs in groups.values())) as advance:
        for experiment, jobs in groups.items():
            for _ in train_new(jobs, experiment, shop):
                advance()


def train_new(jobs: Mapping[str, Job], experiment: str, shop: Workshop) -> Iterator[Record]:
    """Trains jobs on the preset experiment's data; each record is stored as it comes."""
    for record in train_all(jobs, shop.dataset(experiment), workers=shop.workers):
        shop.store.add([record])
        yield record


def figure_results(figure: Figure, planned: dict[Case, Planned | str], shop: Workshop) -> dict[str, Any]:
    """A figure's results: a panel with rows for each that was run, a panel with a status for each that was not."""
    panels: list[dict[str, Any]] = []
    keys: list[str] = []
    for panel in figure.panels[shop.preset]:
        if panel.status:
            panels.append({"title": panel.title, "experiment": panel.experiment, "status": panel.status})
            continue
        members = [planned[case] for case in cases(panel)]
        there = [each for each in members if isinstance(each, Planned)]
        missing = {each.key: each.case.mode for each in there if each.key and each.key not in shop.store}
        there = [each for each in there if each.key not in missing]
        panels.append(panel_results(figure, panel, there, shop.store))
        if missing:
            panels[-1]["missing"] = len(missing)
            panels[-1]["missing_by_mode"] = dict(Counter(missing.values()))
        reasons = [each for each in members if isinstance(each, str)]
        if reasons:
            panels[-1]["without_plan"] = {"cases": len(reasons), "reasons": sorted(set(reasons))[:5]}
        keys += [each.key for each in there if each.key]
    return {"figure": figure.name, "title": figure.title, "kind": figure.kind, "xlabel": figure.xlabel,
            "preset": shop.preset, "panels": panels, "provenance": provenance(keys, shop.store)}


def write(results: dict[str, Any], path: Path) -> None:
    """Results as JSON, a row a line, so that changes can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    for innermost in (r"\[[^{}\[\]]*\]", r"\{[^{}]*\}"):
        text = re.sub(innermost, lambda match: re.sub(r"\s*\n\s*", " ", match.group()), text)
    path.write_text(text + "\n", encoding="utf-8")

