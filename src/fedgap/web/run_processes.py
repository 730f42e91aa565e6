"""Find the process that works on a run folder, whether or not the studio started it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

_PROC = Path("/proc")
_FRESH_S = 1.0
"""Number of seconds for which a scan of all processes stays valid."""
_RECENT_S = 60.0


def command(pid: int) -> str:
    """The command line of a process; empty if there is no such process."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if (_PROC / "self").is_dir():
            return ""
    asked = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout


class Writers:
    """Finds the processes that have a ``rounds.jsonl`` open, as a run does while it trains."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._when = -_FRESH_S

    def process_of(self, log: Path) -> int | None:
        """The id of the process that writes this log, or None; 0 if there is one that cannot be identified (no /proc,
        but new lines)."""
        if not (_PROC / "self").is_dir():
            try:
                return 0 if time.time() - log.stat().st_mtime < _RECENT_S else None
            except OSError:
                return None
        now = time.monotonic()
        if now - self._when >= _FRESH_S:
            self._seen, self._when = _open_logs(), now
        return self._seen.get(str(log))


def _open_logs() -> dict[str, int]:
    writers: dict[str, int] = {}
    for process in _PROC.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():  # the studio itself only reads logs
            continue
        try:
            for entry in os.scandir(process / "fd"):
                target = os.readlink(entry.path)
                if target.endswith("/rounds.jsonl"):
                    writers[target] = int(process.name)
        except OSError:
            continue  # the process has ended, or belongs to another user
    return writers
