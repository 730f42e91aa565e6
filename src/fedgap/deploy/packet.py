"""What travels between server and nodes: a few fields (JSON) and named byte strings, bounded and checked.

The client app hands packets on without looking into them, so this module imports neither torch nor Flower. Nothing is
ever unpickled.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

from fedgap.errors import FedgapError

RECORD, PACKET = "fedgap", "packet"
"""A Flower message's content is one ConfigRecord of this name with one entry: a packet's bytes."""
_MAGIC = b"FGP1"
_HEAD = struct.Struct("<4sI")
MOST_FIELDS_BYTES = 2**20
"""The JSON part's limit."""


class PacketError(FedgapError):
    """Bytes that are not a packet, or a packet that is not what was asked for; the message says why."""


@dataclass(frozen=True)
class Packet:
    """One message's content."""

    fields: dict[str, Any]
    blobs: dict[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Magic, length of the JSON, the JSON (fields, and each blob's name and length), the blobs."""
        lengths = [[name, len(blob)] for name, blob in self.blobs.items()]
        head = json.dumps({"fields": self.fields, "blobs": lengths}, allow_nan=False, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(_MAGIC, len(head)), head, *self.blobs.values()])

    @staticmethod
    def from_bytes(data: bytes, limit: int) -> Packet:
        """The packet in ``data``, which may have ``limit`` bytes at most."""
        if len(data) > limit:
            raise PacketError(f"the packet has {len(data)} bytes; at most {limit} are accepted")
        if len(data) < _HEAD.size:
            raise PacketError("the packet breaks off")
        magic, length = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise PacketError("this is not a packet of this version")
        if length > MOST_FIELDS_BYTES or _HEAD.size + length > len(data):
            raise PacketError("the packet's fields break off or are too long")
        try:
            head = json.loads(data[_HEAD.size:_HEAD.size + length])
            fields, lengths = head["fields"], [(str(name), int(size)) for name, size in head["blobs"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PacketError("the packet's fields cannot be read") from None
        if not isinstance(fields, dict):
            raise PacketError("the packet's fields are not a mapping")
        blobs, at = {}, _HEAD.size + length
        for name, size in lengths:
            if size < 0 or at + size > len(data):
                raise PacketError(f"the packet's {name} breaks off")
            blobs[name], at = data[at:at + size], at + size
        if at != len(data):
            raise PacketError(f"the packet is {len(data) - at} bytes too long")
        return Packet(fields, blobs)

    def whole(self, key: str) -> int:
        """A whole number, checked."""
        value = self.fields.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise PacketError(f"{key}: must be a whole number")
        return value

    def number(self, key: str) -> float:
        """A finite number, checked."""
        value = self.fields.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise PacketError(f"{key}: must be a finite number")
        return float(value)

    def text(self, key: str, longest: int = 1000) -> str:
        """A text, checked."""
        value = self.fields.get(key)
        if not isinstance(value, str) or len(value) > longest:
            raise PacketError(f"{key}: must be a text of at most {longest} letters")
        return value

    def blob(self, name: str) -> bytes:
        """A byte string that must be there."""
        if name not in self.blobs:
            raise PacketError(f"{name}: is missing")
        return self.blobs[name]
