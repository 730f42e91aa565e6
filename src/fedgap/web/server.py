"""Serve the studio on this machine."""

from __future__ import annotations

import logging
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

from fedgap.errors import InputError
from fedgap.web.opened import Opened

ADDRESS = "127.0.0.1"


def serve(runs: Path, opened: Opened, *, port: int, browser: bool, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    :param opened: what the page shows first; :param port: 0 takes any free port; :param browser: whether to open the
    page; :param say: is called with the address of the page once it can be opened."""
    import uvicorn

    from fedgap.web.api import create_app

    listener = _listen(port)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    hosts = [f"{name}:{port}" for name in (ADDRESS, "localhost")]
    # Browsers do not send the part after '#', so the token reaches neither a log nor another site.
    address = f"http://{ADDRESS}:{port}/#token={token}"

    class AnnouncingServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(address)
            if browser:
                webbrowser.open(address)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.closing.set()  # otherwise an open page that watches a run would keep the server from ending
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # to cancel a request now is not an error
            await super().shutdown(sockets)

    app = create_app(runs, opened, token=token, hosts=hosts)
    settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    AnnouncingServer(settings).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError as error:
        raise InputError(f"--port: {port} cannot be used ({error.strerror}); use another one, or 0 for any free port"
                         ) from None
    listener.listen(128)
    return listener
