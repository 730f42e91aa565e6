"""Read a YAML or JSON text into plain Python values, and nothing else.

The YAML parser's events are turned into dicts, lists and scalars here, by hand, for four reasons: no tag can construct
an object; a key written twice is an error; numbers follow YAML 1.2 (``1e5`` is a number, in PyYAML it is a string); and
nesting and aliases are bounded, so that a hostile file costs neither the stack nor the memory.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from fedgap.config.error_messages import shown
from fedgap.errors import InputError

Value = Any
"""What a document may hold: None, bool, int, float, str, list and dict of these."""

MAX_BYTES = 50_000_000
MAX_DEPTH = 60
MAX_VALUES = 5_000_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Value] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"), ".NaN": float("nan"),
}
_CORE_TAG = "tag:yaml.org,2002:"
_OPEN = object()


def read_file(path: Path) -> str:
    """The text of a file a person named, or one line that says why not."""
    try:
        if path.is_dir():
            raise InputError(f"{shown(path)}: is a folder; name a file")
        if not path.exists():
            raise InputError(f"{shown(path)}: no such file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # not the file's size, for a pipe has none and a device no end
        if len(data) > MAX_BYTES:
            raise InputError(f"{shown(path)}: is too large; at most {MAX_BYTES // 10**6} MB are read")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown(path)}: line {line}: is not UTF-8 text; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(path)}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def parse(text: str, source: str, *, as_json: bool = False) -> Value:
    """The value that ``text`` writes; ``source`` names it in errors."""
    return _parse_json(text, source) if as_json else _parse_yaml(text, source)


def _parse_json(text: str, source: str) -> Value:
    def mapping(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise InputError(f"{source}: the key {shown(twice)} is written twice")
        return result

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}: line {error.lineno}: is not JSON ({error.msg})") from None
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply") from None


def _parse_yaml(text: str, source: str) -> Value:
    if len(text) > MAX_BYTES:
        raise InputError(f"{source}: too long")
    try:
        return _Builder(source).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = text.count("\n", 0, len(text.rstrip())) + 1  # the end of the file is reported a line too far
        where = f"line {min(mark.line + 1, last)}: " if mark is not None else ""
        problem = " ".join(str(error.problem).split())
        if mark is not None and "\t" in _indentation(text, mark.line):
            problem = "a tab indents it; indent by spaces"
        raise InputError(f"{source}: {where}is not YAML ({problem})") from None
    except yaml.YAMLError as error:
        raise InputError(f"{source}: is not YAML ({str(error).splitlines()[0]})") from None
    except UnicodeEncodeError:
        raise InputError(f"{source}: is not YAML (it holds half of a surrogate pair)") from None


def _indentation(text: str, line: int) -> str:
    """What stands before the first word of a line, counted from 0."""
    written = text.split("\n")[line : line + 1] or [""]
    return written[0][: len(written[0]) - len(written[0].lstrip())]


def _integer(digits: str) -> int | float:
    """An int, or a float where the digits are too many to be meant (Python limits their length)."""
    return int(digits) if len(digits) < 400 else float(digits)


def _plain(text: str) -> Value:
    """The value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


class _Builder:
    """Builds the value from parser events, without recursion."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.anchors: dict[str, tuple[Value, int]] = {}
        self.stack: list[tuple[Value, str | None, int]] = []
        """Open collections: the dict or list, its anchor, and the number of values before it."""
        self.keys: list[Value] = []
        """For each open collection: the key that waits for its value, or ``_OPEN``."""
        self.merges: list[list[dict[str, Value]]] = []
        self.values = 0
        self.root: Value = None
        self.documents = 0

    def fail(self, event: yaml.Event, problem: str) -> InputError:
        line = event.start_mark.line + 1 if event.start_mark is not None else "?"
        return InputError(f"{self.source}: line {line}: {problem}")

    def build(self, events: Iterator[yaml.Event]) -> Value:
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self.scalar(event)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self.open(event)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self.close(event)
            elif isinstance(event, yaml.AliasEvent):
                self.alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise self.fail(event, "a second YAML document begins; one is enough")
        return self.root

    def scalar(self, event: yaml.ScalarEvent) -> None:
        tag = event.tag
        if tag is None:
            value = _plain(event.value) if event.implicit[0] else event.value
        elif tag in ("!", _CORE_TAG + "str"):
            value = event.value
        elif tag.removeprefix(_CORE_TAG) in ("int", "float", "bool", "null"):
            value = _plain(event.value)
        else:
            raise self.fail(event, f"the tag {shown(tag)} is not read; write plain values")
        if self.stack and value is None and event.value == "" and type(_plain(str(self.keys[-1]))) in (int, float):
            number = shown(self.keys[-1])  # {max_power_w: 1,5} is 1, and a key 5 that holds nothing
            raise self.fail(event, f"the key {number} holds nothing; a decimal sign is a point: 1.5, not 1,5")
        self.count(event, 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self.add(event, value)

    def open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        if event.tag is not None and event.tag not in ("!", _CORE_TAG + "map", _CORE_TAG + "seq"):
            raise self.fail(event, f"the tag {shown(event.tag)} is not read; write plain values")
        if len(self.stack) >= MAX_DEPTH:
            raise self.fail(event, f"is nested more than {MAX_DEPTH} deep")
        self.stack.append(({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor, self.values))
        self.keys.append(_OPEN)
        self.merges.append([])
        self.count(event, 1)

    def close(self, event: yaml.Event) -> None:
        value, anchor, before = self.stack.pop()
        self.keys.pop()
        merged = self.merges.pop()
        for other in merged:
            for key, item in other.items():
                value.setdefault(key, item)
        if anchor is not None:
            self.anchors[anchor] = (value, self.values - before)
        self.add(event, value)

    def alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor is None or event.anchor not in self.anchors:
            raise self.fail(event, f"the alias {shown(event.anchor)} has no anchor before it")
        value, size = self.anchors[event.anchor]
        self.count(event, size)
        self.add(event, value)

    def count(self, event: yaml.Event, size: int) -> None:
        self.values += size
        if self.values > MAX_VALUES:
            raise self.fail(event, f"expands to more than {MAX_VALUES} values")

    def add(self, event: yaml.Event, value: Value) -> None:
        """Put a finished value into the innermost open collection."""
        if not self.stack:
            self.root = value
            return
        parent = self.stack[-1][0]
        if isinstance(parent, list):
            parent.append(value)
        elif self.keys[-1] is _OPEN:
            if isinstance(value, (dict, list)):
                raise self.fail(event, "a key must be a word")
            key = value if isinstance(value, str) else "" if value is None else str(value)
            if key in parent:
                raise self.fail(event, f"the key {shown(key)} is written twice")
            self.keys[-1] = key
        else:
            key, self.keys[-1] = self.keys[-1], _OPEN
            if key == "<<":
                self.merge(event, value)
            else:
                parent[key] = value

    def merge(self, event: yaml.Event, value: Value) -> None:
        """``<<: *defaults``: the merged keys stand behind those written in the mapping itself."""
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise self.fail(event, "'<<' merges mappings only")
        self.merges[-1].extend(sources)
