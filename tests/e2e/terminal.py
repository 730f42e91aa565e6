"""Run fedgap as a person would, in this process (fast) or in its own (true)."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from unittest import mock

from fedgap.cli.main import run


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def fedgap(*arguments: object, columns: int | None = None) -> Answer:
    """The command in this process, through the same door as the real one; output goes nowhere near a terminal, but may
    be told how wide one is."""
    out, err = io.StringIO(), io.StringIO()
    width = {} if columns is None else {"COLUMNS": str(columns)}
    umask = os.umask(0o022)
    os.umask(umask)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ, width):
        code = run([str(argument) for argument in arguments])
    os.umask(umask)
    return Answer(code, out.getvalue(), err.getvalue())


def fedgap_process(*arguments: object, **environment: str) -> Answer:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "fedgap", *map(str, arguments)], capture_output=True, text=True, encoding="utf-8",
        env=os.environ | environment, timeout=120, check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
