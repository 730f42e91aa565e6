"""The tables of all reports. They never cut off a number, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

NARROWEST = 20
"""Width in characters to which a column of words may be folded. If the table is still too wide, it is split into
parts."""


class Sheet:
    """A table with a title above and a caption below; numbers are aligned to the right, words to the left.

    If it is wider than the terminal, words are folded. If that is not enough, the remaining columns follow below, with
    the first column repeated. Unlike in rich's tables, numbers are never shortened.
    """

    def __init__(self, title: str, *columns: str, left: Sequence[str] = (), caption: str | None = None) -> None:
        self.title, self.caption, self._columns = title, caption, columns
        self._words = [position == 0 or column in left for position, column in enumerate(columns)]
        self._rows: list[tuple[tuple[str, ...], str | None]] = []
        self._ends: set[int] = set()

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Add one row."""
        self._rows.append((cells, style))

    def add_section(self) -> None:
        """Separate the rows so far from the next ones."""
        self._ends.add(len(self._rows) - 1)

    def parts(self, width: int) -> list[list[int]]:
        """Split the table into parts that are at most ``width`` characters wide; return the columns of each part."""
        from rich.cells import cell_len

        natural = [max(max(map(cell_len, text.split("\n"))) for text in (head, *(cells[k] for cells, _ in self._rows)))
                   for k, head in enumerate(self._columns)]
        least = [min(length, NARROWEST) if words else length
                 for length, words in zip(natural, self._words, strict=True)]
        parts, used = [[0]], least[0]
        for k in range(1, len(least)):
            if used + 2 + least[k] > width and len(parts[-1]) > 1:
                parts.append([0])
                used = least[0]
            parts[-1].append(k)
            used += 2 + least[k]
        return parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self.title, style="bold")
        for position, columns in enumerate(self.parts(options.max_width)):
            if position:
                yield Text()
            yield self._table(columns)
        if self.caption:
            yield Text(self.caption, style="dim")

    def _table(self, columns: Sequence[int]) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for k in columns:
            words = self._words[k]
            table.add_column(self._columns[k], justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for position, (cells, style) in enumerate(self._rows):
            table.add_row(*(cells[k] for k in columns), style=style, end_section=position in self._ends)
        return table
