"""Checks of every request (Host, Origin, token, size), and the security headers of every reply."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 8_000_000
"""The largest request body; a fleet of a thousand clients takes less than one megabyte."""
TOKEN_HEADER = "x-fedgap-token"

# Plotly writes styles into the page, so inline styles are allowed. Inline scripts and other hosts are not.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware that checks every request.

    The Host check prevents DNS rebinding by other sites. The Origin check prevents their pages from posting to this
    server. All requests that start or stop a process or write a file need the token, which is shown in the terminal."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], token: str, guarded: str) -> None:
        """``hosts`` are the allowed Host headers, including the port; requests that change something below ``guarded``
        need the token."""
        self.app, self.token, self.guarded = app, token, guarded
        self.hosts = {host.lower() for host in hosts}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is not None:
            await _reply(with_headers, *refused)
            return
        body = await _read(receive, headers) if scope["method"] not in ("GET", "HEAD", "OPTIONS") else b""
        if body is None:
            await _reply(with_headers, 413, f"the request is too large; at most {MOST_BYTES // 10**6} MB are accepted")
            return
        await self.app(scope, _replay(body, receive), with_headers)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if headers.get("host", "").lower() not in self.hosts:
            return 421, "this is not the studio's address; open the link that `fedgap studio` printed"
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and origin.lower() not in self.origins) or site not in ("same-origin", "none"):
            return 403, "the request comes from another site"
        if scope["path"].startswith(self.guarded):
            given = headers.get(TOKEN_HEADER, "")
            if not hmac.compare_digest(given.encode("latin-1", "replace"), self.token.encode()):
                return 401, "the token is missing or old; open the link that `fedgap studio` printed last"
        return None


async def _read(receive: Receive, headers: dict[str, str]) -> bytes | None:
    """The body of the request, or None if it is too large."""
    declared = headers.get("content-length", "0")
    if not declared.isdigit() or len(declared) > 18 or int(declared) > MOST_BYTES:
        return None
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive function that returns the stored body first, then the further messages of the connection."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


async def _reply(send: Send, status: int, message: str) -> None:
    body = json.dumps({"key": "", "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
