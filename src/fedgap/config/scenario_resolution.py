"""From what a person wrote to what is planned with: overrides, CSV or recipe, label counts, mode."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from fedgap.config import error_messages, mode_defaults
from fedgap.config.checked_fields import Number, count
from fedgap.config.error_messages import shown
from fedgap.config.fleet_csv import Table, read_clients
from fedgap.config.fleet_drawing import draw_fleet, draw_labels
from fedgap.config.fleet_recipes import Labels, read_recipe
from fedgap.config.overrides import Override, apply
from fedgap.errors import InputError, did_you_mean

Document = dict[str, Any]


@error_messages.register
class Shorthand(BaseModel):
    """The keys of a scenario file that are resolved away when it is loaded."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    format: Annotated[int, Number(at_least=1, at_most=1, whole=True, reason="the only format there is")] = 1
    """The version of the file format."""
    mode: mode_defaults.Mode | None = None
    """Defaults for the readings left out: as_printed, or repaired."""
    seed: Annotated[int, count("a seed is not negative", at_least=0, limit=2**53)] = 0
    """The root seed of the recipes."""
    labels: Labels | None = None
    """A recipe for the clients' label histograms."""


DOCUMENT_KEYS = ("format", "mode", "seed", "labels", "fleet")
"""The keys of a scenario file that a resolved scenario has no more."""


@dataclass(frozen=True)
class Resolved:
    """A scenario on its way from the file to the model."""

    document: Document
    """What was written, overrides included."""
    scenario: Document
    """The explicit scenario that it stands for, not yet range-checked."""
    table: Table | None
    """The CSV that the clients came from."""

    def locate(self, error: InputError) -> InputError:
        """The same error with the CSV's line, where it is about a client that came from one."""
        found = re.match(r"clients\[(\d+)\]", str(error))
        if self.table is None or found is None:
            return error
        return InputError(f"{error} ({shown(self.table.path)} line {self.table.lines[int(found[1])]})")


def resolve(written: Any, label: str, folder: Path, overrides: Sequence[Override]) -> Resolved:
    """Overrides, clients, label histograms and readings, in this order.

    :param written: what the file held; :param label: what to call it in a message;
    :param folder: what a CSV's path is relative to.
    """
    if not isinstance(written, Mapping):
        raise InputError(f"{label}: must be a mapping of keys such as rounds and clients; got {shown(written)}")
    # A single client of a recipe or a CSV can be named only once there are clients.
    expands = not isinstance(written.get("clients"), list)
    late = [o for o in overrides if expands and o.path[0] == "clients" and len(o.path) > 1]
    document = stripped(apply(dict(written), [o for o in overrides if o not in late]))
    try:
        shorthand = Shorthand.model_validate(document)
    except ValidationError as error:
        raise error_messages.first_error(error, document) from None
    clients, table = _clients(document, shorthand.seed, folder)
    scenario = {key: item for key, item in document.items() if key not in DOCUMENT_KEYS} | {"clients": clients}
    if shorthand.labels is not None:
        scenario.setdefault("target_counts", draw_labels(shorthand.labels, shorthand.seed, clients))
    if table is not None:
        document = document | {"clients": table.clients}
    if late:
        scenario = stripped(apply(scenario, late))
        document = {key: item for key, item in document.items() if key not in ("fleet", "labels")}
        document |= {key: scenario[key] for key in ("clients", "target_counts") if key in scenario}
    _fill_defaults(scenario)
    _fill_readings(scenario, shorthand.mode)
    return Resolved(document, scenario, table)


def with_histograms(
    resolved: Resolved,
    label_counts: npt.ArrayLike,
    target_counts: npt.ArrayLike,
    client_target_counts: npt.ArrayLike | None = None,
) -> Document:
    """The document with its clients listed, and the histograms of a real partition instead of φ and what was there.

    :param label_counts: training samples, shape (N, classes); :param target_counts: of the target set, (classes,);
    :param client_target_counts: of each client's own target set, (N, classes), where they have one.
    """
    clients = resolved.scenario["clients"]
    rows = np.asarray(label_counts).tolist()
    own = [None] * len(rows) if client_target_counts is None else np.asarray(client_target_counts).tolist()
    if not len(rows) == len(own) == len(clients):
        raise InputError(f"label_counts: has {len(rows)} rows for {len(clients)} clients; one row a client")
    listed = [
        {**client, "phi": None, "label_counts": row, "target_counts": target}
        for client, row, target in zip(clients, rows, own)
    ]
    changed = {"clients": listed, "fleet": None, "labels": None, "target_counts": np.asarray(target_counts).tolist()}
    return resolved.document | changed


def plain(value: Any) -> Any:
    """The value with nothing but dicts, lists and scalars in it; arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def stripped(value: Any) -> Any:
    """The value without the keys that hold nothing: a key with null is a key left out.

    A key that no file has stays, to be refused: whoever wrote ``delay: `` meant something by it.
    """
    return _stripped(value, error_messages.KEYS.union(DOCUMENT_KEYS))


def _stripped(value: Any, known: set[str] | None) -> Any:
    if isinstance(value, dict):
        return {
            key: _stripped(item, None if key == "arguments" else known)
            for key, item in value.items()
            if item is not None or (known is not None and key not in known)
        }
    if isinstance(value, list):
        return [_stripped(item, known) for item in value]
    return value


def _clients(document: Document, seed: int, folder: Path) -> tuple[list[Any], Table | None]:
    """The clients as mappings, from the list, the CSV or the recipe; copies, so that they may be filled in."""
    written, recipe = document.get("clients"), document.get("fleet")
    if written is not None and recipe is not None:
        raise InputError("fleet: a scenario has either clients or fleet, not both")
    if recipe is not None:
        return draw_fleet(read_recipe(recipe), seed), None
    table = read_clients(written, folder) if isinstance(written, str) else None
    if table is not None:
        written = table.clients
    if written is None:
        for key in document:
            if key not in error_messages.KEYS and did_you_mean(key, ("clients", "fleet")):
                raise InputError(error_messages.unknown_key((key,), ("clients", "fleet")))
        raise InputError("clients: missing; list them, name a CSV file, or give a recipe under fleet")
    if not isinstance(written, list):
        raise InputError(f"clients: must be a list of clients, or the name of a CSV file; got {shown(written)}")
    return [dict(item) if isinstance(item, dict) else item for item in written], table


def _fill_defaults(resolved: Document) -> None:
    """Downlink gain = uplink gain, and the whole band for the broadcast, where they are left out."""
    clients = resolved["clients"]
    for client in clients:
        if isinstance(client, dict) and "uplink_gain" in client:
            client.setdefault("downlink_gain", client["uplink_gain"])
    server = resolved.get("server")
    if isinstance(server, dict) and "bandwidth_hz" not in server:
        try:
            whole_band = sum(float(client["bandwidth_hz"]) for client in clients)
        except (KeyError, TypeError, ValueError, OverflowError):
            whole_band = 1.0  # some client's bandwidth is no number, which its own check will say
        resolved["server"] = server | {"bandwidth_hz": whole_band if 0.0 < whole_band < 1e30 else 1.0}


def _fill_readings(resolved: Document, mode: mode_defaults.Mode | None) -> None:
    """The mode's readings for the keys left out; without a mode, only where γ₂·R comes from."""
    clients, bound = resolved["clients"], resolved.get("bound")
    secant_known = isinstance(bound, dict) and "pruning_sensitivity" in bound
    readings: dict[str, Any] = {"sensitivity": "secant"} if secant_known else {}
    if mode is not None:
        counts_known = "target_counts" in resolved and all(
            isinstance(client, dict) and "label_counts" in client for client in clients
        )
        readings = mode_defaults.mode_readings(
            mode, clients=len(clients), counts_known=counts_known, secant_known=secant_known
        )
    for name, (section, key) in mode_defaults.PLANNING_KEYS.items():
        if name in readings and isinstance(resolved.get(section), dict):
            resolved[section] = {**resolved[section]}
            resolved[section].setdefault(key, readings[name])
