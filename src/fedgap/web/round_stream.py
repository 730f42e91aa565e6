"""The rounds of a run as server-sent events: first the existing ones, then new ones until the server stops."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgap.errors import InputError
from fedgap.files import parse_json_lines, whole_lines
from fedgap.web.runs import Runs, slim

_EVERY_S = 0.25
_ALIVE_S = 10.0
_MOST = 2**22  # bytes read at once


async def follow(runs: Runs, name: str, position: int, closing: asyncio.Event) -> AsyncIterator[str]:
    """Yield server-sent events: ``rounds`` (a list), ``state``, and ``reset`` (the log was cut, so all rounds must be
    forgotten).

    The id of an event is the position in the log in bytes; a reader that reconnects sends the last one as ``position``.
    ``closing`` ends the stream when the server stops."""
    path = runs.folder(name) / "rounds.jsonl"
    said: Any = None
    spoke = time.monotonic()
    while not closing.is_set():
        state = await asyncio.to_thread(runs.state, name)
        size = path.stat().st_size if path.is_file() else 0
        if size < position:
            position = 0
            yield _event("reset", {}, 0)
        events, position = await asyncio.to_thread(_new, path, position) if size > position else ([], position)
        if events:
            yield _event("rounds", events, position)
        if state != said:
            said = state
            yield _event("state", {"state": state[0], "message": state[1]}, position)
        if not events:
            if time.monotonic() - spoke > _ALIVE_S:
                yield ": alive\n\n"
                spoke = time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), _EVERY_S)


def _new(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """The complete lines after byte ``position``, and the byte at which they end."""
    with open(path, "rb") as file:
        file.seek(position)
        text = file.read(_MOST)
    whole, events = whole_lines(text), []
    with suppress(InputError):  # of a damaged log, show the rounds before the damage
        for event in parse_json_lines(whole, path):
            events.append(slim(event))
    return events, position + len(whole)


def _event(kind: str, data: Any, position: int) -> str:
    return f"event: {kind}\nid: {position}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
