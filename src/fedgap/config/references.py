"""What an experiment points to: its scenario, and files that lie beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgap.config.document_source import PRESETS, Source, exists, open_source
from fedgap.config.overrides import Override
from fedgap.config.scenario_resolution import Resolved, resolve
from fedgap.errors import InputError


def open_scenario(reference: str | dict[str, Any], folder: Path, overrides: Sequence[Override]) -> Resolved:
    """What an experiment's ``scenario`` refers to."""
    if isinstance(reference, dict):
        found = Source(reference, "scenario", folder)
    else:
        near = folder / reference
        is_preset = reference in PRESETS["scenario"]
        try:
            found = open_source(near if exists(near) and not is_preset else reference, "scenario")
        except InputError as error:
            raise InputError(f"scenario: {error}") from None
    try:
        return resolve(found.value, found.label, found.folder, overrides)
    except InputError as error:
        raise error if str(error).startswith("override ") else InputError(f"scenario.{error}") from None


def beside(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The document with paths that lie beside its file made to work from anywhere."""
    for section, key in (("data", "folder"), ("data", "name"), ("partition", "file")):
        written = document.get(section)
        path = written.get(key) if isinstance(written, dict) else None
        if key == "name" and not str(path).endswith(".npz"):
            continue
        if isinstance(path, str) and exists(folder / path):
            document = document | {section: {**document[section], key: str((folder / path).resolve())}}
    return document
