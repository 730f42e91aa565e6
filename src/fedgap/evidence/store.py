"""The store of records of finished runs, by training key: one line of JSON per run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedgap.files import parse_json_lines, whole_lines, write_bytes


class Store:
    """Records in a ``.jsonl`` file. A record is on disk as soon as it is added; an incomplete last line is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, dict[str, Any]] = {}
        if path.is_file():
            data = path.read_bytes()
            whole = whole_lines(data)
            self._records = {entry["key"]: entry for entry in parse_json_lines(whole, path)}
            if len(whole) < len(data):
                write_bytes(path, whole)

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._records[key]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records.values())

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Add the records whose keys are new."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for entry in records:
                if entry["key"] not in self._records:
                    self._records[entry["key"]] = entry
                    file.write(json.dumps(entry, separators=(",", ":")) + "\n")
                    file.flush()
