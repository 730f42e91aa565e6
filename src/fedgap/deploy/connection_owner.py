"""Find the account that owns a local connection, from ``/proc/net/tcp``.

Flower's Control API needs no password, and Flower passes the tokens of its Runtime API on command lines, which every
account of the machine can read. So the SuperLink's gate asks the kernel which account made a request.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Any

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
TRUST_VARIABLE = "FEDGAP_TRUST_LOCAL_ACCOUNTS"
"""If this variable is 1, every account of this machine may control the SuperLink; for systems other than Linux."""


def may_control(scope: Any) -> str:
    """The reason why a local request may not use the Control and Runtime APIs; "" if it may."""
    if os.environ.get(TRUST_VARIABLE) == "1":
        return ""
    if not TABLES[0].is_file():
        return ("only Linux reports which account a connection belongs to; if nobody else has an account on this "
                f"machine, set {TRUST_VARIABLE}=1")
    client, server = (scope.get(end) or ("", 0) for end in ("client", "server"))
    if owner_of(client, server) == os.getuid():
        return ""
    return "only the account that started the SuperLink may control it"


def owner_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id that owns the client's end of a TCP connection within this machine; None if there is no such
    connection.

    A socket that its process has closed does not count: it has no inode, and its owner is shown as root."""
    wanted = {(_words(client), _words(server)) for _words in (_entry, _mapped_entry)}
    for table in TABLES:
        if not table.is_file():
            continue
        for line in table.read_text().splitlines()[1:]:
            _, local, remote, *rest = line.split()
            uid, inode = int(rest[4]), int(rest[6])
            if (local, remote) in wanted and inode:
                return uid
    return None


def _entry(end: tuple[str, int]) -> str:
    """An address and a port in the form of the table: hexadecimal, every four bytes in the machine's byte order."""
    try:
        return _hexadecimal(ipaddress.ip_address(end[0]).packed, end[1])
    except ValueError:
        return ""


def _mapped_entry(end: tuple[str, int]) -> str:
    """The same for an IPv4 address as seen by a socket for both versions, ``::ffff:a.b.c.d``, and the other way
    round."""
    try:
        address = ipaddress.ip_address(end[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return _hexadecimal(address.ipv4_mapped.packed, end[1]) if address.ipv4_mapped else ""
    return _hexadecimal(bytes(10) + b"\xff\xff" + address.packed, end[1])


def _hexadecimal(packed: bytes, port: int) -> str:
    words = (int.from_bytes(packed[at:at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
