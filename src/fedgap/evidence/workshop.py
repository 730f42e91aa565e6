"""Settings and folders for ``fedgap reproduce``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fedgap.evidence.cases import open_data_of
from fedgap.evidence.definition import FOLDER
from fedgap.evidence.store import Store
from fedgap.learning.data import Dataset

Steps = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""A function of a title and a number of steps that returns a progress bar; calling the bar advances it by one step."""


def no_bar(what: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    """A progress bar that shows nothing."""
    return nullcontext(lambda: None)


@dataclass
class Workshop:
    """Settings and folders of ``fedgap reproduce``.

    ``out`` has ``plans/`` and ``runs.jsonl``; the results and the picture of a figure are in ``out/FIGURE/``."""

    out: Path
    preset: str
    data: Path | None = None
    """Folder with the files of the data set; None for the embedded one."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    bar: Steps = no_bar
    definitions: Path = FOLDER
    train: bool = True
    """Whether runs that have no record yet are trained; otherwise they are left out and counted as ``missing``."""

    def __post_init__(self) -> None:
        self.store = Store(self.out / "runs.jsonl")

    def dataset(self, experiment: str, overrides: Sequence[str] = ()) -> Dataset:
        """The data set of an experiment. It is read once per process."""
        return open_data_of(experiment, self.data, tuple(o for o in overrides if o.startswith("data.")))
