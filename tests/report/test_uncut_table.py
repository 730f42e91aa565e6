"""Tables: whatever the terminal's width, every number is there whole."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedgap.report.uncut_table import Sheet


def shown(sheet, width):
    out = io.StringIO()
    Console(file=out, width=width).print(sheet)
    return out.getvalue()


def wide():
    sheet = Sheet("Budgets", "who", *(f"column {k}" for k in range(9)), "why", left=("why",), caption="all of them")
    for row in range(3):
        sheet.add_row(f"client {row}", *(f"{row}{k}.{row}{k}{row}{k}" for k in range(9)), "because it was so " * 3)
    return sheet


@pytest.mark.parametrize("width", [40, 80, 100, 1000])
def test_every_number_is_whole_and_every_line_fits(width):
    text = shown(wide(), width)
    assert "…" not in text
    for row in range(3):
        for k in range(9):
            assert f"{row}{k}.{row}{k}{row}{k}" in text
    assert max(map(len, text.splitlines())) <= width
    assert text.split().count("so") == 9


def test_a_part_repeats_the_first_column_and_a_pipe_has_a_line_a_row():
    assert shown(wide(), 60).count("client 1") == len(wide().parts(60)) > 1
    line, = re.findall(r"client 1.*", shown(wide(), 1000))
    assert "11.1111" in line
    assert "18.1818" in line


@given(st.lists(st.tuples(st.text("ab ", max_size=30), st.floats(), st.floats()), min_size=1, max_size=4),
       st.integers(56, 120))
def test_any_number_is_whole_at_any_width(rows, width):
    sheet = Sheet("", "words", "one", "two")
    for words, one, two in rows:
        sheet.add_row(words, repr(one), repr(two))
    text = shown(sheet, width)
    for _, one, two in rows:
        assert repr(one) in text
        assert repr(two) in text
