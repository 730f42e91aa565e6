"""A SuperExec whose processes start warm: ``python -m fedgap.deploy.executor ADDRESS SECRET_FILE PARENT_PID``.

Flower's own SuperExec starts a new Python for every message, and importing flwr alone takes a second or more. This one
has it imported and forks. The loop that asks the SuperNode for tasks is Flower's own.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from flwr.supercore.superexec import run_superexec as loop
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec
from flwr.supernode.runtime.run_clientapp import run_clientapp

import fedgap.deploy.client_app  # noqa: F401  (imported once, here, and not in every child)
from fedgap.deploy.child_processes import die_with_parent, pull_soon


class ForkingExecutor(SubprocessExecutor):
    """Runs a client app in a fork of this process, where everything is imported already."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Starts the child and returns at once."""
        if os.fork() == 0:
            self._child(spec)
        return LaunchResult.accepted()

    @staticmethod
    def _child(spec: ExecutionSpec) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()  # which a fork does not inherit
        try:
            run_clientapp(runtime_api_address=spec.runtime_api_address, token=spec.token, insecure=spec.insecure,
                          certificates=None, parent_pid=spec.parent_pid, runtime_dependency_install=False)
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def main() -> None:
    """The command line."""
    address, secret_file, parent = sys.argv[1:4]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for

    def forking(*arguments: Any, **options: Any) -> ForkingExecutor:
        return ForkingExecutor()

    pull_soon()
    vars(loop)["get_executor"] = forking
    loop.run_superexec(address, insecure=True, superexec_auth_secret=Path(secret_file).read_bytes(),
                       parent_pid=int(parent))


if __name__ == "__main__":
    main()
