"""Notebooks in Markdown: run them, and write their outputs again.

A notebook is a Markdown page that GitHub and the documentation site show unchanged and that Jupyter opens with
Jupytext. Its cells are the blocks of Python; the output of a cell is in a block of ``text`` below it. A cell that
begins with
``%%writefile NAME`` is written into a file, as in Jupyter. Pictures that a cell draws and the page shows are kept in
``docs/images/tutorials``.

``python -m tools.notebooks`` runs all of them and writes outputs and pictures again; the tests run them and compare.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = tuple(sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md")
                         if "jupytext:" in path.read_text(encoding="utf-8")[:400]))
PICTURES = ROOT / "docs" / "images" / "tutorials"
CELL = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def run(text: str, folder: Path) -> str:
    """Run the cells of a notebook in ``folder``; returns the page with the outputs of this run."""
    names: dict[str, Any] = {"__name__": "notebook"}
    with _inside(folder):
        return CELL.sub(lambda cell: _with_output(cell, names), text)


def _with_output(cell: re.Match[str], names: dict[str, Any]) -> str:
    code = cell["code"]
    said = io.StringIO()
    if code.startswith("%%writefile "):
        magic, _, content = code.partition("\n")
        Path(magic.split()[1]).write_text(content, encoding="utf-8")
    else:
        with contextlib.redirect_stdout(said):
            exec(compile(code, "cell", "exec"), names)
    output = "\n".join(line.rstrip() for line in said.getvalue().strip("\n").splitlines())
    shown = f"\n```text\n{output}\n```\n" if output else ""
    return f"```python\n{code}```\n{shown}"


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder whose modules can be imported, with tables as wide as the page; everything is restored at the
    end."""
    before, width, modules = Path.cwd(), os.environ.get("COLUMNS"), set(sys.modules)
    os.chdir(folder)
    os.environ["COLUMNS"] = "110"
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width
        for name in set(sys.modules) - modules:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def differences(shown: str, given: str, tolerance: float = 0.1) -> list[str]:
    """The lines in which two versions of a page differ by more than the last digits of numbers.

    Of lines that end in "points" only the words are compared, because trained models differ between processors.

    :param tolerance: the relative difference that is allowed for all other numbers."""
    pairs = list(zip(shown.splitlines(), given.splitlines(), strict=False))
    found = [f"- {ours}\n+ {theirs}" for ours, theirs in pairs if not _alike(ours, theirs, tolerance)]
    if shown.count("\n") != given.count("\n"):
        found.append(f"{shown.count(chr(10))} lines became {given.count(chr(10))}")
    return found


def _alike(ours: str, theirs: str, tolerance: float) -> bool:
    if ours == theirs:
        return True
    # Columns and rules may be a little wider or narrower.
    words = [re.sub(r"[\s─]+", " ", NUMBER.sub("#", line)).strip() for line in (ours, theirs)]
    numbers = [[float(text.replace(",", "").replace("−", "-")) for text in NUMBER.findall(line)]
               for line in (ours, theirs)]
    return words[0] == words[1] and (ours.endswith("points") or all(
        abs(a - b) <= tolerance * max(abs(a), abs(b), 1.0) for a, b in zip(*numbers, strict=True)))


def main() -> None:
    """Run every notebook and write its outputs and pictures again."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            text = run(path.read_text(encoding="utf-8"), Path(folder))
            path.write_text(text, encoding="utf-8")
            for name in re.findall(r"images/tutorials/([\w-]+\.png)", text):
                shutil.copyfile(Path(folder) / name, PICTURES / name)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
