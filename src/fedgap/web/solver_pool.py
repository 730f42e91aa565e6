"""The server's side of its solver processes: send jobs, receive events, and cancel jobs that are no longer needed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

Event = dict[str, Any]
_LINE = 2**27  # maximum length of an event in bytes
_LATER_S = 3.0


class SolverProcess:
    """One solver process. It does one job at a time; a job is cancelled if nobody reads its events any more."""

    def __init__(self, *, nice: int = 0) -> None:
        self._nice = nice
        self._turn = asyncio.Lock()
        self._numbers = itertools.count()
        self._process: asyncio.subprocess.Process | None = None
        self._drains: set[asyncio.Task[None]] = set()

    async def start(self, after_s: float = 0.0) -> None:
        """Start the process after some seconds, unless a job has already started it. It then imports the solver."""
        await asyncio.sleep(after_s)
        async with self._turn:
            await self._alive()

    async def _launch(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fedgap.web.solver_worker", str(self._nice),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def events(self, job: Event) -> AsyncIterator[Event]:
        """Yield the events of a job as they arrive. Closing the iterator cancels the job."""
        await self._turn.acquire()
        number, ended = next(self._numbers), False
        try:
            await self._alive()
            self._send({"id": number, **job})
            while not ended:
                event = await self._receive()
                if event.get("id") != number:
                    continue
                ended = bool(event.pop("end", False))
                yield event
        finally:
            if ended:
                self._turn.release()
            else:
                task = asyncio.get_running_loop().create_task(self._drain(number))
                self._drains.add(task)
                task.add_done_callback(self._drains.discard)

    async def _drain(self, number: int) -> None:
        """Cancel a job and wait for its end; after that the next job may begin."""
        try:
            self._send({"cancel": number})
            while True:
                event = await self._receive()
                if event.get("id") == number and event.get("end"):
                    break
        except (OSError, EOFError, RuntimeError):
            pass  # the process has ended; the next job starts a new one
        finally:
            self._turn.release()

    async def _alive(self) -> None:
        if self._process is None or self._process.returncode is not None:
            await self._launch()

    def _send(self, message: Event) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _receive(self) -> Event:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            raise EOFError("the solver process ended")
        event: Event = json.loads(line)
        return event


class Solvers:
    """Two solver processes: one for the present plan, the other for further schemes and the frontier."""

    def __init__(self) -> None:
        self.quick, self.slow = SolverProcess(), SolverProcess(nice=5)
        self._later: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first process now, and the second a few seconds later, so that the page gets enough of the
        processor first."""
        await self.quick.start()
        self._later = asyncio.create_task(self.slow.start(_LATER_S))

    async def stop(self) -> None:
        """End both processes."""
        if self._later is not None:
            self._later.cancel()
        await asyncio.gather(self.quick.stop(), self.slow.stop())

    async def events(self, job: Event) -> AsyncIterator[Event]:
        """Yield draft, plan, the six schemes and the frontier; ``{"stage": "done"}`` is last. If something fails, a
        stage ``failed`` says what."""
        for kind, process in (("quick", self.quick), ("slow", self.slow)):
            stages = _stages(process, {"kind": kind, **job})
            try:
                async for event in stages:
                    yield event
            finally:
                await stages.aclose()  # type: ignore[attr-defined]
        yield {"stage": "done"}

    async def alone(self, kind: str, job: Event) -> AsyncIterator[Event]:
        """Run a single job in the second process."""
        stages = _stages(self.slow, {"kind": kind, **job})
        try:
            async for event in stages:
                yield event
        finally:
            await stages.aclose()  # type: ignore[attr-defined]


async def _stages(process: SolverProcess, job: Event) -> AsyncIterator[Event]:
    """Yield the stages of a job; an error becomes a stage ``failed``."""
    stream = process.events(job)
    try:
        async for event in stream:
            problem = event.get("error") or event.get("cancelled")
            if problem:
                yield {"stage": "failed", "message": problem}
            elif "stage" in event:
                event.pop("id", None)
                yield event
    except (OSError, EOFError, RuntimeError) as error:
        yield {"stage": "failed", "message": str(error)}
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
