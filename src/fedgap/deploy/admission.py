"""Explain to a node why the server does not accept it, and what to do. Flower gives the same error for most reasons.

The node asks the SuperLink's gate at :data:`CHECK` and proves with a signature that it has its key. The answer has the
server's versions, its time, and whether the key is known."""

from __future__ import annotations

import base64
import datetime
import json
import socket
import ssl
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedgap.deploy.keys import public_pem, read_private_key

CHECK = "/v1/fleet/fedgap-check"
KEY, TIME, SIGNATURE = "x-fedgap-key", "x-fedgap-time", "x-fedgap-signature"
BEHIND_S, AHEAD_S = 300.0, 5.0
"""How many seconds a node's clock may be behind the server's, and ahead of it; Flower refuses more."""
TIMEOUT_S = 10.0
_NOT_YET_VALID, _EXPIRED = 9, 10  # OpenSSL's codes


def judge(scope: Any) -> dict[str, Any]:
    """The server's answer to a node: the server's versions and time, and whether the server knows the key that signed
    the request."""
    answer = {"fedgap": metadata.version("fedgap"), "flwr": metadata.version("flwr"), "now": _now().isoformat()}
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        pem, signature = (base64.b64decode(headers[name], validate=True) for name in (KEY, SIGNATURE))
        key = serialization.load_pem_public_key(pem)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(signature, _signed(headers[TIME]), ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, AssertionError, InvalidSignature):
        return answer  # information about a key is given only to its owner
    state = scope["app"].state.linkstate_factory.state()
    node = state.get_node_id_by_public_key(pem)
    if node is None:
        return {**answer, "key": "unknown"}
    (info,) = state.get_node_info(node_ids=[node])
    return {**answer, "key": "in use" if info.status == "online" else "known", "name": info.name}


def why_not_admitted(superlink: str, ca: Path, key: Path, name: str, *, connected: bool = False) -> str:
    """A sentence that says why the server does not accept this node and what to do; "" if nothing seems wrong.

    ``connected`` says that this node itself may be connected by now, so that its key is rightly in use."""
    private = read_private_key(key)
    stamp = _now().isoformat()
    signature = private.sign(_signed(stamp), ec.ECDSA(hashes.SHA256()))
    headers = {KEY: base64.b64encode(public_pem(private.public_key())).decode(), TIME: stamp,
               SIGNATURE: base64.b64encode(signature).decode()}
    request = urllib.request.Request(f"https://{superlink}{CHECK}", headers=headers)
    try:
        context = ssl.create_default_context(cafile=str(ca))
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as response:
            answer = json.load(response)
    except urllib.error.HTTPError:  # a SuperLink without fedgap's gate does not have this request
        return ""
    except OSError as error:
        return _unreachable(superlink, ca, error)
    except ValueError:
        return f"server: {superlink} does not answer like a SuperLink; check --superlink"
    return _judged(answer, key, name, connected)


def _judged(answer: dict[str, Any], key: Path, name: str, connected: bool) -> str:
    """The sentence that explains the server's answer; "" if nothing is wrong."""
    ours, theirs = metadata.version("fedgap"), answer["fedgap"]
    behind = (datetime.datetime.fromisoformat(answer["now"]) - _now()).total_seconds()
    if not -AHEAD_S < behind < BEHIND_S:
        return (f"clock: this machine's is {abs(behind):.0f} s {'behind' if behind > 0 else 'ahead of'} the server's, "
                "so the server refuses it; correct it, for example with NTP")
    if ours != theirs:
        return (f"version: this node has fedgap {ours} and the server {theirs}; install the server's with: "
                f"pip install fedgap=={theirs}")
    if answer.get("key") == "unknown":
        return (f"key: the server does not know this node's key; give {key}.pub to its operator, who puts it into the "
                f"folder of --keys under the node's name ({name}.pub) and starts the server again")
    if answer.get("key") == "in use" and not connected:
        return ("key: a node with this key is connected already, or was until less than a minute ago; if it is another "
                "node, make this one its own key with `fedgap deploy key`")
    if answer.get("name", name) != name:
        return (f"name: the server knows this key as {answer['name']!r}, and the node's file says {name!r}; use that "
                "name, or the key that belongs to it")
    return ""


def _unreachable(superlink: str, ca: Path, error: OSError) -> str:
    """The sentence that explains why no connection could be made."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in (_NOT_YET_VALID, _EXPIRED):
            return (f"clock: the server's certificate is {reason.verify_message.removeprefix('certificate ')} at this "
                    f"machine's time, {_now():%Y-%m-%d %H:%M} UTC; correct the clock, or, if it is correct, make a new "
                    "certificate with `fedgap deploy keys` on the server")
        return (f"certificate: {superlink} is not trusted ({reason.verify_message}); --ca must be the server's ca.crt "
                f"(here {ca}), and --superlink a name that `fedgap deploy keys --host` was given")
    if isinstance(reason, socket.gaierror):
        return f"server: the host name in {superlink} cannot be resolved; check --superlink and the name service"
    if isinstance(reason, ssl.SSLError):
        return f"server: {superlink} does not speak TLS; check the port of --superlink"
    return (f"server: nobody answers at {superlink} ({getattr(reason, 'strerror', None) or reason}); check that the "
            "server is running and that its firewall allows this port")


def _signed(stamp: str) -> bytes:
    return f"fedgap check {stamp}".encode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
