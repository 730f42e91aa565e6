"""Trackers: logs that a run writes in addition to ``rounds.jsonl``, for programs that draw or collect curves.

An experiment names them (``trackers: tensorboard``). A tracker is made when a run begins or is resumed, in the
simulator, in each run of a sweep, and on the server of a deployment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedgap.registry import TRACKERS, call_extension
from fedgap.running.events import Event
from fedgap.running.job import Job


class TrackedRun(Protocol):
    """What a tracker sees of a :class:`fedgap.Run`.

    >>> small = ["rounds=2", "budget.delay_s=2", "model.name=mlp", "data.train_samples=300", "engine.threads=1"]
    >>> run = fedgap.train(fedgap.Experiment.load("embedded", small), "runs/tracked")
    >>> run.folder.name, run.job.scheme, [event["round"] for event in run.history]
    ('tracked', 'proposed', [0, 1])
    """

    @property
    def folder(self) -> Path:
        """The run's folder, where a tracker may write its files."""

    @property
    def job(self) -> Job:
        """Everything that the run was asked to do, as plain numbers."""

    @property
    def history(self) -> list[Event]:
        """The rounds so far, one dictionary each, as in ``rounds.jsonl``."""


class Tracker(Protocol):
    """Follows one run.

    It is created by a call with a :class:`TrackedRun`. ``run.history`` has the rounds so far. A resumed run may repeat
    rounds that are not in the history, so after creation the tracker's log must have exactly the rounds of the history.

    >>> class Printer:
    ...     def __init__(self, run):
    ...         self.losses = [event["train_loss"] for event in run.history]
    ...     def log(self, events):
    ...         self.losses += [event["train_loss"] for event in events]
    ...     def close(self, summary):
    ...         print(len(self.losses), "rounds")
    """

    def log(self, events: Sequence[Event]) -> None:
        """Receive new rounds, each as the dictionary of its line in ``rounds.jsonl``."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Finish the log. ``summary`` is the content of ``summary.json``, or None for a run that was interrupted."""


class RunTrackers:
    """All trackers of one run. A tracker that fails is no longer called; the run continues."""

    def __init__(self, run: TrackedRun) -> None:
        """Create the trackers that the run's job names. ``rounds.jsonl`` must have exactly the rounds so far."""
        self._trackers: dict[str, Tracker] = {}
        for name in run.job.trackers:
            make = TRACKERS.load(name, "trackers")
            self._trackers[name] = call_extension("trackers", name, make, run)

    def log(self, events: Sequence[Event]) -> None:
        """Pass new rounds to each tracker."""
        self._call(lambda tracker: tracker.log(events))

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Close each tracker. A second call does nothing."""
        self._call(lambda tracker: tracker.close(summary))
        self._trackers = {}

    def _call(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:  # a failing tracker must not end the training
                del self._trackers[name]
                warnings.warn(f"trackers: {name} failed ({type(error).__name__}: {error}); the run continues without "
                              "it", stacklevel=3)
