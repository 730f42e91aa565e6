"""Output of the commands: results go to stdout, progress to stderr, and colour only to a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
WIDTH = 1000
"""Width of piped output in columns, so that every table row stays on one line, for grep and awk. On a terminal its own
width is used."""


def stdout() -> Console:
    """The console for results."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, markup=False, emoji=False, width=WIDTH)
    return console


def show(*parts: RenderableType) -> None:
    """Print results (tables and sentences) on stdout, with a blank line between them."""
    console = stdout()
    for position, part in enumerate(parts):
        if position:
            console.print()
        console.print(part)


@contextmanager
def planning(alpha: float, *, quiet: bool = False) -> Iterator[Callable[[str, int, float, float], None] | None]:
    """Yield the callback to which a solver reports its progress; it shows one changing line on stderr, on a terminal
    only.

    :param alpha: α, which is added to the reported θ − α so that the line shows θ."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield None
        return
    from fedgap.analysis import describe_progress

    with console.status("planning") as status:

        def update(what: str, iteration: int, best: float, bound: float) -> None:
            status.update(describe_progress(what, iteration, best, bound, alpha))

        yield update


@contextmanager
def steps(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield the callback to call after each of ``total`` steps; it shows a progress bar on stderr, on a terminal
    only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda: None
        return
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield the callback (file, bytes so far, total bytes) for downloads; it shows one bar per file on stderr, on a
    terminal only."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as bars:

        def update(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total or None)
            bars.update(tasks[file], completed=done, total=total or None)

        yield update
