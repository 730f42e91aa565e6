"""Where a sweep's runs are trained: local processes, a Ray cluster, or stacked in this process."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import socket
import tarfile
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from fedgap.config import Experiment
from fedgap.errors import FedgapError, InputError
from fedgap.running.sweep import Outcome, Point, fail, outcome, train_point

Report = Callable[[Point, Outcome], None]


def train_in_processes(base: Experiment, waiting: Sequence[Point], workers: int, report: Report) -> None:
    """``workers`` processes at a time, one run each, so that a crash takes one run with it.

    An interruption, by Ctrl-C or SIGTERM, lets every process write its run to disk first.
    """
    context = multiprocessing.get_context("spawn")
    queue = list(waiting)
    busy: dict[SpawnProcess, Point] = {}
    threads = max(1, (os.cpu_count() or 1) // workers)
    terminated = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while queue or busy:
            while queue and len(busy) < workers:
                point = queue.pop(0)
                process = context.Process(target=_train_in_child, args=(_portable(base), point, threads))
                process.start()
                busy[process] = point
            wait([process.sentinel for process in busy])
            for process in [p for p in busy if not p.is_alive()]:
                process.join()
                point = busy.pop(process)
                done = outcome(point)
                if done is None and process.exitcode == 130:
                    raise KeyboardInterrupt
                report(point, done or _died(f"the process ended with code {process.exitcode}; see above"))
    finally:
        for process in busy:
            process.terminate()  # SIGTERM: it ends its round and writes everything
        for process in busy:
            process.join()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated)


def _died(message: str) -> Outcome:
    return {"error": message, "exit_code": FedgapError.exit_code}


def _train_in_child(base: tuple[dict[str, Any], str], point: Point, threads: int) -> None:
    import torch

    if hasattr(os, "setsid"):
        # Out of the terminal's reach: its Ctrl-C goes to the parent alone, whose SIGTERM then is the first signal here
        # and lets the round end; a second one would not.
        os.setsid()
    torch.set_num_threads(threads)  # unless the experiment says otherwise
    try:
        train_point(_restored(base), point)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:  # a full disk, on which no failed.json can be left either
        raise SystemExit(f"fedgap: {point.folder}: {error}") from None


def train_on_ray(base: Experiment, waiting: Sequence[Point], address: str, report: Report) -> None:
    """One Ray task a run. A node trains in a folder of its own and sends it back whole, so no shared disk is needed."""
    try:
        import ray
    except ImportError:
        raise InputError("--ray: needs Ray; pip install 'fedgap[ray]'") from None
    own = not ray.is_initialized()
    if own:
        _reach(address)
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"--ray: no cluster at {address} ({str(error).splitlines()[0]})") from None
    gpus = 1 if base.engine.device == "cuda" else 0

    @ray.remote(num_cpus=base.engine.threads or 1, num_gpus=gpus, max_retries=2)
    def remote(experiment: tuple[dict[str, Any], str], point: Point) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            there = Point(point.overrides, Path(folder) / "run")
            train_point(_restored(experiment), there)
            return pack(there.folder)

    try:
        portable = ray.put(_portable(base))
        open_tasks = {remote.remote(portable, point): point for point in waiting}
        while open_tasks:
            (done,), _ = ray.wait(list(open_tasks), num_returns=1)
            point = open_tasks.pop(done)
            try:
                unpack(ray.get(done), point.folder)
                report(point, outcome(point) or _died("came back unfinished"))
            except ray.exceptions.RayError as error:
                report(point, _died(f"Ray: {type(error).__name__}"))
    finally:
        if own:
            ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself waits for minutes, retrying, where nobody answers at HOST:PORT."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # auto, local
        return
    if not port.isdecimal():
        raise InputError(f"--ray: {address!r} is no address; use HOST:PORT, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--ray: no cluster at {address} ({error}); start one with `ray start --head`, or use "
                         "local") from None


def train_stacked(base: Experiment, waiting: Sequence[Point], report: Report) -> None:
    """All runs here, those of one model and data set in one computation."""
    from fedgap.running.stacked_runs import prepare_all, train_together

    folders = {point.folder: point for point in waiting}

    def failed(position: int, error: FedgapError) -> None:
        report(waiting[position], fail(waiting[position], error))

    ready = prepare_all([point.experiment(base) for point in waiting], [point.folder for point in waiting], failed)
    for run in train_together(ready):
        report(folders[run.folder], {"summary": run.summary})


def pack(folder: Path) -> bytes:
    """A folder as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, ".")
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """The folder again; nothing is written outside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def _portable(experiment: Experiment) -> tuple[dict[str, Any], str]:
    return experiment.to_dict(), str(experiment.folder.resolve())


def _restored(portable: tuple[dict[str, Any], str]) -> Experiment:
    document, folder = portable
    return Experiment.from_dict(document, folder=folder)
