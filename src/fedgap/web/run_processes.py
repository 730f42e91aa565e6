"""Find the process that works on a run folder, whether or not the studio started it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

_PROC = Path("/proc")
_FRESH_S = 1.0
"""How many seconds a scan of all processes stays valid."""
_RECENT_S = 60.0


def command(pid: int) -> str:
    """A process's command line; empty where there is none."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if (_PROC / "self").is_dir():
            return ""
    asked = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout


class Writers:
    """The processes that hold a ``rounds.jsonl`` open, which a run does for as long as it trains."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._when = -_FRESH_S

    def process_of(self, log: Path) -> int | None:
        """The process that writes this log; 0 if there is one but it cannot be identified (no /proc, but new lines)."""
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
        if not process.name.isdigit() or int(process.name) == os.getpid():  # this one only reads them
            continue
        try:
            for entry in os.scandir(process / "fd"):
                target = os.readlink(entry.path)
                if target.endswith("/rounds.jsonl"):
                    writers[target] = int(process.name)
        except OSError:
            continue  # it ended meanwhile, or is another person's
    return writers
