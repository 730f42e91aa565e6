"""The file of a deployment's node: a share of an experiment's data, or a device with its own data."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ValidationError

from fedgap.config import error_messages
from fedgap.config.checked_fields import File, Number, Word, count
from fedgap.config.document import Section
from fedgap.config.error_messages import shown
from fedgap.config.scenario_sections import Client
from fedgap.errors import InputError

Epsilon = Annotated[float, Number(above=0, reason="smaller is more private")]
Threads = Annotated[int, count("computing takes a thread", limit=1024)]
Position = Annotated[int, count("clients are counted from 0", at_least=0)]
Classes = Annotated[int, count("with one class there is nothing to tell apart", at_least=2, limit=100_000)]
Figure = Annotated[float, Number()]
Scale = Annotated[float, Number(above=0, reason="samples are divided by it")]


class _Node(Section):
    epsilon: Epsilon | None = None
    """ε of the noise on the label histogram; default: no noise."""
    threads: Threads = 1
    """CPU threads of the node's computing."""
    allow: tuple[Word, ...] = ()
    """Models and importance rules that the server may use in addition to fedgap's: names that installed packages add,
    or ``package.module:NAME``."""


@error_messages.register
class ShareNode(_Node):
    """A node that plays a client of an experiment, with the client's share of the data; for trying things out."""

    experiment: File
    """The experiment: a file or a preset."""
    client: Position
    """Which of its clients."""


@error_messages.register
class OwnNode(_Node):
    """A device with its own data."""

    name: Word
    """The node's name, which must be unique."""
    data: File
    """An .npz file with train_x and train_y."""
    classes: Classes
    """How many classes there are in the whole federation."""
    device: Client
    """Its radio and its processor, as a scenario's client has them."""
    mean: tuple[Figure, ...] = (0.0,)
    """Subtracted from the samples: one number, or one per channel."""
    std: tuple[Scale, ...] = (1.0,)
    """The samples are divided by this afterwards: one number, or one per channel."""


NODE_KEYS = tuple(dict.fromkeys([*OwnNode.model_fields, *ShareNode.model_fields]))
NOT_A_DEVICE = ("name", "phi", "label_counts", "target_counts")
"""Keys of a scenario's client that do not describe a device."""


def read_node(written: Any, label: str) -> ShareNode | OwnNode:
    """The node that a document describes; ``label`` is its file."""
    if not isinstance(written, Mapping):
        raise InputError(f"{label}: must be a mapping of keys such as name, data and device; got {shown(written)}")
    document = dict(written)
    kind: type[ShareNode | OwnNode] = ShareNode if "experiment" in document else OwnNode
    for key in document:
        if key not in NODE_KEYS:
            raise InputError(f"{label}: {error_messages.unknown_key((key,), NODE_KEYS)}")
        if key not in kind.model_fields:
            raise InputError(f"{label}: {key}: a node has experiment and client, or name, data, classes and device; "
                             f"this one has {'experiment' if kind is ShareNode else 'no experiment'}")
    if "device" in document:
        document["device"] = _device(document["device"], label)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{label}: {error_messages.first_error(error, document)}") from None


def _device(written: Any, label: str) -> dict[str, Any]:
    """A device's figures; a missing downlink gain is replaced by the uplink's."""
    if not isinstance(written, Mapping):
        raise InputError(f"{label}: device: must be a mapping of figures such as uplink_gain; got {shown(written)}")
    if unfit := [key for key in written if key in NOT_A_DEVICE]:
        raise InputError(f"{label}: device.{unfit[0]}: does not describe a device; leave it out")
    device = dict(written)
    if "uplink_gain" in device:
        device.setdefault("downlink_gain", device["uplink_gain"])
    return device
