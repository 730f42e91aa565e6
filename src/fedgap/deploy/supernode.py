"""Flower's SuperNode with shorter waits: ``python -m fedgap.deploy.supernode POLL_S [flower-supernode options]``.

A SuperNode that finds no message sleeps three seconds, one that waits for its client app half a second, and one whose
message has not come whole a second or more; these numbers stand in Flower's code and are no options. They are most of a
round's overhead, so they are replaced here, in this process only. The plain ``flower-supernode`` works as well.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from fedgap.deploy.child_processes import pull_soon

APP_POLL_S = 0.05
"""How often it looks whether its client app has answered: in its own memory, so that looking costs next to nothing."""


def main() -> None:
    """The command line."""
    poll_s = float(sys.argv.pop(1))

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, poll_s if seconds > 1.0 else APP_POLL_S))

    pull_soon()
    vars(start_client_internal)["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})
    flower_supernode()


if __name__ == "__main__":
    main()
