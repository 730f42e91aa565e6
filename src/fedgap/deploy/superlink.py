"""Flower's SuperLink behind a gate: ``python -m fedgap.deploy.superlink MOST_BYTES KEYS [flower-superlink options]``.

A SuperLink answers nodes (Fleet API), the processes of its server apps (Runtime API) and ``flwr`` (Control API) on one
port, and asks only nodes for a key. So anyone who reaches the port could register a key, or run an app on the server
and on every node. It also reads a request to its end before it checks the sender. With the gate:

- other machines reach only the Fleet API, and none of their requests may have more than ``MOST_BYTES`` bytes;
- the other two APIs answer only the account that started the SuperLink (see :mod:`fedgap.deploy.connection_owner`);
- only the nodes whose public keys are in the folder ``KEYS`` are accepted;
- messages stay in memory, because a database would keep the clients' gradients on disk;
- a node may ask why it is refused (see :mod:`fedgap.deploy.admission`)."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Any

from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedgap.deploy.admission import CHECK, judge
from fedgap.deploy.connection_owner import may_control
from fedgap.deploy.flower_patches import put_before_superlink, register_nodes, wait_for_slow_starts
from fedgap.deploy.keys import read_public_keys
from fedgap.errors import FedgapError, InputError

FLEET = "/v1/fleet/"
SLOW_START_S = 150.0
"""Seconds that the processes of apps may take to start, in addition to Flower's own thirty."""


class Gate:
    """Outermost ASGI middleware: answers 403 to requests that the sender may not make, and 413 to those that are too
    long."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        path = str(scope["path"])
        if path == CHECK:
            await JSONResponse(await run_in_threadpool(judge, scope))(scope, receive, send)
            return
        if not path.startswith(FLEET):
            refused = "nodes only" if not from_here(scope) else await run_in_threadpool(may_control, scope)
            if not refused:
                await self.app(scope, receive, send)
            elif scope["type"] == "http":
                await PlainTextResponse(refused, 403)(scope, receive, send)
            return
        left = self.most_bytes
        if _announced(scope) > left:
            await PlainTextResponse(f"at most {left} bytes are accepted", 413, {"connection": "close"})(
                scope, receive, send)
            return

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"at most {self.most_bytes} bytes are accepted")
            return message

        async def corrected(message: Message) -> None:
            over = left < 0 and message["type"] == "http.response.start"  # Flower turns the exception into status 500
            await send({**message, "status": 413} if over else message)

        await self.app(scope, bounded, corrected)


def from_here(scope: Scope) -> bool:
    """Whether a request comes from this machine: over the loopback interface, or from the same address that it was sent
    to."""
    client, server = (scope.get(end) or ("", 0) for end in ("client", "server"))
    try:
        address: Any = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return bool(address.is_loopback) or client[0] == server[0]


def _announced(scope: Scope) -> int:
    """The length of the request according to its header; 0 if it has none."""
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


def main() -> None:
    """Run a SuperLink. Its arguments, in ``sys.argv``, are the largest request in bytes, the folder of keys, and
    Flower's own options."""
    os.umask(0o077)
    most_bytes, keys = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    if any(word.partition("=")[0] == "--database" for word in sys.argv):
        raise InputError("--database: leave this option out; a database would keep the clients' gradients on disk")
    put_before_superlink(Middleware(Gate, most_bytes=most_bytes))
    register_nodes(read_public_keys(keys))
    wait_for_slow_starts(SLOW_START_S)
    sys.argv += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt"),
                 "--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    flower_superlink()


if __name__ == "__main__":
    try:
        main()
    except FedgapError as error:
        sys.exit(f"ERROR {error}")
