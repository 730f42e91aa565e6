"""Delay Ctrl-C until the end of the current round."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a flag that the loop reads between rounds; a second one acts at once.

    Yields the function that reads the flag."""
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
