"""From what a person wrote to what is planned with: overrides, CSV or recipe, label counts, mode."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedgap.config import messages, modes
from fedgap.config.fields import Number, count
from fedgap.config.messages import shown
from fedgap.config.overrides import Override, apply
from fedgap.config.recipes import Labels, draw_fleet, draw_labels, read_recipe
from fedgap.config.tables import read_clients
from fedgap.errors import InputError

Document = dict[str, Any]


@messages.register
class Shorthand(BaseModel):
    """The keys of a scenario file that are resolved away when it is loaded."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    format: Annotated[int, Number(at_least=1, at_most=1, whole=True, reason="the only format there is")] = 1
    """The version of the file format."""
    mode: modes.Mode | None = None
    """Defaults for the readings left out: as_printed, or repaired."""
    seed: Annotated[int, count("a seed is a whole number", at_least=0, at_most=2**53)] = 0
    """The root seed of the recipes."""
    labels: Labels | None = None
    """A recipe for the clients' label histograms."""


DOCUMENT_KEYS = ("format", "mode", "seed", "labels", "fleet")
"""The keys of a scenario file that a resolved scenario has no more."""


def resolve(value: Any, label: str, folder: Path, overrides: Sequence[Override]) -> tuple[Document, Document]:
    """The document with the overrides in it, and the explicit scenario it stands for (not yet range-checked).

    :param value: what the file held; :param label: what to call it in a message;
    :param folder: what a CSV's path is relative to.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{label}: must be a mapping of keys such as rounds and clients; got {shown(value)}")
    late: list[Override] = []
    if not isinstance(value.get("clients"), list):
        # A single client of a recipe or a CSV can be named only once there are clients.
        late = [override for override in overrides if override.path[0] == "clients" and len(override.path) > 1]
    document = _stripped(apply(dict(value), [override for override in overrides if override not in late]))
    try:
        shorthand = Shorthand.model_validate(document)
    except ValidationError as error:
        raise messages.first_error(error, document) from None
    resolved = {key: item for key, item in document.items() if key not in DOCUMENT_KEYS}
    resolved["clients"] = clients = _clients(document, shorthand.seed, folder)
    if isinstance(clients, list):
        if shorthand.labels is not None:
            target = draw_labels(shorthand.labels, shorthand.seed, clients)
            resolved.setdefault("target_counts", target)
        resolved = apply(resolved, late)
        _fill_defaults(resolved)
        if late:
            document = document | {"clients": resolved["clients"]}
            document.pop("fleet", None)
            document.pop("labels", None)
    _fill_readings(resolved, shorthand.mode)
    return document, resolved


def _stripped(value: Any) -> Any:
    """The value without the keys that hold nothing: a key with null is a key left out."""
    if isinstance(value, dict):
        return {key: _stripped(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value


def _clients(document: Document, seed: int, folder: Path) -> Any:
    """The clients as mappings, from the list, the CSV or the recipe; copies, so that they may be filled in."""
    written, recipe = document.get("clients"), document.get("fleet")
    if written is not None and recipe is not None:
        raise InputError("fleet: a scenario has either clients or fleet, not both")
    if recipe is not None:
        return draw_fleet(read_recipe(recipe), seed)
    if isinstance(written, str):
        return read_clients(written, folder)
    if written is None:
        raise InputError("clients: missing; list them, name a CSV file, or give a recipe under fleet")
    if not isinstance(written, list):
        raise InputError(f"clients: must be a list of clients, or the name of a CSV file; got {shown(written)}")
    return [dict(item) if isinstance(item, dict) else item for item in written]


def _fill_defaults(resolved: Document) -> None:
    """Downlink gain = uplink gain, and the whole band for the broadcast, where they are left out."""
    clients = resolved["clients"]
    if not isinstance(clients, list):
        return
    for client in clients:
        if isinstance(client, dict) and "uplink_gain" in client:
            client.setdefault("downlink_gain", client["uplink_gain"])
    server = resolved.get("server")
    if isinstance(server, dict) and "bandwidth_hz" not in server:
        bandwidths = [client.get("bandwidth_hz") for client in clients if isinstance(client, dict)]
        try:
            resolved["server"] = server | {"bandwidth_hz": sum(map(float, bandwidths))}
        except (TypeError, ValueError, OverflowError):
            # A client's bandwidth is not a number; its own check says so better, once the server passes.
            resolved["server"] = server | {"bandwidth_hz": 1.0}


def _fill_readings(resolved: Document, mode: modes.Mode | None) -> None:
    """The mode's readings for the keys left out; without a mode, only where γ₂·R comes from."""
    clients, bound = resolved.get("clients"), resolved.get("bound")
    secant_known = isinstance(bound, dict) and "pruning_sensitivity" in bound
    readings: dict[str, Any] = {"sensitivity": "secant"} if secant_known else {}
    if mode is not None and isinstance(clients, list):
        counts_known = "target_counts" in resolved and all(
            isinstance(client, dict) and "label_counts" in client for client in clients
        )
        readings = modes.mode_readings(
            mode, clients=len(clients), counts_known=counts_known, secant_known=secant_known
        )
    for name, (section, key) in modes.PLANNING_KEYS.items():
        if name in readings and isinstance(resolved.get(section), dict):
            resolved[section] = {**resolved[section]}
            resolved[section].setdefault(key, readings[name])
