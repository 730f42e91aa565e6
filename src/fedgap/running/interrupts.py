"""Ctrl-C takes effect between rounds, never inside one; and only one process trains a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedgap.errors import InputError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a flag that the loop reads between rounds; a second one acts at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: Any) -> None:
        flag.set()
        for noted, handler in before.items():
            signal.signal(noted, handler)

    try:
        for number in before:
            signal.signal(number, note)
        yield flag.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def alone(folders: Sequence[Path]) -> Iterator[None]:
    """Hold these runs' folders for this process: two that trained one run would garble its log.

    The lock is on ``job/job.json``; it is released when the process ends, however that happens.
    """
    with ExitStack() as held:
        for folder in folders if fcntl is not None else ():
            file = held.enter_context(open(folder / "job" / "job.json", "rb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{folder}: another process is training this run; wait for it, or stop it "
                                 "first") from None
            except OSError:  # a file system without locks
                pass
        yield
