"""Settings and folders of ``fedgap reproduce``."""

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
"""Called with a title and a number of steps; returns a progress bar that a call advances by one step."""


def no_bar(what: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    """Show no progress."""
    return nullcontext(lambda: None)


@dataclass
class Workshop:
    """Settings and folders: ``plans/`` and ``runs.jsonl`` in ``out``, results and picture in ``out/FIGURE/``."""

    out: Path
    preset: str
    data: Path | None = None
    """Folder of the data set's files, unless it is embedded."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    bar: Steps = no_bar
    definitions: Path = FOLDER
    train: bool = True
    """Whether runs without a record are trained; otherwise they are left out, and counted as ``missing``."""

    def __post_init__(self) -> None:
        self.store = Store(self.out / "runs.jsonl")

    def dataset(self, experiment: str, overrides: Sequence[str] = ()) -> Dataset:
        """Return the data set of an experiment, read once."""
        return open_data_of(experiment, self.data, tuple(o for o in overrides if o.startswith("data.")))
