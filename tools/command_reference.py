"""Writes the option tables of docs/reference/cli.md from the commands themselves.

    python -m tools.command_reference             rewrites them

A table is between ``<!-- options: COMMAND -->`` and ``<!-- / options -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from fedgap.cli.main import app
from tools import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
MARK = re.compile(r"(<!-- options: ([a-z -]+?) -->\n).*?(<!-- / options -->)", re.DOTALL)


def commands() -> dict[str, Any]:
    """All commands by name; those of a group as ``GROUP NAME``."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        within = getattr(command, "commands", None)
        found |= {f"{name} {inner}": c for inner, c in within.items()} if within else {name: command}
    return found


def table(command: Any) -> str:
    """The command's options as a Markdown table."""
    rows = ["| option | default | meaning |", "|---|---|---|", *_rows(command)]
    return "\n".join(rows) + "\n"


def _rows(command: Any) -> Iterator[str]:
    for option in command.params:
        if option.param_type_name != "option" or option.name in ("help", "allow"):
            continue
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" `{option.metavar or _type(option)}`"
        meaning = " ".join((option.help or "").replace("\\[", "[").split()).removesuffix(".")
        cells = names + value, _default(option), meaning
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(option: Any) -> str:
    choices = getattr(option.type, "choices", None)
    kind = option.type.name.upper().removesuffix(" RANGE")
    return "|".join(map(str, choices)) if choices else {"INTEGER": "N", "FLOAT": "X"}.get(kind, kind)


def _default(option: Any) -> str:
    value = option.default
    if option.required:
        return "required"
    return "" if value is None or value is False or value == () or callable(value) else f"`{value}`"


def rewritten(text: str) -> str:
    """The text of the page with tables of the present options."""
    known = commands()
    return MARK.sub(lambda mark: mark[1] + table(known[mark[2]]) + mark[3], text)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
