"""The file that describes a node of a deployment: either a client of an experiment, or a device with its own data."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ValidationError

from fedgap.config import error_messages
from fedgap.config.checked_fields import File, Number, Word, count
from fedgap.config.document import Section
from fedgap.config.error_messages import shown
from fedgap.config.scenario_sections import Client
from fedgap.errors import InputError

Epsilon = Annotated[float, Number(above=0, reason="differential privacy needs a positive ε; smaller is more private")]
Threads = Annotated[int, count("computing takes a thread", limit=1024)]
Position = Annotated[int, count("clients are counted from 0", at_least=0)]
Classes = Annotated[int, count("with one class there is nothing to learn", at_least=2, limit=100_000)]
Figure = Annotated[float, Number()]
Scale = Annotated[float, Number(above=0, reason="samples are divided by it")]


class _Node(Section):
    """The keys that both kinds of nodes have."""

    epsilon: Epsilon | None = None
    """ε of the noise that is added to the label histogram before it is sent; default: no noise."""
    threads: Threads = 1
    """Number of CPU threads with which the node computes."""
    allow: tuple[Word, ...] = ()
    """Models and importance rules that the server may use in addition to fedgap's: names that installed packages add,
    or ``package.module:NAME``."""


@error_messages.register
class ShareNode(_Node):
    """A node that acts as one client of an experiment and uses that client's part of the data; for trying things
    out."""

    experiment: File
    """The experiment: a file or a preset."""
    client: Position
    """Which client of the experiment the node is, counted from 0."""


@error_messages.register
class OwnNode(_Node):
    """A device with its own data."""

    name: Word
    """The node's name, which must be unique."""
    data: File
    """An .npz file with train_x and train_y."""
    classes: Classes
    """The number of classes in the whole federation."""
    device: Client
    """The device's radio and processor, with the keys of a client in a scenario."""
    mean: tuple[Figure, ...] = (0.0,)
    """Subtracted from the samples: one number, or one per channel."""
    std: tuple[Scale, ...] = (1.0,)
    """By what the samples are divided after mean is subtracted: one number, or one per channel."""


NODE_KEYS = tuple(dict.fromkeys([*OwnNode.model_fields, *ShareNode.model_fields]))
NOT_A_DEVICE = ("name", "phi", "label_counts", "target_counts")
"""Keys of a scenario's client that do not describe a device."""


def read_node(written: Any, label: str) -> ShareNode | OwnNode:
    """Return the node that a document describes.

    :param label: name of the file, for error messages.
    """
    if not isinstance(written, Mapping):
        raise InputError(f"{label}: must be a mapping of keys such as name, data and device; got {shown(written)}")
    document = dict(written)
    kind: type[ShareNode | OwnNode] = ShareNode if "experiment" in document else OwnNode
    for key in document:
        if key not in NODE_KEYS:
            raise InputError(f"{label}: {error_messages.unknown_key((key,), NODE_KEYS)}")
        if key not in kind.model_fields:
            raise InputError(f"{label}: {key}: must be left out of a node {'with' if kind is ShareNode else 'without'} "
                             "experiment; give either experiment and client, or name, data, classes and device")
    if "device" in document:
        document["device"] = _device(document["device"], label)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{label}: {error_messages.first_error(error, document)}") from None


def _device(written: Any, label: str) -> dict[str, Any]:
    """Return the keys of a device; a missing downlink gain is replaced by the uplink's."""
    if not isinstance(written, Mapping):
        raise InputError(f"{label}: device: must be a mapping of keys such as uplink_gain; got {shown(written)}")
    if unfit := [key for key in written if key in NOT_A_DEVICE]:
        raise InputError(f"{label}: device.{unfit[0]}: does not describe a device; leave it out")
    device = dict(written)
    if "uplink_gain" in device:
        device.setdefault("downlink_gain", device["uplink_gain"])
    return device
