"""Scenarios that a browser sends: they are checked, limited in size, and cannot name files of this machine."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgap.config import Client, Scenario, preset_text
from fedgap.config.error_messages import shown
from fedgap.config.fleet_csv import HISTOGRAMS
from fedgap.config.overrides import Override, apply, parse_overrides
from fedgap.config.yaml_files import parse, to_yaml
from fedgap.errors import InputError

MOST_CLIENTS = 1000
"""Maximum number of clients on the page; larger fleets are planned on the command line."""
MOST_CLASSES = 1000
MOST_DEPTH = 40


def parse_yaml(text: str, label: str = "scenario") -> dict[str, Any]:
    """The mapping in a YAML (or JSON) text; ``label`` begins the error message."""
    value = parse(text, label)
    if not isinstance(value, dict):
        raise InputError(f"{label}: must be a mapping of keys such as rounds and clients; got {shown(value)}")
    return value


def preset(name: str) -> dict[str, Any]:
    """The scenario of a preset, as a mapping."""
    return parse_yaml(preset_text(name), f"preset {name}")


def open_scenario(document: Mapping[str, Any], overrides: Sequence[str]) -> Scenario:
    """Check a document with its overrides and return the scenario that the page shows.

    :raises InputError: also if the document is too deep or too large, or names a file."""
    check_plain(document)
    parsed = parse_overrides(overrides)
    _check_before_drawing(document, parsed)
    scenario = Scenario.from_dict(document, parsed)
    if scenario.size > MOST_CLIENTS:
        raise InputError(f"fleet: the studio shows up to {MOST_CLIENTS} clients; plan larger fleets with `fedgap plan`")
    return scenario


def with_table(document: Mapping[str, Any], overrides: Sequence[str], table: str) -> Scenario:
    """The scenario with its clients replaced by those of a CSV text."""
    check_plain(document)
    if table.count("\n") > 2 * MOST_CLIENTS:
        raise InputError(f"fleet.csv: has too many lines; the studio shows up to {MOST_CLIENTS} clients")
    parsed = [o for o in parse_overrides(overrides) if o.path[0] not in ("clients", "labels", "fleet")]
    _check_before_drawing(document, parsed)
    kept = {key: value for key, value in document.items() if key not in ("fleet", "labels", "clients")}
    if "label_counts" not in table.partition("\n")[0]:
        kept.pop("target_counts", None)
    elif "target_counts" not in kept and isinstance(document.get("labels"), dict):
        kept["target_counts"] = open_scenario(document, overrides).to_dict()["target_counts"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fleet.csv").write_text(table, encoding="utf-8")
        try:
            scenario = Scenario.from_dict(kept | {"clients": "fleet.csv"}, parsed, folder)
            return open_scenario(listed(scenario), [])
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}/", "")) from None


def listed(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a document that lists its clients; its mode is kept."""
    resolved = scenario.to_dict()
    document = {key: value for key, value in scenario.document().items() if key not in ("fleet", "labels", "seed")}
    return document | {key: resolved[key] for key in ("clients", "target_counts") if key in resolved}


def to_csv(scenario: Scenario) -> str:
    """The fleet as CSV: one row per client, one column for each key that any client has; lists are written as
    ``12;0;7``."""
    clients = scenario.to_dict()["clients"]
    columns = [key for key in Client.model_fields if any(key in client for client in clients)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for client in clients:
        writer.writerow([_cell(key, client.get(key)) for key in columns])
    return text.getvalue()


def to_text(scenario: Scenario) -> str:
    """The scenario as YAML, as it was written, with the overrides applied."""
    return to_yaml({"format": 1} | scenario.document())


def check_plain(document: Any) -> None:
    """Raise an InputError for very deep nesting, and for text that is not valid Unicode. This does not recurse."""
    todo: list[tuple[Any, int]] = [(document, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > MOST_DEPTH:
            raise InputError(f"document: must be nested at most {MOST_DEPTH} levels deep")
        if isinstance(value, Mapping):
            todo += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, (list, tuple)):
            todo += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise InputError("document: must be valid Unicode; it has half of a surrogate pair") from None


def _check_before_drawing(document: Mapping[str, Any], overrides: Sequence[Override]) -> None:
    """Limit the size to which a recipe would expand, and refuse documents that name files or code of this machine."""
    changed = apply(dict(document), [o for o in overrides if o.path[0] != "clients" or len(o.path) == 1])
    clients = changed.get("clients")
    if isinstance(clients, str):
        raise InputError("clients: the studio cannot read a file that a scenario names; upload the CSV file itself")
    fleet = changed.get("fleet")
    if isinstance(fleet, dict) and ":" in str(fleet.get("kind")):
        raise InputError("fleet.kind: the studio accepts only the names of installed fleets; for package.module:NAME "
                         "use `fedgap plan`")
    world = changed.get("world")
    if isinstance(world, dict) and world.get("trace") is not None:
        raise InputError("world.trace: the studio cannot read a file that a scenario names; use `fedgap train` instead")
    sizes: list[tuple[str, float, int]] = [("clients", len(clients) if isinstance(clients, list) else 0, MOST_CLIENTS)]
    for section, key, most in (("fleet", "count", MOST_CLIENTS), ("labels", "classes", MOST_CLASSES)):
        written = changed.get(section)
        value = written.get(key) if isinstance(written, dict) else None
        try:
            sizes.append((f"{section}.{key}", float(value or 0), most))
        except (TypeError, ValueError, OverflowError):
            continue  # not a number; the check of the scenario reports that
    for key, size, most in sizes:
        if size > most:
            raise InputError(f"{key}: the studio shows up to {most}; plan larger fleets with `fedgap plan`")


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key in HISTOGRAMS:
        return ";".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
