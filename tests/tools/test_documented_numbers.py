"""Measured numbers in README and documentation are those of the committed results."""

import re
import sys
from pathlib import Path

import pytest

from tools import benchmark_numbers, documented_numbers

ROOT = documented_numbers.ROOT
GENERATED = {"docs/explanation/claims.md", "docs/explanation/what-exactness-buys.md"}
"""Whole pages, each with a test of its own."""
NOTES = {"benchmarks/notes-engine.md"}
"""A diary of versions that are gone, whose figures cannot be measured again."""
PAGES = documented_numbers.pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert documented_numbers.filled(text) == text, "run python -m tools.documented_numbers"


def prose(page: Path) -> str:
    """A page without what is marked and without code."""
    text = documented_numbers.MARK.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_measured_stands_without_its_source(page: Path) -> None:
    """A number with an interval is a measurement: it stands in a mark, in a page that a script writes, or in code."""
    if name_of(page) not in GENERATED:
        assert not re.findall(r".*\d ± \d.*", prose(page))


UNIT = re.compile(r"(?<![\w.])\d[\d.,]* ?(?:ms|s|min|minutes?|seconds?|kB|MB|GB|%|percent|points?|times)(?![\w/])")
SAID = (
    r"95 % (confidence )?interval|\n?95 %\ninterval|90 % within",  # what an interval is
    r"250 J and 150 s|7100 J and 3600 s",  # the paper's budgets
    r"T₀ = \d+ s|40 joules, 40 seconds|from 0.6 to 2 times|1.5 times the nominal",  # what was asked for
    r"30 s and 25 J|15 s and 12 J|97\.7 % and 97\.9 %|97\.0 % and 97\.4 %",  # budgets, and marks set beforehand
    r"closed to 0\.08 %, above to about 0\.6 %|0\.01 points of\naccuracy at an error of 2 %",  # where the solver stops
    r"until 95 %|reaches 95 %",  # an example of a target
    r"[>≥] 0 s|Uploads end at 8 MB|sleeps 3 s|poll is 3 s|waits up to 15 seconds",  # what is allowed, what is set
    r"(longer than|more than|at most) (5|7|100) times",  # from where on an update or a claim is too large
    r"5 minutes behind the server's, or more than 5 seconds ahead",  # what Flower allows
    r"takes 6 ms for a batch|reaches 19 %|6.5 % more|of 85 % efficiency",  # worked examples, with the working
    r"1/D̃ to within about 1 %|more than 1000 times the printed bound|Here 59 seconds",  # shown beside, or tested
    r"needs 105.6 s",  # an example of a message
    r"from uniform to 80 % on five classes",  # what was set
    r"The 90 % intervals contain about 90 % of the plans",  # in tables and results
    r"no longer as 5.684e-14 s|≥ 0 s|by more than 0.3 points in each",  # an old message, a mark
    r"(within|than) 1.3 times",  # how generous an answer may be
    r"was 10 times slower once counts as\n  5 times slower|on the way below 0\.5 s",  # set
    r"times below 0\.1 s count as equal",
    r"\(about 4 GB\)",  # what an installation takes
)
"""Numbers with a unit that are no measurements of ours."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_number_with_a_unit_is_marked_or_no_measurement(page: Path) -> None:
    if name_of(page) in GENERATED | NOTES:
        return
    text = prose(page)
    said = [found.span() for pattern in SAID for found in re.finditer(pattern, text)]
    bare = [found for found in UNIT.finditer(text) if not any(a <= found.start() and found.end() <= b for a, b in said)]
    assert [text[max(0, found.start() - 40):found.end() + 20] for found in bare] == []


@pytest.mark.parametrize("pattern", SAID)
def test_what_may_stand_unmarked_is_still_there(pattern: str) -> None:
    assert any(re.search(pattern, prose(page)) for page in PAGES)


def test_every_writer_is_used_and_answers() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    marks = [mark[1].split()[0] for text in texts for mark in documented_numbers.MARK.findall(text)]
    assert set(marks) == set(documented_numbers.WRITERS)
    assert len(marks) > 40


def test_an_unknown_word_is_an_error() -> None:
    with pytest.raises(KeyError):
        documented_numbers.filled("<!-- n: nothing of the kind -->1<!-- / -->")


def test_a_value_is_found_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"runs": [{"mode": "a b", "nodes": 2, "s": 1.0}, {"mode": "a b", "nodes": 4, "s": 2512.0}]}
    known = {"benchmarks/results/x.json": document}
    monkeypatch.setattr(benchmark_numbers, "data", known.get)
    assert benchmark_numbers.value("x", "runs/mode=a_b,nodes=4/s", ".2f", "1000") == "2.51"
    assert benchmark_numbers.value("x", "runs/mode=a_b,nodes=8/s", ".2f") == documented_numbers.ABSENT
    assert benchmark_numbers.value("x", "nothing", ".0f") == documented_numbers.ABSENT


@pytest.mark.parametrize(("number", "text"), [(0.0080156, "0.008"), (0.157, "0.16"), (8.906, "8.9"), (438.6, "439"),
                                              (6183.5, "6.2·10³"), (13582949.0, "1.4·10⁷")])
def test_short_numbers(number: float, text: str) -> None:
    assert benchmark_numbers.short(number) == text


def test_what_plans_promise_is_compared_with_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of two cells: 1 and 3 points too much in the first, 0 and 0 in the second, so 0.5 and 1.5 by seed, and
    1 ± 12.706·0.5 by hand. A cell with very uneven labels stands apart; other schemes and modes do not count."""
    rows = [{"cell": cell, "scheme": scheme, "mode": mode, "seed": seed, "forecast": 0.9 + excess, "accuracy": 0.9}
            for cell, scheme, mode, excesses in [
                ("MNIST, city, σ = 0.3", "forecast", "practical", (0.01, 0.03)),
                ("MNIST, city, σ = 5", "forecast", "practical", (0.0, 0.0)),
                ("MNIST, city, σ = 0.1", "forecast", "practical", (-0.02, -0.02)),
                ("MNIST, city, σ = 5", "oort", "practical", (0.2, 0.2)),
                ("MNIST, city, σ = 5", "forecast", "repaired", (0.2, 0.2))]
            for seed, excess in enumerate(excesses)]
    monkeypatch.setattr(documented_numbers, "data", lambda _: {"panels": [{"rows": rows}]})
    assert "| MNIST, city | +1.0 ± 6.4 | −2.0 ± 0.0 |" in documented_numbers.promises()


def test_absent_data_is_a_dash() -> None:
    assert benchmark_numbers.pruning("no_such_rule", "0.3", "pruned") == documented_numbers.ABSENT


def test_the_page_on_exactness_is_written_from_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop("benchmarks.alternating_gap", None)
    from benchmarks import alternating_gap as gap

    rows = benchmark_numbers.data("benchmarks/results/alternating_gap.json")["rows"]
    page = gap.PAGE.read_text(encoding="utf-8")
    assert page.split(gap.BEGIN)[1].split(gap.END)[0].strip() == gap.tables(rows).strip()
