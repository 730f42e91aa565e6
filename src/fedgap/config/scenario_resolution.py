"""Turn the content of a scenario file into a complete scenario.

Overrides are applied, the clients are read from the CSV or drawn by the recipe, and label histograms and the defaults
of the mode are filled in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, ValidationError

from fedgap.config import error_messages, mode_defaults
from fedgap.config.checked_fields import Format, Seed
from fedgap.config.document import SHORTHAND_KEYS, Section, Written, stripped
from fedgap.config.error_messages import shown
from fedgap.config.fleet_csv import read_clients
from fedgap.config.fleet_recipes import Labels, draw_fleet, draw_labels
from fedgap.config.overrides import Override, apply
from fedgap.errors import InputError, did_you_mean
from fedgap.registry import FLEETS

Document = dict[str, Any]


@error_messages.register
class Shorthand(Section):
    """Keys of a scenario file that are replaced by other keys when it is loaded."""

    model_config = ConfigDict(extra="ignore")

    format: Format = 1
    """The version of the file format."""
    mode: mode_defaults.Mode | None = None
    """Which defaults are used for keys that are left out: as_printed (the paper literally), repaired (the paper
    corrected), or practical (for training a good model)."""
    seed: Seed = 0
    """Seed from which recipes draw clients and labels."""
    labels: Labels | None = None
    """A recipe for the clients' label histograms."""


@dataclass(frozen=True)
class Resolved:
    """A scenario while it is being loaded."""

    document: Document
    """The file's content with overrides applied."""
    scenario: Document
    """The scenario with its clients listed and without :class:`Shorthand` keys. Its values are not checked yet."""
    origins: Sequence[str]
    """Where each client comes from, for error messages: a line of a CSV or a function. Empty if the file lists them."""
    written: Written
    """The document as it was read."""

    def locate(self, error: InputError) -> InputError:
        """Return the error; if it is about a client, with the place where that client comes from."""
        match = re.match(r"clients\[(\d+)\]", str(error))
        return InputError(f"{error} ({self.origins[int(match[1])]})") if match and self.origins else error


def resolve(written: Written, overrides: Sequence[Override]) -> Resolved:
    """Apply the overrides, list the clients, and fill in label histograms and the defaults of the mode."""
    if not isinstance(written.value, Mapping):
        raise InputError(
            f"{written.label}: must be a mapping of keys such as rounds and clients; got {shown(written.value)}"
        )
    # Overrides of single clients must wait until the clients of a recipe or a CSV are listed.
    expands = not isinstance(written.value.get("clients"), list)
    late = [o for o in overrides if expands and o.path[0] == "clients" and len(o.path) > 1]
    document = stripped(apply(dict(written.value), [o for o in overrides if o not in late]))
    try:
        shorthand = Shorthand.model_validate(document)
    except ValidationError as error:
        raise error_messages.first_error(error, document) from None
    clients, origins = _clients(document, shorthand.seed, written.folder)
    if isinstance(document.get("clients"), str):
        document = document | {"clients": clients}
    clients = [dict(client) if isinstance(client, dict) else client for client in clients]  # copies, changed below
    scenario = {key: item for key, item in document.items() if key not in SHORTHAND_KEYS} | {"clients": clients}
    if shorthand.labels is not None:
        scenario.setdefault("target_counts", draw_labels(shorthand.labels, shorthand.seed, clients))
    if late:
        scenario = stripped(apply(scenario, late))
        document = {key: item for key, item in document.items() if key not in ("fleet", "labels")}
        document |= {key: scenario[key] for key in ("clients", "target_counts") if key in scenario}
    _fill_defaults(scenario)
    _fill_readings(scenario, shorthand.mode)
    return Resolved(document, scenario, origins, written)


def with_histograms(
    resolved: Resolved,
    label_counts: npt.ArrayLike,
    target_counts: npt.ArrayLike,
    client_target_counts: npt.ArrayLike | None = None,
) -> Document:
    """Return the document with its clients listed, and with the label histograms of a real partition instead of φ.

    The parameters are those of :meth:`fedgap.Scenario.with_labels`.
    """
    clients = resolved.scenario["clients"]
    rows = np.asarray(label_counts).tolist()
    targets = [None] * len(rows) if client_target_counts is None else np.asarray(client_target_counts).tolist()
    if not len(rows) == len(targets) == len(clients):
        raise InputError(f"label_counts: must have one row per client, {len(clients)}; got {len(rows)}")
    listed = [
        {**client, "phi": None, "label_counts": row, "target_counts": target}
        for client, row, target in zip(clients, rows, targets)
    ]
    changed = {"clients": listed, "fleet": None, "labels": None, "target_counts": np.asarray(target_counts).tolist()}
    return resolved.document | changed


def _clients(document: Document, seed: int, folder: Path) -> tuple[list[Any], Sequence[str]]:
    """Return the clients from the list, the CSV or the recipe, and :attr:`Resolved.origins`."""
    written, recipe = document.get("clients"), document.get("fleet")
    if written is not None and recipe is not None:
        raise InputError("fleet: must be left out if clients is given; a scenario has only one of them")
    if recipe is not None:
        clients = draw_fleet(recipe, seed)
        kind = recipe["kind"]
        return clients, () if kind in FLEETS.built_in else [f"drawn by {kind}"] * len(clients)
    if isinstance(written, str):
        return read_clients(written, folder)
    if written is None:
        for key in document:
            if key not in error_messages.KEYS and did_you_mean(key, ("clients", "fleet")):
                raise InputError(error_messages.unknown_key((key,), ("clients", "fleet")))
        raise InputError("clients: missing; list them, name a CSV file, or give a recipe under fleet")
    if not isinstance(written, list):
        raise InputError(f"clients: must be a list of clients, or the name of a CSV file; got {shown(written)}")
    return written, ()


def _fill_defaults(resolved: Document) -> None:
    """Fill in missing downlink gains (the uplink's) and the server's bandwidth (the sum of the clients')."""
    clients = resolved["clients"]
    for client in clients:
        if isinstance(client, dict) and "uplink_gain" in client:
            client.setdefault("downlink_gain", client["uplink_gain"])
    server = resolved.get("server")
    if isinstance(server, dict) and "bandwidth_hz" not in server:
        try:
            whole_band = sum(float(client["bandwidth_hz"]) for client in clients)
        except (KeyError, TypeError, ValueError, OverflowError):
            whole_band = 1.0  # a client's bandwidth is not a number, which is reported when that key is checked
        resolved["server"] = server | {"bandwidth_hz": whole_band if 0.0 < whole_band < 1e30 else 1.0}


def _fill_readings(resolved: Document, mode: mode_defaults.Mode | None) -> None:
    """Fill in the mode's defaults for how the paper is read and how clients learn.

    Without a mode only ``bound.sensitivity`` is filled in.
    """
    clients, bound = resolved["clients"], resolved.get("bound")
    if mode == "practical" and isinstance(resolved.get("learning"), dict):
        resolved["learning"] = mode_defaults.merged(mode_defaults.PRACTICAL_LEARNER, resolved["learning"])
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
