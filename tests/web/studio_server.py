"""A studio as a person starts it: the command, in a process of its own, on a port of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx


class Studio:
    """``with Studio(runs) as studio``: its address, its token, and a client that has both.

    ``opened`` is what the command line names, relative to the ``folder`` that it is called in.
    """

    def __init__(self, runs: Path | None, port: int = 0, *, opened: str | None = None,
                 folder: Path | None = None) -> None:
        self.runs, self._wanted, self._opened, self._folder = runs or Path("runs"), port, opened, folder
        self._runs_option = [] if runs is None else ["--runs", str(runs)]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "fedgap", "studio", *filter(None, [self._opened]), "--no-browser", "--port",
                   str(self._wanted), *self._runs_option]
        # A shell's background job ignores Ctrl-C, and its children would inherit that.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        cwd=self._folder, env=os.environ | {"OMP_NUM_THREADS": "1"},
                                        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("studio: http://127.0.0.1:"), line
        self.url = line.split()[1]
        self.address, _, self.token = self.url.partition("/#token=")
        self.port = int(self.address.rpartition(":")[2])
        self.errors: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        self.client = httpx.Client(base_url=self.address, headers={"x-fedgap-token": self.token}, timeout=120.0)
        return self

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        assert self.process.stdout is not None
        self.process.stdout.close()

    def post(self, path: str, **body: Any) -> httpx.Response:
        """POST a JSON body with the token."""
        return self.client.post(path, json=body)

    def stages(self, **body: Any) -> Any:
        """The stages of a plan as they come; closing the iterator closes the connection."""
        with self.client.stream("POST", "/api/plan", json=body) as reply:
            assert reply.status_code == 200, reply.read()
            yield from (httpx.Response(200, content=line).json() for line in reply.iter_lines())
