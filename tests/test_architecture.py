"""The dependency direction: each room of the house knows only the rooms before it, and needs only its own tools.

    errors, streams ─► system ─► theory ─► config ─► planning ─┐
                 └───► learning ───────────────────────────────┴─► running ─► cli
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
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


BASE = "errors streams registry upload_size"
ROOMS = {
    "errors": room(),
    "streams": room(needs="numpy"),
    "registry": room("errors"),
    "upload_size": room(),
    "system": room(BASE, "numpy"),
    "theory": room(f"{BASE} system", "numpy scipy"),
    "config": room(f"{BASE} system theory", "numpy pydantic pydantic_core yaml"),
    "planning": room(f"{BASE} system theory config", "numpy scipy", lazily="cvxpy"),
    "learning": room(BASE, "numpy torch", lazily="mlxtend pooch matplotlib"),
    "running": room(
        f"{BASE} system theory config planning learning",
        "numpy torch safetensors yaml rich",
        lazily="matplotlib ray scipy cvxpy",
    ),
    "evidence": room(
        f"{BASE} system theory config planning learning running",
        "numpy torch scipy yaml rich safetensors",
        lazily="matplotlib pydantic",
    ),
    "deploy": room(
        f"{BASE} system theory config planning learning running",
        "numpy torch yaml rich safetensors flwr cryptography starlette",
        lazily="ray",
    ),
    "__init__": room(),
    "web": room(
        f"__init__ {BASE} system theory config planning learning running",
        "numpy yaml fastapi starlette uvicorn pydantic plotly",
        lazily="torch matplotlib",
    ),
    "cli": room(
        f"__init__ {BASE} system theory config planning learning running evidence deploy web",
        "typer rich numpy",
        lazily="matplotlib yaml",
    ),
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
        ("fedgap.system, fedgap.theory", "torch pydantic yaml cvxpy typer rich matplotlib safetensors"),
        ("fedgap.planning", "torch cvxpy typer rich matplotlib safetensors"),
        ("fedgap.learning.engine, fedgap.learning.data, fedgap.learning.partition, fedgap.learning.sizes",
         "scipy pydantic yaml cvxpy typer rich matplotlib safetensors mlxtend pooch triton"),
        ("fedgap.running.loop, fedgap.running.job, fedgap.running.ledger, fedgap.running.checkpoint",
         "scipy pydantic cvxpy typer matplotlib mlxtend pooch ray triton"),
    ],
)  # fmt: skip
def test_imports_on_a_machine_without_the_other_rooms_tools(modules: str, absent: str) -> None:
    code = ABSENT.format(absent=set(absent.split()), modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
