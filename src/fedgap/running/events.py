"""The event of a round: the line of ``rounds.jsonl`` with its clients, its cost and its losses."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.files import read_json_lines
from fedgap.running.job import Job
from fedgap.running.ledger import Charge

Event = dict[str, Any]
"""A round as a dictionary. It always has ``round, clients, pruning_ratio, energy_j, delay_s, energy_total_j,
delay_total_s, train_loss``; if it was evaluated, also ``test_loss, test_accuracy, generalization_gap``; with a
validation split ``validation_loss, validation_accuracy``, and with a forecast in the scenario the corrected
``forecast``. The other keys are in docs/reference/run-folder.md."""
OnEvents = Callable[[int, Job, list[Event]], None]
"""A function that is called with the run's position in the list, its job and its new rounds."""


def round_event(job: Job, segment: int, charge: Charge) -> Event:
    """The event of a round of the plan's ``segment`` with this cost. Its number, totals and loss are filled in later.

    Equal rounds may share the lists in it."""
    selected = np.flatnonzero(job.selected[segment])
    attendance = charge.went
    event: Event = {
        "round": None, "clients": selected.tolist(), "pruning_ratio": job.ratio[segment, selected].tolist(),
        "energy_j": charge.energy_j, "delay_s": charge.delay_s, "energy_total_j": None,
        "delay_total_s": None, "train_loss": None,
        "client_energy_j": charge.client_j[selected].tolist(), "client_delay_s": charge.client_s[selected].tolist(),
        "broadcast_j": charge.broadcast_j, "uploaded_bits": charge.uploaded_bits,
        "statement": finite_or_none(job.statement[segment])}
    for name, missing in (("dropped", attendance.dropped), ("late", attendance.late)):
        if missing.any():
            event[name] = np.flatnonzero(missing).tolist()
    return event


def finite_or_none(value: float) -> float | None:
    """The value as a float, or None if it is infinite or NaN, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def read_rounds(path: str | Path) -> list[Event]:
    """Read the rounds in a ``rounds.jsonl``. An incomplete last line, which a killed process may leave, is ignored."""
    return read_json_lines(path)


class RoundLog:
    """Appends rounds to ``rounds.jsonl``."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """Continue at byte ``position``. Anything after it (rounds after the last checkpoint) is cut off."""
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open as long as the run)
        self._file.truncate(position)
        self._file.seek(position)

    def write(self, events: Iterable[Event]) -> None:
        """Append one line per event. The lines have reached the operating system when this returns."""
        left = memoryview(b"".join(json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n"
                                   for event in events))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            error.filename = str(self._path)
            raise

    def sync(self) -> int:
        """Make sure that the lines are on the disk; returns the length of the log in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def cut(self, rounds: int) -> int:
        """Keep only the first ``rounds`` lines; returns the new length of the log in bytes."""
        lines = self._path.read_bytes().splitlines(keepends=True)[:rounds]
        position = sum(map(len, lines))
        self._file.truncate(position)
        self._file.seek(position)
        return position

    def close(self) -> None:
        """Close the file."""
        self._file.close()
