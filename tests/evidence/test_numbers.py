"""Measured numbers in README and documentation are those of the committed results."""

import re
import sys
from pathlib import Path

import pytest

from fedgap.evidence import numbers

ROOT = numbers.ROOT
GENERATED = {"docs/explanation/claims.md", "docs/explanation/what-exactness-buys.md"}
"""Whole pages, each with a test of its own."""
PAGES = numbers.pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert numbers.filled(text) == text, "run python -m fedgap.evidence.numbers"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_measured_stands_without_its_source(page: Path) -> None:
    """A number with an interval is a measurement: it stands in a mark, in a page that a script writes, or in code."""
    if name_of(page) in GENERATED:
        return
    text = numbers.MARK.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.findall(r".*\d ± \d.*", text)


def test_every_writer_is_used_and_answers() -> None:
    marks = [mark[1].split()[0] for page in PAGES for mark in numbers.MARK.findall(page.read_text(encoding="utf-8"))]
    assert set(marks) == set(numbers.WRITERS)
    assert len(marks) > 40


def test_an_unknown_word_is_an_error() -> None:
    with pytest.raises(KeyError):
        numbers.filled("<!-- n: nothing of the kind -->1<!-- / -->")


def test_absent_data_is_a_dash() -> None:
    assert numbers.pruning("no_such_rule", "0.3", "pruned") == numbers.ABSENT


def test_the_page_on_exactness_is_written_from_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop("benchmarks.alternating_gap", None)
    from benchmarks import alternating_gap as gap

    rows = numbers._data("benchmarks/results/alternating_gap.json")["rows"]
    page = gap.PAGE.read_text(encoding="utf-8")
    assert page.split(gap.BEGIN)[1].split(gap.END)[0].strip() == gap.tables(rows).strip()
