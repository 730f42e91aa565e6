"""Scenario files that an editor, a script or a cat has been at: a plan or one line each, never a traceback.

Seeded and counted: file ``n`` is the same in every run. 150 files by default, 5,000 with ``FEDGAP_FULL=1``.
"""

import copy
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedgap.config import PRESETS, Scenario, preset_text, write_template
from fedgap.errors import InputError
from fedgap.planning import Plan
from fedgap.planning.problem import Problem
from tests.e2e.terminal import fedgap

FULL = os.environ.get("FEDGAP_FULL") == "1"
FILES = 5000 if FULL else 150
CHUNKS = 10

EXTREMES: list[Any] = [
    0, -0.0, -1, 1, 2**31, 2**63, 10**400, -(10**400), 1e-320, 1e-30, 1e30, 1e308, -1e308, float("inf"), float("-inf"),
    float("nan"), 0.999999999, 1.0000001, 0.1 + 0.2,
]  # fmt: skip
ODDITIES: list[Any] = [
    None, True, False, "", " ", "nan", "1e5", "1e400", "½", "٣", "１２", "0x1F", "1_000", "100 kHz", "\u202e", "😀",
    "a\nb", "\x07", "é" * 300, "=", "..", "/", "/dev/null", "/etc/passwd", "clients", "~", "<<", [], {}, [[]],
    [{}], {"": {}}, {"a": [1, {"b": []}]}, [1, 2, 3], list(range(50)), {"phi": 1}, "fleet.csv", "scenario.yaml",
    "repaired", "mixture",
]  # fmt: skip

Path_ = tuple[Any, ...]


def bases() -> list[dict[str, Any]]:
    """Documents to bend: the presets, the template, and one with everything written out."""
    documents = [yaml.safe_load(preset_text(name)) for name in PRESETS["scenario"]]
    documents += [Scenario.load("paper-mnist", ["fleet.count=3"]).to_dict()]
    documents += [Scenario.load("city", ["fleet.count=2", "clients[0].name=a", "bound.aggregation=mixture"]).to_dict()]
    return documents


def places(value: Any, path: Path_ = ()) -> list[Path_]:
    """The path of every value in a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


def parent(document: Any, path: Path_) -> Any:
    for part in path[:-1]:
        document = document[part]
    return document


def drop(rng: random.Random, document: Any, path: Path_) -> None:
    del parent(document, path)[path[-1]]


def rename(rng: random.Random, document: Any, path: Path_) -> None:
    holder = parent(document, path)
    if isinstance(holder, dict):
        key = str(path[-1])
        cut = rng.randrange(len(key) + 1)
        shorter, longer = key[:cut] + key[cut + 1 :], key[:cut] + "x" + key[cut:]
        holder[rng.choice([shorter, longer, key.upper(), key + "_ms", "ключ"])] = holder.pop(path[-1])


def extreme(rng: random.Random, document: Any, path: Path_) -> None:
    parent(document, path)[path[-1]] = rng.choice(EXTREMES)


def oddity(rng: random.Random, document: Any, path: Path_) -> None:
    parent(document, path)[path[-1]] = copy.deepcopy(rng.choice(ODDITIES))


def scale(rng: random.Random, document: Any, path: Path_) -> None:
    value = parent(document, path)[path[-1]]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        parent(document, path)[path[-1]] = value * 10.0 ** rng.randint(-40, 40) * rng.choice([1, 1, -1])


def wrap(rng: random.Random, document: Any, path: Path_) -> None:
    value = parent(document, path)[path[-1]]
    parent(document, path)[path[-1]] = rng.choice([[value], {"value": value}, str(value), [value, value]])


def move(rng: random.Random, document: Any, path: Path_) -> None:
    value = copy.deepcopy(parent(document, path)[path[-1]])
    other = rng.choice(places(document))
    parent(document, other)[other[-1]] = value


def add(rng: random.Random, document: Any, path: Path_) -> None:
    holder = parent(document, path)
    key = rng.choice(["name", "phi", "label_counts", "target_counts", "mode", "fleet", "labels", "seed", "x", "format"])
    value = copy.deepcopy(rng.choice(ODDITIES + EXTREMES))
    if isinstance(holder, dict):
        holder[key] = value
    else:
        holder.insert(rng.randrange(len(holder) + 1), value)


VALUE_MUTATIONS: list[Callable[[random.Random, Any, Path_], None]] = [
    drop, rename, extreme, oddity, scale, wrap, move, add,
]  # fmt: skip


def truncate(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text))]


def duplicate_line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines)


def swap_lines(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def splice(rng: random.Random, text: str) -> str:
    """A character somewhere, from those YAML gives a meaning to and those it refuses."""
    marks = [*"{}[],:&*#?|-<>=!%@`'\"\t\n \\~0.e\x00\x85\u2028\ufeff\u202e٣", "--- ", "&a ", "*a "]
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(marks) + text[at + rng.randint(0, 1) :]
    return text


def indent(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = rng.choice([" ", "  ", "\t", "- ", "? "]) + lines[at]
    return "\n".join(lines)


def tag(rng: random.Random, text: str) -> str:
    tags = ["!!python/object/apply:os.getcwd []", "!!binary aGk=", "!!set {a, b}", "!!timestamp 2020-01-01", "!x y"]
    return text.replace(": ", f": {rng.choice(tags)} ", rng.randint(1, 3))


def bomb(rng: random.Random, text: str) -> str:
    width, depth = rng.randint(2, 12), rng.randint(2, 40)
    lines = ["b0: &b0 [" + ", ".join(["x"] * width) + "]"]
    lines += [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * width)}]" for n in range(1, depth)]
    return "\n".join(lines) + "\n" + text


def nest(rng: random.Random, text: str) -> str:
    depth = rng.choice([10, 100, 10_000, 100_000])
    return text + "\nrounds: " + rng.choice(["[" * depth, "{a: " * depth, "[" * depth + "]" * depth, "- " * depth])


def unquote(rng: random.Random, text: str) -> str:
    return text.replace("\n", rng.choice(["\r\n", "\n\n", " \n", "\r"]))


TEXT_MUTATIONS: list[Callable[[random.Random, str], str]] = [
    truncate, duplicate_line, swap_lines, splice, indent, tag, bomb, nest, unquote,
]  # fmt: skip


def binary(rng: random.Random, data: bytes) -> bytes:
    """Junk, other encodings, and flipped bytes."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randint(0, 400))
    if kind == 1:
        return data.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"]))
    at = rng.randrange(len(data))
    if kind == 2:
        return data[:at] + rng.randbytes(3) + data[at:]
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def mutated(number: int, documents: list[dict[str, Any]]) -> tuple[str, bytes]:
    """The name and the bytes of file ``number``."""
    rng = random.Random(number)
    document = copy.deepcopy(rng.choice(documents))
    style = rng.choice(["values", "values", "values", "text", "text", "binary"])
    if style == "values":
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            paths = places(document)
            if paths:
                rng.choice(VALUE_MUTATIONS)(rng, document, rng.choice(paths))
    if rng.random() < 0.3:
        name, text = "scenario.json", json.dumps(document)
    else:
        flow = rng.choice([None, True, False])
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=flow)
        name = "scenario.yaml"
    if style == "text":
        text = rng.choice(TEXT_MUTATIONS)(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    return name, binary(rng, data) if style == "binary" else data


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the files are written: beside the template's fleet.csv, which some of them name."""
    made = tmp_path_factory.mktemp("mutated")
    write_template(made)
    return made


def refused(message: str) -> bool:
    """Whether a message is one printable line of a length that a person reads."""
    return message.isprintable() and 10 < len(message) < 700


def read(path: Path) -> tuple[Scenario | None, str]:
    """The scenario in a file, or why there is none."""
    try:
        return Scenario.load(path), ""
    except InputError as error:
        return None, str(error)


def check_planned(path: Path, scenario: Scenario) -> None:
    """The command's answer to a file that loads: a plan that keeps the budgets, or why there is none, in one line."""
    fewer = ["fleet.count=6"] if scenario.size > 12 else []  # a fleet of hundreds is planned elsewhere
    answer = fedgap("plan", path, *fewer, "--json")
    assert answer.code in (0, 2, 3), answer.err
    if answer.code:
        assert answer.err.startswith("fedgap: ")
        assert answer.err.endswith("\n")
        assert refused(answer.err.removesuffix("\n")), answer.err
    if answer.code == 2:
        assert answer.out == ""
        return
    document = json.loads(answer.out)
    assert (document["status"] == "infeasible") == (answer.code == 3)
    if answer.code == 3:
        assert answer.err == f"fedgap: {document['reason']}\n"
        assert document["segments"] == []
        return
    assert answer.err == ""
    planned, problem = Plan.from_dict(document), Problem.of(Scenario.load(path, fewer))
    if planned.objective == "forecast":  # the plan also chooses its number of rounds
        assert planned.rounds <= problem.rounds
        problem = problem.with_rounds(planned.rounds)
    assert problem.violation(planned.segments) <= 1e-6
    assert 0.0 <= planned.theta < float("inf")
    assert planned.theta == pytest.approx(problem.objective(planned.segments).theta, rel=1e-9)
    assert planned.lower_bound is None or planned.lower_bound <= planned.theta


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_plan_or_one_line(folder, chunk):
    documents = bases()
    loaded = bad = 0
    for number in range(chunk, FILES, CHUNKS):
        name, data = mutated(number, documents)
        path = folder / f"{chunk}-{name}"
        path.write_bytes(data)
        scenario, message = read(path)
        if scenario is None:
            assert refused(message), (number, message)
            bad += 1
            continue
        assert Scenario.from_dict(scenario.to_dict()) == scenario, number
        try:
            check_planned(path, scenario)
        except AssertionError as error:
            raise AssertionError(f"file {number}: {error}") from error
        loaded += 1
    assert bad > loaded
    assert loaded or not FULL  # fifteen files may all be bad, five hundred may not


def test_the_same_number_gives_the_same_file():
    documents = bases()
    assert mutated(7, documents) == mutated(7, documents)
    assert len({mutated(number, documents) for number in range(40)}) > 35
