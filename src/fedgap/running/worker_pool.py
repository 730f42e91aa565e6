"""A pool of workers that train many runs: local processes, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from fedgap.errors import FedgapError, InputError

Task = TypeVar("Task")
Result = TypeVar("Result")
INTERRUPTED = 130
"""Exit code of a process that was interrupted after it had written everything."""


@dataclass(frozen=True)
class Died:
    """The outcome of a task whose process ended without a result."""

    reason: str


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    task: Any = None


def in_processes(function: Callable[[Task], Result], tasks: Sequence[Task],
                 workers: int) -> Generator[tuple[Task, Result | Died], None, None]:
    """Call ``function`` with each task in ``workers`` processes, each process with one task at a time; yields results
    as they arrive.

    ``function`` must be defined in a module, and tasks and results must be picklable. If a process crashes, only its
    task is lost, and a new process replaces it. An interruption, by Ctrl-C or SIGTERM, lets every process write its run
    to disk first.

    Close the generator (``contextlib.closing``) if it may not be read to its end, so that the processes end."""
    waiting, busy, idle = list(reversed(tasks)), list[_Worker](), list[_Worker]()
    threads = max(1, (os.cpu_count() or 1) // workers)
    in_main = threading.current_thread() is threading.main_thread()
    terminated = signal.getsignal(signal.SIGTERM)
    if in_main:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle and idle[-1].process.is_alive() else _start(function, threads)
                worker.task = waiting.pop()
                worker.connection.send(worker.task)
                busy.append(worker)
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                busy.remove(worker)
                try:
                    result: Result | Died = worker.connection.recv()
                    idle.append(worker)
                except (EOFError, OSError):
                    worker.process.join()
                    if worker.process.exitcode == INTERRUPTED:
                        raise KeyboardInterrupt from None
                    result = Died(f"the process ended with code {worker.process.exitcode}; see above")
                yield worker.task, result
    finally:
        for worker in [*busy, *idle]:
            worker.process.terminate()  # SIGTERM: a training process finishes its round and writes everything
        for worker in [*busy, *idle]:
            worker.process.join()
        if in_main:
            signal.signal(signal.SIGTERM, terminated)


def all_in_processes(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int,
                     name: Callable[[Task], str]) -> Iterator[Result]:
    """Yield the result of every task, as :func:`in_processes` does. A process that dies raises an error with the task's
    name."""
    with closing(in_processes(function, tasks, workers)) as results:
        for task, result in results:
            if isinstance(result, Died):
                raise FedgapError(f"{name(task)}: {result.reason}")
            yield result


def _start(function: Callable[[Any], Any], threads: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(function, theirs, threads))
    process.start()
    theirs.close()  # otherwise the parent would not notice when the process dies
    return _Worker(process, ours)


def _serve(function: Callable[[Any], Any], connection: Connection, threads: int) -> None:
    """Compute tasks in a worker's process until it is terminated."""
    import torch

    if hasattr(os, "setsid"):
        # A new session, so that Ctrl-C in the terminal reaches only the parent. The parent's SIGTERM is then the first
        # signal here and lets the round end; as the second signal it would stop the process at once.
        os.setsid()
    while True:
        try:
            task = connection.recv()
        except EOFError:  # the parent is gone
            return
        torch.set_num_threads(threads)  # unless the experiment says otherwise
        try:
            connection.send(function(task))
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except OSError as error:  # a full disk, so the reason cannot be written to a file
            raise SystemExit(f"fedgap: {error}") from None


def on_ray(function: Callable[[Task], Result], tasks: Sequence[Task], address: str, *, cpus: int,
           gpus: int) -> Iterator[tuple[Task, Result | Died]]:
    """Call ``function`` with each task on the Ray cluster at ``address``; yields results as they arrive."""
    try:
        import ray
    except ImportError:
        raise InputError("--ray: needs Ray; pip install 'fedgap[ray]'") from None
    started = not ray.is_initialized()
    if started:
        _reach(address)
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"--ray: no cluster answers at {address} ({str(error).splitlines()[0]}); start one with "
                             "`ray start --head`, or use local") from None
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=2)(function)
    try:
        open_tasks = {remote.remote(task): task for task in tasks}
        while open_tasks:
            (done,), _ = ray.wait(list(open_tasks), num_returns=1)
            task = open_tasks.pop(done)
            try:
                yield task, ray.get(done)
            except ray.exceptions.RayError as error:
                yield task, Died(f"Ray: {type(error).__name__}")
    finally:
        if started:
            ray.shutdown()


def _reach(address: str) -> None:
    """Check quickly that something answers at HOST:PORT. Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # auto, local
        return
    if not port.isdecimal():
        raise InputError(f"--ray: {address!r} is not an address; use HOST:PORT, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--ray: no cluster answers at {address} ({error}); start one with `ray start --head`, or use "
                         "local") from None
