"""Packets between server and nodes: a few fields (JSON) and named byte strings (blobs), with limits and checks.

The client app passes packets on without reading them, so this module imports neither torch nor Flower. Nothing is ever
unpickled."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

from fedgap.errors import FedgapError

RECORD, PACKET = "fedgap", "packet"
"""A Flower message has one ConfigRecord of the first name, with one entry of the second name: a packet's bytes."""
_MAGIC = b"FGP1"
_HEAD = struct.Struct("<4sI")
MOST_FIELDS_BYTES = 2**20
"""Maximum length of the JSON part in bytes."""
MOST_BLOBS = 16
"""Maximum number of byte strings in a message."""
LARGEST_WHOLE = 2**63
"""Whole numbers in a packet must be below this and above its negative."""


class PacketError(FedgapError):
    """Bytes that are not a packet, or a packet that is not the expected one; the message says why."""


@dataclass(frozen=True)
class Packet:
    """The content of one message."""

    fields: dict[str, Any]
    blobs: dict[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode the packet: magic, length of the JSON, the JSON (fields, and each blob's name and length), the
        blobs."""
        lengths = [[name, len(blob)] for name, blob in self.blobs.items()]
        head = json.dumps({"fields": self.fields, "blobs": lengths}, allow_nan=False, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(_MAGIC, len(head)), head, *self.blobs.values()])

    @staticmethod
    def from_bytes(data: bytes, limit: int, fields_limit: int = MOST_FIELDS_BYTES) -> Packet:
        """Decode the packet in ``data``, which may have at most ``limit`` bytes, and its fields at most
        ``fields_limit``."""
        if len(data) > limit:
            raise PacketError(f"the packet must have at most {limit} bytes; it has {len(data)}")
        if len(data) < _HEAD.size:
            raise PacketError("the packet is incomplete: its header is missing")
        magic, length = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise PacketError("this is not a packet, or one of another version of fedgap")
        if length > fields_limit or _HEAD.size + length > len(data):
            raise PacketError("the packet's fields are incomplete or too long")
        try:
            head = json.loads(data[_HEAD.size:_HEAD.size + length], parse_constant=_no_number)
            fields, lengths = head["fields"], [(name, size) for name, size in head["blobs"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PacketError("the packet's fields cannot be read") from None
        if not isinstance(fields, dict):
            raise PacketError("the packet's fields must be a mapping")
        if len(lengths) > MOST_BLOBS:
            raise PacketError(f"the packet must have at most {MOST_BLOBS} byte strings; it has {len(lengths)}")
        blobs, at = {}, _HEAD.size + length
        for name, size in lengths:
            if not isinstance(name, str) or type(size) is not int:
                raise PacketError("each byte string of the packet must have a name and a whole number as its length")
            if size < 0 or size > len(data) - at:
                raise PacketError(f"the packet's {one_line(name, 40)} is incomplete")
            blobs[name], at = data[at:at + size], at + size
        if at != len(data):
            raise PacketError(f"the packet is {len(data) - at} bytes too long")
        return Packet(fields, blobs)

    def whole(self, key: str) -> int:
        """The field ``key``, which must be a whole number."""
        value = self.fields.get(key)
        if type(value) is not int or not -LARGEST_WHOLE < value < LARGEST_WHOLE:
            raise PacketError(f"{key}: must be a whole number of at most 63 bits")
        return value

    def number(self, key: str, largest: float = sys.float_info.max) -> float:
        """The field ``key``, which must be a finite number with a magnitude of at most ``largest``."""
        value = self.fields.get(key)
        # Python compares a whole number of 400 digits exactly; converting it to a float first would fail.
        if isinstance(value, bool) or not isinstance(value, int | float) or not -largest <= value <= largest:
            raise PacketError(f"{key}: must be a finite number, at most {largest:.3g}")
        return float(value)

    def text(self, key: str, longest: int = 1000) -> str:
        """The field ``key``, which must be a text of at most ``longest`` characters without control characters."""
        value = self.fields.get(key)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise PacketError(f"{key}: must be a text of at most {longest} printable characters")
        return value

    def blob(self, name: str) -> bytes:
        """The byte string with this name, which must exist."""
        if name not in self.blobs:
            raise PacketError(f"{name}: this byte string is missing from the packet")
        return self.blobs[name]


def one_line(said: object, longest: int = 200) -> str:
    """A text from a node as one line without control characters, safe for a terminal and a log."""
    text = said[:longest] if isinstance(said, str) else str(said)[:longest]
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
