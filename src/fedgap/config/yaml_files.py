"""Read YAML or JSON into plain Python values, and write documents."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedgap.config.error_messages import shown
from fedgap.errors import InputError
from fedgap.files import write_text

Value = Any
"""The values in a document: None, bool, int, float, str, and lists and dicts of these."""

MAX_BYTES = 50_000_000
MAX_DEPTH = 60
MAX_VALUES = 5_000_000

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Value] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"), ".NaN": float("nan"),
}
_CORE_TAG = "tag:yaml.org,2002:"
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_file(path: Path) -> str:
    """Read the text of a file; an :class:`InputError` says why it cannot be read."""
    try:
        if path.is_dir():
            raise InputError(f"{shown(path)}: is a folder; name a file")
        if not path.exists():
            raise InputError(f"{shown(path)}: no such file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # count while reading, because a pipe has no size and a device no end
        if len(data) > MAX_BYTES:
            raise InputError(f"{shown(path)}: is too large; at most {MAX_BYTES // 10**6} MB are read")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown(path)}: line {line}: is not UTF-8 text; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(path)}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def parse(text: str, source: str, *, as_json: bool = False) -> Value:
    """Parse a YAML or JSON text; ``source`` is its name in error messages."""
    return _parse_json(text, source) if as_json else _parse_yaml(text, source)


def _parse_json(text: str, source: str) -> Value:
    def mapping(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise InputError(f"{source}: the key {shown(twice)} is written twice; remove one of them")
        return result

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}: line {error.lineno}: is not JSON ({error.msg})") from None
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply; use fewer lists and objects inside one another") from None


def _parse_yaml(text: str, source: str) -> Value:
    if len(text) > MAX_BYTES:
        raise InputError(f"{source}: is too long; at most {MAX_BYTES // 10**6} million characters are read")
    try:
        loader = _StrictLoader(text, source)
        try:
            return loader.document()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = text.count("\n", 0, len(text.rstrip())) + 1  # PyYAML reports the end of the file one line too late
        where = f"line {min(mark.line + 1, last)}: " if mark is not None else ""
        problem = " ".join(str(error.problem).split())
        if mark is not None and re.match(r"\s*\t", (text.split("\n")[mark.line : mark.line + 1] or [""])[0]):
            problem = "it is indented with a tab; use spaces"
        raise InputError(f"{source}: {where}is not YAML ({problem})") from None
    except yaml.YAMLError as error:
        raise InputError(f"{source}: is not YAML ({str(error).splitlines()[0]})") from None
    except UnicodeEncodeError:
        raise InputError(f"{source}: is not YAML (it contains an invalid Unicode character)") from None


def _integer(digits: str) -> int | float:
    """Convert digits to an int, or to a float if there are more digits than Python converts to an int."""
    return int(digits) if len(digits) < 400 else float(digits)


def _plain(text: str) -> Value:
    """Return the value of an unquoted YAML scalar: a number, a truth value, None, or the text itself."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


class _StrictLoader(_SAFE_LOADER):  # type: ignore[misc]
    """PyYAML's safe loader with stricter rules.

    Tags and repeated keys are errors. Numbers follow YAML 1.2: ``1e5`` is a number, which PyYAML reads as a string.
    Nesting and aliases are limited, so that a hostile file cannot exhaust the stack or the memory.
    """

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self.anchored: dict[str, tuple[Value, int]] = {}
        """For each anchor its value, and the number of values inside it."""
        self.values = 0

    def fail(self, event: yaml.Event, problem: str) -> InputError:
        """Return an error that begins with the source and the line of ``event``."""
        line = event.start_mark.line + 1 if event.start_mark is not None else "?"
        return InputError(f"{self.source}: line {line}: {problem}")

    def count(self, event: yaml.Event, values: int) -> None:
        """Add to the number of values so far, and raise an error if there are too many."""
        self.values += values
        if self.values > MAX_VALUES:
            raise self.fail(event, f"has more than {MAX_VALUES:,} values, including those of aliases; use fewer")

    def document(self) -> Value:
        """Read the only document in the text and return its value."""
        self.get_event()  # the start of the stream
        if isinstance(self.get_event(), yaml.StreamEndEvent):
            return None
        value = self.value(self.get_event(), 0)
        self.get_event()  # the end of the document
        if not isinstance(event := self.get_event(), yaml.StreamEndEvent):
            raise self.fail(event, "a second YAML document begins; a file must have only one")
        return value

    def value(self, event: Any, depth: int) -> Value:
        """Read the value that begins with ``event``, at this depth of nesting, and return it."""
        before = self.values
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchored:
                raise self.fail(event, f"the alias {shown(event.anchor)} is not defined; write its anchor (&) first")
            value, size = self.anchored[event.anchor]
            self.count(event, size)
            return value
        self.count(event, 1)
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event)
        elif event.tag not in (None, "!", _CORE_TAG + "map", _CORE_TAG + "seq"):
            raise self.fail(event, f"the tag {shown(event.tag)} is not allowed; write a plain value")
        elif depth == MAX_DEPTH:
            raise self.fail(event, f"lists and mappings are nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.MappingStartEvent):
            value = self.mapping(depth + 1)
        else:
            value = []
            while not isinstance(item := self.get_event(), yaml.SequenceEndEvent):
                value.append(self.value(item, depth + 1))
        if event.anchor is not None:
            self.anchored[event.anchor] = (value, self.values - before)
        return value

    def scalar(self, event: yaml.ScalarEvent) -> Value:
        """Return the value of a number, text, truth value or null."""
        if event.tag is None:
            return _plain(event.value) if event.implicit[0] else event.value
        if event.tag in ("!", _CORE_TAG + "str"):
            return event.value
        if event.tag.removeprefix(_CORE_TAG) in ("int", "float", "bool", "null"):
            return _plain(event.value)
        raise self.fail(event, f"the tag {shown(event.tag)} is not allowed; write a plain value")

    def mapping(self, depth: int) -> dict[str, Value]:
        """Read a mapping and return it. Keys that it leaves out are taken from mappings after ``<<:``."""
        result: dict[str, Value] = {}
        merged: list[Value] = []
        while not isinstance(event := self.get_event(), yaml.MappingEndEvent):
            key = self.value(event, depth)
            if isinstance(key, (dict, list)):
                raise self.fail(event, "a key must be a word, not a list or a mapping")
            key = "" if key is None else str(key)
            if key in result:
                raise self.fail(event, f"the key {shown(key)} is written twice; remove one of them")
            event = self.get_event()
            value = self.value(event, depth)
            if value is None and getattr(event, "value", None) == "" and type(_plain(key)) in (int, float):
                # YAML reads {max_power_w: 1,5} as max_power_w: 1 and a key 5 without a value.
                raise self.fail(event, f"the key {shown(key)} is empty; write a decimal point: 1.5, not 1,5")
            if key == "<<":
                merged += value if isinstance(value, list) else [value]
                if not all(isinstance(other, dict) for other in merged):
                    raise self.fail(event, "'<<' must refer to a mapping or a list of mappings")
            else:
                result[key] = value
        for other in merged:
            for key, value in other.items():
                result.setdefault(key, value)
        return result


def write_document(document: Mapping[str, Any], path: Path) -> Path:
    """Write a document as JSON if ``path`` ends in ``.json``, otherwise as YAML; return ``path``."""
    as_json = path.suffix.lower() == ".json"
    return write_checked(path, json.dumps(document, indent=1) + "\n" if as_json else to_yaml(document))


def write_checked(path: Path, text: str) -> Path:
    """Write a text, create its folder if needed, and return ``path``.

    :raises InputError: says why it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be written ({error.strerror})") from None
    return path


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return the document as YAML. Each innermost mapping, such as a client, is one line; numbers read back exactly."""
    return "\n".join(yaml_lines(document, "")) + "\n"


def yaml_lines(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of :func:`to_yaml` for a mapping, with this indent."""
    for key, value in mapping.items():
        if is_listing(value):
            yield f"{indent}{_key(key)}:"
            yield from (f"{indent}  - {flow_text(item)}" for item in value)
        elif isinstance(value, Mapping) and any(isinstance(item, Mapping) for item in value.values()):
            yield f"{indent}{_key(key)}:"
            yield from yaml_lines(value, indent + "  ")
        else:
            yield f"{indent}{_key(key)}: {flow_text(value)}"


def is_listing(value: Any) -> bool:
    """Return whether a value is a list of mappings, which is written with one line per item."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def flow_text(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {flow_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 readers read 1e-05 as a string; 1.0e-05 is a number for all readers.
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    plain = key.isidentifier() and key.isascii() and key.lower() not in ("null", "true", "false")
    return key if plain else json.dumps(key, ensure_ascii=False)
