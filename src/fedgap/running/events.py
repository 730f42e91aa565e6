"""``rounds.jsonl``: one line a round, and its reader."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgap.files import read_json_lines

Event = dict[str, Any]
"""A round: ``round, clients, pruning_ratio, energy_j, delay_s, energy_total_j, delay_total_s, train_loss`` and, where
evaluated, ``test_loss, test_accuracy, generalization_gap``; see docs/reference/run-folder.md for the rest."""


def finite_or_none(value: float) -> float | None:
    """A float for JSON, which has no infinity and no NaN."""
    return float(value) if math.isfinite(value) else None


def read_rounds(path: str | Path) -> list[Event]:
    """The rounds in the file; a torn last line (the writer was killed) is dropped."""
    return read_json_lines(path)


class RoundLog:
    """Appends rounds to ``rounds.jsonl``."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """Goes on at byte ``position``; what was written after it (rounds after the last checkpoint) is cut off."""
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (it lives as long as the run)
        self._file.truncate(position)
        self._file.seek(position)

    def write(self, events: Iterable[Event]) -> None:
        """Appends one line each; the lines reach the operating system before this returns."""
        left = memoryview(b"".join(json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n"
                                   for event in events))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            error.filename = str(self._path)
            raise

    def sync(self) -> int:
        """Makes the lines durable and says at which byte the log stands."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """No more rounds."""
        self._file.close()
