"""The paper map names functions and tests that exist, and leaves nothing of the paper out."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "paper-map.md"


class Row(NamedTuple):
    paper: str
    what: str
    function: str
    test: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [Row(*row) for row in cells if len(row) == 4 and row[0] != "paper" and not row[0].startswith("-")]


ROWS = rows()
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(fedgap(?:\.\w+)+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def resolve(name: str) -> Any:
    """The object of a dotted name: a module, what is in it, or an attribute or field of a class in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part) and part in getattr(found, "__annotations__", {}):
                return part  # a field without a default, which is an attribute of instances only
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", NAMES)
def test_every_function_named_exists(name: str) -> None:
    resolve(name)


@pytest.mark.parametrize(("path", "test"), TESTS)
def test_every_test_named_exists(path: str, test: str) -> None:
    assert test in functions_in(path)


def test_names_that_do_not_exist_are_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("fedgap.system.uplink_speed")
    with pytest.raises(AttributeError):
        resolve("fedgap.planning.problem.Problem.no_such_constraint")


def test_every_row_has_a_function_and_a_test_or_says_why_not() -> None:
    excuses = ("not yet: ", "not implemented: ", "proof only")
    for row in ROWS:
        done = "`fedgap." in row.function
        assert done or row.function.startswith(excuses), row
        if done:
            assert "`tests/" in row.test or row.test.startswith("no test of its own: "), row


def numbers(pattern: str) -> set[str]:
    """The first group of the pattern over the first column of all tables."""
    return {found for row in ROWS for found in re.findall(pattern, row.paper)}


def test_nothing_of_the_paper_is_left_out() -> None:
    assert numbers(r"\((\d+[a-f]?)\)") >= {str(n) for n in range(1, 53)} | {
        *(f"26{letter}" for letter in "abcdef"), "27a", "27b", "32a"
    }  # fmt: skip
    assert numbers(r"Assumption (\d)") == set("1234")
    assert numbers(r"(Lemma 1|Proposition 1|Theorem 1)") == {"Lemma 1", "Proposition 1", "Theorem 1"}
    assert numbers(r"Remark (\d)") == set("12")
    assert numbers(r"\b(P\d(?:\.\d)?)\b") == {"P1", "P2", "P2.1", "P3", "P4", "P5"}
    assert numbers(r"Table I, row (\d+)") == {str(n) for n in range(1, 11)}
    assert numbers(r"Fig\. (\d)") == set("12345678")
    lines: set[int] = set()
    for row in ROWS:
        if found := re.match(r"Algorithm 1, lines? (\d+)(?: (and|to) (\d+))?$", row.paper):
            first, last = int(found[1]), int(found[3] or found[1])
            lines |= set(range(first, last + 1)) if found[2] != "and" else {first, last}
    assert lines == set(range(1, 14))
