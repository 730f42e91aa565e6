"""Overrides, such as ``budget.delay_s=120`` on the command line: parse them, and apply them to a document."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgap.config.error_messages import key_path, shown
from fedgap.config.yaml_files import Value, parse
from fedgap.errors import InputError

_PART = re.compile(r"[^.\[\]\s=]+|\[[0-9]+\]")


@dataclass(frozen=True)
class Override:
    """One override: the path of a key, its new value, and the text as it was written."""

    path: tuple[str | int, ...]
    value: Value
    text: str

    def fail(self, problem: str) -> InputError:
        """Return the error for an override that cannot be applied."""
        return InputError(f"override {shown(self.text, 100)}: {problem}")


def parse_override(text: str) -> Override:
    """Parse an override such as ``clients[3].phi=4`` or ``clients.3.phi=4``.

    The value is read as YAML. An empty value removes the key.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    failed = Override((), None, text)
    if not equals:
        raise failed.fail("has no '='; write key.path=value")
    pieces = _PART.findall(name)
    plain = name.replace("[", ".[")
    if not pieces or ".".join(pieces) != plain:
        raise failed.fail(f"{shown(name)} is not a key path; write e.g. budget.delay_s=120 or clients[3].phi=4")
    path = tuple(_part(piece, first=position == 0) for position, piece in enumerate(pieces))
    return Override(path, parse(value, f"override {shown(text, 100)}"), text)


def _part(piece: str, *, first: bool) -> str | int:
    digits = piece[1:-1] if piece.startswith("[") else piece
    if not first and digits.isascii() and digits.isdigit() and len(digits) < 10:
        return int(digits)
    return piece


def parse_overrides(texts: Iterable[str | Override]) -> list[Override]:
    """Parse the texts in order; an :class:`Override` among them is returned as it is."""
    if isinstance(texts, str):
        raise TypeError("overrides must be a list of 'key=value' texts, not one text")
    return [text if isinstance(text, Override) else parse_override(text) for text in texts]


def apply(document: Value, overrides: Sequence[Override]) -> Value:
    """Return a copy of the document with the overrides applied."""
    for override in overrides:
        document = _put(document, override, 0)
    return document


def _put(here: Value, override: Override, depth: int) -> Value:
    """Return ``here``, the value at the first ``depth`` parts of the path, with the override applied below it.

    Only the lists and dicts along the path are copied.
    """
    if depth == len(override.path):
        return override.value
    part = override.path[depth]
    above = key_path(override.path[:depth])
    if isinstance(here, list):
        if not isinstance(part, int):
            raise override.fail(f"{above} is a list; write the entry's number, such as {above}[0]")
        if part >= len(here):
            raise override.fail(f"{above} has {len(here)} entries; use [0] to [{len(here) - 1}]")
        return [*here[:part], _put(here[part], override, depth + 1), *here[part + 1 :]]
    if here is None:
        here = {}
    if not isinstance(here, dict):
        raise override.fail(f"{above} is {shown(here)}, which has no keys of its own; write {above}=value")
    if isinstance(part, int):
        raise override.fail(f"{above or 'the document'} is not a list; write a key instead of [{part}]")
    if depth + 1 == len(override.path) and override.value is None:
        return {key: value for key, value in here.items() if key != part}
    return {**here, part: _put(here.get(part), override, depth + 1)}


def blame(error: InputError, overrides: Sequence[Override]) -> InputError:
    """Return the error; if an override set the value that is wrong, with the text of that override."""
    message = str(error)
    if message.startswith("override "):
        return error
    path, _, problem = message.partition(": ")
    for override in reversed(overrides):
        written = key_path(override.path)
        inside = path == written or path.startswith((written + ".", written + "["))
        if inside or (problem.startswith("unknown key") and written.startswith(path + ".")):
            return InputError(f"{message} (override {shown(override.text, 100)})")
    return error
