"""Packets between server and nodes: a few fields (JSON) and named byte strings, with limits and checks.

The client app passes packets on without reading them, so this module imports neither torch nor Flower. Nothing is ever
unpickled.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

from fedgap.errors import FedgapError

RECORD, PACKET = "fedgap", "packet"
"""A Flower message's content is one ConfigRecord of this name with one entry: a packet's bytes."""
_MAGIC = b"FGP1"
_HEAD = struct.Struct("<4sI")
MOST_FIELDS_BYTES = 2**20
"""The JSON part's limit."""
MOST_BLOBS = 16
"""Maximum number of byte strings in a message."""
LARGEST_WHOLE = 2**63
"""Whole numbers in a packet lie between this and its negative."""


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
    def from_bytes(data: bytes, limit: int, fields_limit: int = MOST_FIELDS_BYTES) -> Packet:
        """The packet in ``data``, which may have ``limit`` bytes at most, its fields ``fields_limit``."""
        if len(data) > limit:
            raise PacketError(f"the packet has {len(data)} bytes; at most {limit} are accepted")
        if len(data) < _HEAD.size:
            raise PacketError("the packet is incomplete")
        magic, length = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise PacketError("this is not a packet of this version")
        if length > fields_limit or _HEAD.size + length > len(data):
            raise PacketError("the packet's fields are incomplete or too long")
        try:
            head = json.loads(data[_HEAD.size:_HEAD.size + length], parse_constant=_no_number)
            fields, lengths = head["fields"], [(name, size) for name, size in head["blobs"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PacketError("the packet's fields cannot be read") from None
        if not isinstance(fields, dict):
            raise PacketError("the packet's fields are not a mapping")
        if len(lengths) > MOST_BLOBS:
            raise PacketError(f"the packet has {len(lengths)} byte strings; at most {MOST_BLOBS} are accepted")
        blobs, at = {}, _HEAD.size + length
        for name, size in lengths:
            if not isinstance(name, str) or type(size) is not int:
                raise PacketError("the packet's byte strings need a name and a whole number of bytes each")
            if size < 0 or size > len(data) - at:
                raise PacketError(f"the packet's {one_line(name, 40)} is incomplete")
            blobs[name], at = data[at:at + size], at + size
        if at != len(data):
            raise PacketError(f"the packet is {len(data) - at} bytes too long")
        return Packet(fields, blobs)

    def whole(self, key: str) -> int:
        """A whole number, checked."""
        value = self.fields.get(key)
        if type(value) is not int or not -LARGEST_WHOLE < value < LARGEST_WHOLE:
            raise PacketError(f"{key}: must be a whole number of at most 63 bits")
        return value

    def number(self, key: str, largest: float = sys.float_info.max) -> float:
        """A finite number of at most this size, checked."""
        value = self.fields.get(key)
        # A whole number of 400 digits is compared exactly, and is never made a float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not -largest <= value <= largest:
            raise PacketError(f"{key}: must be a finite number, at most {largest:.3g}")
        return float(value)

    def text(self, key: str, longest: int = 1000) -> str:
        """A text without control characters, checked."""
        value = self.fields.get(key)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise PacketError(f"{key}: must be a text of at most {longest} printable letters")
        return value

    def blob(self, name: str) -> bytes:
        """A byte string that must be there."""
        if name not in self.blobs:
            raise PacketError(f"{name}: is missing")
        return self.blobs[name]


def one_line(said: object, longest: int = 200) -> str:
    """A node's text as one line without control characters, safe for a terminal and a log."""
    text = said[:longest] if isinstance(said, str) else str(said)[:longest]
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
