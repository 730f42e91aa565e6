"""The dependency direction: each room of the house knows only the rooms before it, and needs only its own tools.

    errors, streams, registry, files, statistics ─► report ─► system ─► theory ─► rules ─► config ─┐
                                                 └─► learning ─────────────────────────┐           ▼
                                          evidence, deploy, doors ◄─ running ◄─────────┴─ planning ─► analysis

The doors are ``cli`` and ``web``: they read arguments, call the rooms before them and show the answer. They hold no
formula.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fedgap"


@dataclass(frozen=True)
class Room:
    knows: frozenset[str]
    """The rooms it may import from, beside itself."""
    needs: frozenset[str]
    """Third-party packages that importing it may import."""
    lazily: frozenset[str] = frozenset()
    """Third-party packages that it may import inside a function, when the need arises."""


def room(knows: str = "", needs: str = "", lazily: str = "") -> Room:
    return Room(frozenset(knows.split()), frozenset(needs.split()), frozenset(lazily.split()))


BASE = "arrays errors streams registry files statistics report upload_size"
PLANNING = f"{BASE} system theory rules config planning analysis"
ROOMS = {
    "arrays": room(needs="numpy"),
    "errors": room(),
    "streams": room(needs="numpy"),
    "registry": room("errors"),
    "files": room("errors"),
    "statistics": room(lazily="scipy"),
    "report": room("errors", lazily="matplotlib rich"),
    "upload_size": room(),
    "system": room(BASE, "numpy"),
    "theory": room(f"{BASE} system", "numpy scipy"),
    "rules": room(BASE, "numpy", lazily="scipy"),
    "config": room(f"{BASE} system theory", "numpy pydantic pydantic_core yaml"),
    "planning": room(f"{BASE} system theory rules config", "numpy scipy highspy", lazily="cvxpy rich"),
    "analysis": room(f"{BASE} system theory config planning", "numpy", lazily="matplotlib rich"),
    "learning": room(BASE, "numpy torch", lazily="mlxtend pooch matplotlib"),
    "running": room(
        f"{PLANNING} learning",
        "numpy torch safetensors yaml rich",
        lazily="matplotlib ray scipy cvxpy",
    ),
    "evidence": room(
        f"{PLANNING} learning running",
        "numpy torch scipy yaml rich safetensors",
        lazily="matplotlib pydantic",
    ),
    "deploy": room(
        f"{PLANNING} learning running",
        "numpy torch yaml rich safetensors flwr cryptography starlette",
        lazily="ray",
    ),
    "__init__": room(),
    "web": room(f"__init__ {PLANNING} learning running",
                "fastapi starlette uvicorn pydantic"),
    "cli": room(f"__init__ {PLANNING} learning running evidence deploy web",
                "typer rich"),
    "__main__": room("cli"),
}
GPU_KERNELS = {
    path.relative_to(PACKAGE).as_posix(): {"triton"} for path in (PACKAGE / "learning/engine/kernels").glob("*.py")
}
"""Modules that are imported on a GPU only, and what they need there."""


@dataclass(frozen=True)
class Import:
    where: str
    """The importing file and line."""
    room: str
    name: str
    """The imported module's full name."""
    lazy: bool
    """Inside a function."""
    typing: bool
    """Under ``if TYPE_CHECKING``: for the type checker alone."""

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    @property
    def target(self) -> str | None:
        """The room of fedgap that is imported, if any; ``__init__`` is the front door, which opens all of them."""
        parts = self.name.split(".")
        return (parts[1] if len(parts) > 1 else "__init__") if parts[0] == "fedgap" else None


def imports_of(path: Path) -> Iterator[Import]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    package = ["fedgap", *parts[:-1]]

    def names(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            return [f"fedgap.{alias.name}" for alias in node.names] if module == "fedgap" else [module]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            argument = node.args[0]
            return [argument.value] if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else []
        return []

    def walk(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        for name in names(node):
            yield Import(f"{path.relative_to(PACKAGE)}:{node.lineno}", parts[0], name, lazy, typing)  # type: ignore[attr-defined]
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy, typing or (guarded and child in node.body))  # type: ignore[attr-defined]

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), lazy=False, typing=False)


FRONT_DOOR = PACKAGE / "__init__.py"
"""Imports nothing until a name is asked for, and then any room's."""
IMPORTS = [found for path in sorted({*PACKAGE.rglob("*.py")} - {FRONT_DOOR}) for found in imports_of(path)]
DOORS = ("cli", "web")


def test_every_room_is_on_the_plan() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there <= set(ROOMS)
    assert {"errors", "streams", "system", "theory", "config", "planning", "learning", "running"} <= there


def test_the_plan_has_no_circle() -> None:
    seen: set[str] = set()
    for name, plan in ROOMS.items():
        assert plan.knows <= seen, f"{name} knows a room that is not before it"
        seen.add(name)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_knows_only_the_rooms_before_it(name: str) -> None:
    wrong = [
        f"{found.where} imports {found.name}"
        for found in IMPORTS
        if found.room == name and found.target is not None and found.target not in ROOMS[name].knows | {name}
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_needs_only_its_own_tools(name: str) -> None:
    ours = set(sys.stdlib_module_names) | {"fedgap"}
    wrong = [
        f"{found.where} imports {found.name} {'lazily' if found.lazy else 'at import'}"
        for found in IMPORTS
        if found.room == name
        and found.top not in ours | GPU_KERNELS.get(found.where.split(":")[0], set())
        and found.top not in ROOMS[name].needs | (ROOMS[name].lazily if found.lazy or found.typing else frozenset())
    ]
    assert not wrong, wrong


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"{{name}} is not on this machine", name=name)

sys.meta_path.insert(0, Absent())
import {modules}
"""


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("fedgap", "numpy scipy torch pydantic yaml cvxpy typer rich"),
        ("fedgap.statistics", "numpy scipy"),
        ("fedgap.evidence.redraw, fedgap.evidence.results", "torch safetensors mlxtend pooch matplotlib"),
        ("fedgap.system, fedgap.theory", "torch pydantic yaml cvxpy typer rich matplotlib safetensors"),
        ("fedgap.planning, fedgap.analysis", "torch scipy cvxpy typer rich matplotlib safetensors"),
        ("fedgap.learning.engine, fedgap.learning.data, fedgap.learning.partition, fedgap.learning.sizes",
         "scipy pydantic yaml cvxpy typer rich matplotlib safetensors mlxtend pooch triton"),
        ("fedgap.running.loop, fedgap.running.job, fedgap.running.ledger, fedgap.running.checkpoint, "
         "fedgap.running.ruled_steering, fedgap.rules.oort, fedgap.rules.fedzero, fedgap.evidence.bundle",
         "scipy pydantic cvxpy typer matplotlib mlxtend pooch ray triton"),
    ],
)  # fmt: skip
def test_imports_on_a_machine_without_the_other_rooms_tools(modules: str, absent: str) -> None:
    code = ABSENT.format(absent=set(absent.split()), modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- no circle between modules ---------------------------------------------------------------------------------------

def module_name(path: Path) -> str:
    parts = ["fedgap", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_graph() -> dict[str, set[str]]:
    """Each module with those it imports, whether at import, lazily or for the type checker.

    ``from fedgap.planning import plan`` is an import of the package, and so of whatever its ``__init__`` imports; from
    inside the package it is one of the submodule alone, where there is one of that name.
    """
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        if path == FRONT_DOOR:
            continue
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & modules.keys()
            elif isinstance(node, ast.ImportFrom) and node.module in modules:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= inner & modules.keys() or {node.module}
        graph[name] -= {name, "fedgap"}
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, todo = set(), [start]
        while todo:
            for target in graph.get(todo.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        reach[start] = seen
    return {frozenset({a} | {b for b in reach[a] if a in reach.get(b, ())}) for a in graph if a in reach[a]}


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {frozenset({"b", "c"})}


def test_no_circle_between_modules() -> None:
    assert circles(module_graph()) == set()


# --- one name, one thing ---------------------------------------------------------------------------------------------

def shared(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that occur more than once, and where."""
    places: dict[str, list[str]] = {}
    for name, path in names:
        places.setdefault(name, []).append(path.relative_to(PACKAGE).as_posix())
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_two_modules_share_a_name() -> None:
    assert shared((path.name, path) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py") == {}


def test_no_two_public_classes_share_a_name() -> None:
    classes = ((node.name, path) for path in PACKAGE.rglob("*.py")
               for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef))
    assert shared((name, path) for name, path in classes if not name.startswith("_")) == {}


# --- no formula in the doors -----------------------------------------------------------------------------------------

ARITHMETIC = {
    "cli/compare_command.py:_train": "the number of steps of a progress bar",
    "cli/compare_command.py:frontier": "the number of steps of a progress bar",
    "cli/reproduce_command.py:_hand_over": "seconds shown as hours",
    "cli/sweep_command.py:report": "counts runs",
    "cli/sweep_command.py:sweep": "counts runs",
    "web/plan_view.py:brief": "counts selected clients",
    "web/documents.py:check_plain": "counts the depth of nesting",
    "web/documents.py:with_table": "a limit on lines",
    "web/round_stream.py:follow": "seconds since the last event",
    "web/round_stream.py:_new": "positions in a file",
    "web/run_processes.py:process_of": "seconds since the last look",
    "web/runs.py:_free": "counts names",
    "web/runs.py:_walk": "counts the depth of folders",
    "web/security.py:__call__": "bytes shown as megabytes",
    "web/security.py:_read": "counts bytes",
}
"""Functions of the doors that calculate, and what; none of it is about plans, costs or bounds."""
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult)
TEXT = (ast.JoinedStr, ast.List, ast.ListComp, ast.Dict)
FOLDERS = {"folder", "root", "out", "parent", "_PROC"}
"""Names of folders, after which ``/`` joins a path."""
REDUCTIONS = {"sum", "fsum", "prod", "mean", "median", "cumsum", "dot", "sqrt", "log", "log10", "exp"}


def is_text(node: ast.AST) -> bool:
    """Whether an operator with this on one side joins texts, lists or paths."""
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("encode", "join", "format")
    if isinstance(node, (ast.Name, ast.Attribute)):
        return (node.id if isinstance(node, ast.Name) else node.attr) in FOLDERS
    return isinstance(node, TEXT) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def calculations(source: str) -> Iterator[tuple[str, int]]:
    """(function, line) of all arithmetic in a module, sums and the like included."""

    def calculates(node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            constant = isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)
            return isinstance(node.op, OPERATORS) and not is_text(node) and not constant
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, OPERATORS) and not is_text(node.value)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return name in REDUCTIONS
        return False

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, int]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if calculates(node):
            yield function, node.lineno  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(ast.parse(source), "")


def test_calculations_are_found() -> None:
    source = ("def f(a, b):\n  x = a.cost * b\n  y = 'text' + b\n  x += 1\n"
              "  return sum(x for x in a), a - b, [y] + b, 2**10, folder / b")
    assert sorted(calculations(source)) == [("f", 2), ("f", 4), ("f", 5), ("f", 5)]


def test_no_formula_in_the_doors() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}:{function}": line
        for door in DOORS for path in sorted((PACKAGE / door).rglob("*.py"))
        for function, line in calculations(path.read_text(encoding="utf-8"))
    }
    assert {where: line for where, line in found.items() if where not in ARITHMETIC} == {}
    assert set(ARITHMETIC) <= set(found), "these no longer calculate"


def test_the_doors_use_no_private_name_of_another_room() -> None:
    wrong = []
    for door in DOORS:
        for path in sorted((PACKAGE / door).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedgap."):
                    wrong += [f"{path.name}:{node.lineno} {alias.name}" for alias in node.names
                              if alias.name.startswith("_") and node.module.split(".")[1] != door]
    assert not wrong
