"""Where a document comes from: a file of the person's, or a preset that ships with the package."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fedgap.config.error_messages import shown
from fedgap.config.yaml_reader import Value, parse, read_file
from fedgap.errors import InputError, did_you_mean

PRESETS: Mapping[str, tuple[str, ...]] = {
    "scenario": ("paper-mnist", "paper-cifar10", "city"),
    "experiment": ("embedded", "mnist", "cifar10"),
}
"""The presets of each kind; each is a commented YAML file in ``presets/`` that a person can copy."""

_WITH_ARTICLE = {"scenario": "a scenario", "experiment": "an experiment", "plan": "a plan"}
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Source:
    """A document as it was read, before anything is checked."""

    value: Value
    label: str
    """What to call it in a message."""
    folder: Path
    """What the paths in it are relative to."""


def open_source(name: str | Path, kind: str) -> Source:
    """Read a file (by its path) or a preset (by its name) of this ``kind``: ``scenario`` or ``experiment``."""
    text = str(name)
    if isinstance(name, str) and text in PRESETS[kind]:
        return Source(parse(preset_text(text), f"preset {text}"), f"preset {text}", Path())
    path = Path(text)
    looks_like_path = path.suffix.lower() in _SUFFIXES or "/" in text or "\\" in text or isinstance(name, Path)
    if not looks_like_path and not exists(path):
        raise _unknown(text, kind)
    if path.suffix.lower() == ".csv" and path.is_file():
        line = f"clients: {path.name}" if kind == "scenario" else "scenario: FILE"
        raise InputError(f"{shown(path)}: is a CSV, which holds clients only; name {_WITH_ARTICLE[kind]} (with {line})")
    as_json = path.suffix.lower() == ".json"
    value = parse(read_file(path), shown(path), as_json=as_json)
    if isinstance(value, dict) and _kind(value) not in (kind, None):
        raise InputError(f"{shown(path)}: is {_WITH_ARTICLE[str(_kind(value))]}; name {_WITH_ARTICLE[kind]}")
    return Source(value, shown(path), path.parent)


def _kind(document: dict[str, Value]) -> str | None:
    """What a document's keys say it is, where they do."""
    if "segments" in document and "theta" in document:
        return "plan"
    if "clients" in document or "fleet" in document:
        return "scenario"
    return "experiment" if "scenario" in document else None


def preset_text(name: str) -> str:
    """The text of a preset's file, comments and all."""
    return resources.files("fedgap.config").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; a name that no file can have is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _unknown(name: str, kind: str) -> InputError:
    for other, names in PRESETS.items():
        if name in names and other != kind:
            own = ", ".join(PRESETS[kind])
            return InputError(f"{shown(name)}: is a preset of the kind {other}; those of the kind {kind}: {own}")
    hint = did_you_mean(name, PRESETS[kind]) or f"; presets: {', '.join(PRESETS[kind])}"
    return InputError(f"{shown(name)}: is no file and no {kind} preset{hint}")
