"""Base class of results that are shown as tables in a terminal, by ``print`` and in a notebook."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

WIDTH = 120
"""Width of a result in characters, in a notebook or without a terminal."""


class Printable:
    """A result made of tables and sentences, which ``print``, rich and Jupyter show."""

    def parts(self) -> Sequence[RenderableType]:
        """Return the tables and sentences of the result, from top to bottom."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for position, part in enumerate(self.parts()):
            if position:
                yield Text()
            yield Text(part) if isinstance(part, str) else part

    def __str__(self) -> str:
        return text_of(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        console = _recorder(WIDTH, record=True)
        console.print(self)
        return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.2">{code}</pre>')


def text_of(part: RenderableType, width: int | None = None) -> str:
    """Return a table or a result as plain text, by default as wide as the terminal."""
    console = _recorder(width or shutil.get_terminal_size((WIDTH, 24)).columns)
    console.print(part)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def _recorder(width: int, record: bool = False) -> Console:
    from rich.console import Console

    return Console(file=io.StringIO(), width=width, record=record, highlight=False, markup=False, emoji=False,
                   color_system="truecolor" if record else None)
