"""All changes that fedgap makes to Flower's internals; each affects only the process that calls it.

Flower has no options for these things. Its internals may change with every release, so each patch first checks that the
installed version is one that it was written for."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedgap.deploy.child_processes import die_with_parent
from fedgap.deploy.keys import node_id
from fedgap.errors import InputError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from starlette.middleware import Middleware

KNOWN = "1.41."
"""The versions of Flower that these patches were written for and tested with."""
PULL: dict[str, Any] = {"initial_backoff": 0.03, "backoff_cap": 0.3, "max_tries_per_object": None}
"""Arguments of Flower's ``pull_objects``. A message is announced before all its parts have arrived. By default a
request for a missing part is repeated after 1, 2, 4, 8 and 10 seconds, at most 500 times. With frequent polling parts
are often missing, so shorter waits are used here."""
APP_POLL_S = 0.05
"""Seconds between two checks of a SuperNode whether its client app has answered; a check only reads memory."""


def check_version() -> None:
    """Raise an InputError if the installed version of Flower is not one whose internals are known."""
    installed = metadata.version("flwr")
    if not installed.startswith(KNOWN):
        raise InputError(f"flwr: must be version {KNOWN}x; {installed} is installed. Install it with: "
                         f"pip install 'flwr=={KNOWN}*'")


def pull_soon() -> None:
    """Repeat requests for missing parts of a message sooner than Flower does."""
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    check_version()
    assert pull_objects.__kwdefaults__ is not None
    pull_objects.__kwdefaults__.update(PULL)


def pull_for(seconds_left: Callable[[], float]) -> None:
    """Make the server stop waiting for the missing parts of an answer after ``seconds_left()``.

    A node may announce an answer and never send it. Flower would ask for its parts for two hours, and the answers of
    all other nodes would wait.
    """
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid

    def pull(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
        return pull_objects(object_ids, pull_object_fn, max_time=seconds_left(), **PULL)

    check_version()
    vars(http_grid)["pull_objects"] = pull


def put_before_superlink(middleware: Middleware) -> None:
    """Make a SuperLink pass every request to this middleware first."""
    from flwr.superlink import extensions

    check_version()
    vars(extensions)["get_middleware"] = lambda: (middleware,)


def register_nodes(keys: Mapping[str, bytes]) -> None:
    """Make a SuperLink start with the nodes that have these public keys (PEM), given by their names.

    ``flwr supernode register`` would give nodes random numbers; see :func:`fedgap.deploy.keys.node_id`."""
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.server.superlink.linkstate import in_memory_linkstate
    from flwr.superlink import extensions

    def register(app: Any) -> None:
        state, names = app.state.linkstate_factory.state(), vars(in_memory_linkstate)
        draw = names["generate_rand_int_from_bytes"]
        for name, pem in keys.items():
            names["generate_rand_int_from_bytes"] = lambda *_, pem=pem, **__: node_id(pem)
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, pem, HEARTBEAT_DEFAULT_INTERVAL, name=name)
        names["generate_rand_int_from_bytes"] = draw

    check_version()
    vars(extensions)["configure_app"] = register


def wait_for_slow_starts(seconds: float) -> None:
    """Give the process of an app this many seconds to start before a SuperLink abandons it and starts another one.

    Flower waits thirty seconds. On a slow or busy computer the imports take longer: every process would be abandoned
    before it begins, and each would slow down the next."""
    from flwr.supercore.corestate.in_memory_corestate import InMemoryCoreState

    check_version()
    claim = InMemoryCoreState.claim_task

    def patient_claim(self: InMemoryCoreState, task_id: int) -> str | None:
        token = claim(self, task_id)
        if token is not None:
            with self.lock_task_store:
                record = self.task_token_store[task_id]
                record.active_until = record.active_until + timedelta(seconds=seconds)
        return token

    InMemoryCoreState.claim_task = patient_claim  # type: ignore[method-assign]


def run_only(app: ClientApp) -> None:
    """Make this process answer every message with this app, whatever code the SuperLink sent."""
    from flwr.supernode.runtime import run_clientapp

    check_version()
    vars(run_clientapp)["install_from_fab"] = lambda *_, **__: None
    vars(run_clientapp)["get_load_client_app_fn"] = lambda **_: lambda *__: app


def shorten_waits(poll_s: float) -> None:
    """Shorten the waiting times of a SuperNode, which cause most of a round's overhead.

    A SuperNode without a message sleeps three seconds (here ``poll_s``), and one that waits for its client app half a
    second (here APP_POLL_S); both numbers are fixed in Flower's code."""
    from flwr.supernode import start_client_internal

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, poll_s if seconds > 1.0 else APP_POLL_S))

    pull_soon()
    vars(start_client_internal)["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})


def serve_by_forking(address: str, secret: bytes, parent_pid: int) -> None:
    """Run Flower's SuperExec, but start client apps as forks of this process, in which everything is already imported.

    Flower's own SuperExec starts a new Python for every message, and importing flwr alone takes a second or more."""
    from flwr.supercore.superexec import run_superexec as loop
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import ExecutionSpec
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    class ForkingExecutor(SubprocessExecutor):
        def launch(self, spec: ExecutionSpec) -> LaunchResult:
            if os.fork() == 0:
                self._run_in_child(spec)
            return LaunchResult.accepted()

        @staticmethod
        def _run_in_child(spec: ExecutionSpec) -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with_parent()  # a fork does not inherit this setting
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

    def forking(*arguments: Any, **options: Any) -> ForkingExecutor:
        return ForkingExecutor()

    pull_soon()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # do not wait for children
    vars(loop)["get_executor"] = forking
    loop.run_superexec(address, insecure=True, superexec_auth_secret=secret, parent_pid=parent_pid)
