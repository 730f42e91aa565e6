"""Write a document as YAML or JSON: one line a client, numbers that read back exactly."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgap.config.error_messages import shown
from fedgap.errors import InputError
from fedgap.files import write_text


def write_document(document: Mapping[str, Any], path: Path) -> Path:
    """Write to ``path``, whole or not at all; JSON where the path ends so, otherwise YAML."""
    as_json = path.suffix.lower() == ".json"
    text = json.dumps(document, indent=1) + "\n" if as_json else to_yaml(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be written ({error.strerror})") from None
    return path


def to_yaml(document: Mapping[str, Any]) -> str:
    """YAML with a line for each innermost mapping: a section, a client."""
    return "\n".join(_lines(document, "")) + "\n"


def _lines(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            yield f"{indent}{_key(key)}:"
            yield from (f"{indent}  - {_flow(item)}" for item in value)
        elif isinstance(value, Mapping) and any(isinstance(item, Mapping) for item in value.values()):
            yield f"{indent}{_key(key)}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_key(key)}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 readers take 1e-05 for a string; 1.0e-05 is a number to all.
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    plain = key.isidentifier() and key.isascii() and key.lower() not in ("null", "true", "false")
    return key if plain else json.dumps(key, ensure_ascii=False)
