"""Flower's SuperNode with a shorter idle poll: ``python -m fedgap.deploy.supernode POLL_S [flower-supernode options]``.

A SuperNode that finds no message sleeps three seconds; that number stands in Flower's code and is not an option. It
is the largest part of a round's overhead, so it is replaced here, in this process only. The plain ``flower-supernode``
works as well, three seconds slower a round.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode


def main() -> None:
    """The command line."""
    poll_s = float(sys.argv.pop(1))

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, poll_s))

    vars(start_client_internal)["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})
    flower_supernode()


if __name__ == "__main__":
    main()
