"""Run folders, and the processes that train in them.

Every run is a separate process in a separate session, and its folder contains all information, so the server may end
and be restarted during the training. Nothing outside the folder of runs is read or written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fedgap.config import Experiment
from fedgap.config.yaml_files import parse, read_file, write_document
from fedgap.errors import FedgapError, InputError
from fedgap.files import read_json_lines, write_json
from fedgap.running.run_folder import has_run
from fedgap.web.run_processes import Writers, command

Event = dict[str, Any]
"""A round, as in a line of rounds.jsonl."""
State = Literal["preparing", "running", "stopping", "stopped", "finished", "failed"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,99}")
_SEPARATOR = "~"
"""Replaces the folder separator in a run's name, because a sweep's runs are one folder deeper."""
_DEEPEST = 3
_SWEPT = "runs"
"""The folder inside a sweep's folder that holds its runs."""
_MARK = "studio.json"
_LOG = "studio.log"
KEPT = ("round", "clients", "energy_total_j", "delay_total_s", "train_loss", "test_loss", "test_accuracy",
        "validation_accuracy", "forecast", "available", "gain", "speed", "energy_left_j", "delay_left_s", "idle_s",
        "planned_again", "forecast_accuracy", "policy", "dropped", "late", "rejected")
"""The keys of a round that the page draws."""


@dataclass
class Runs:
    """The runs in one folder and its sub-folders."""

    root: Path
    _started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _writers: Writers = field(default_factory=Writers)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()

    # --- reading runs -----------------------------------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        """The folder of an existing run. Raises LookupError for any other name."""
        parts = name.split(_SEPARATOR)
        if len(parts) <= _DEEPEST and all(_NAME.fullmatch(part) for part in parts):
            folder = self.root.joinpath(*parts).resolve()
            if folder.is_relative_to(self.root) and is_run(folder):
                return folder
        raise LookupError(name)

    def names(self) -> list[str]:
        """The names of all runs, the newest first."""
        folders = sorted(self._walk(self.root, 1), key=lambda folder: folder.stat().st_mtime, reverse=True)
        return [_SEPARATOR.join(folder.relative_to(self.root).parts) for folder in folders]

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        if not folder.is_dir():
            return
        for entry in folder.iterdir():
            if entry.is_symlink() or not entry.is_dir() or not _NAME.fullmatch(entry.name):
                continue
            if is_run(entry):
                yield entry
            elif depth < _DEEPEST:
                yield from self._walk(entry, depth + 1)

    def state(self, name: str) -> tuple[State, str]:
        """The state of a run, and an explanation if one is needed."""
        folder = self.folder(name)
        if (folder / "summary.json").is_file():
            return "finished", str(_json(folder / "summary.json").get("ended") or "")
        mark = _json(folder / _MARK)
        if self._alive(folder, mark):
            if mark.get("stopping"):
                return "stopping", "it stops after the current round; nothing is lost"
            return ("running", "") if has_run(folder) else ("preparing", "it reads the data and plans")
        if self._writer(folder, mark) is not None:
            return "running", "started outside the studio"
        if has_run(folder):
            return "stopped", "" if mark.get("stopping") else _last_words(folder)
        return ("stopped", "it was stopped before training began") if mark.get("stopping") else (
            "failed", _last_words(folder))

    def overview(self, name: str) -> dict[str, Any]:
        """One row of facts about a run: its state, what it trains, and its progress."""
        folder = self.folder(name)
        state, message = self.state(name)
        rounds, config, scenario = self.rounds(name), _document(folder / "config.yaml"), _document(
            folder / "scenario.yaml")
        summary = _json(folder / "summary.json")
        last = rounds[-1] if rounds else {}
        evaluated = next((event for event in reversed(rounds) if event.get("test_accuracy") is not None), {})
        plan = _json(folder / "plan.json")
        return {
            "name": name, "state": state, "message": message, **self._place(name),
            "data": _inner(config, "data", "name"), "model": _inner(config, "model", "name"),
            "scheme": plan.get("scheme") or config.get("scheme"), "seed": config.get("seed"),
            "mode": config.get("mode"), "policy": config.get("policy"), "learner": _learner(scenario, plan),
            "concentration": _inner(config, "partition", "concentration"),
            "rounds": len(rounds), "rounds_planned": plan.get("rounds") or scenario.get("rounds"),
            "energy_j": last.get("energy_total_j"), "delay_s": last.get("delay_total_s"),
            "energy_budget_j": _inner(scenario, "budget", "energy_j"),
            "delay_budget_s": _inner(scenario, "budget", "delay_s"),
            "train_loss": last.get("train_loss"), "test_loss": evaluated.get("test_loss"),
            "test_accuracy": evaluated.get("test_accuracy"), "theta": plan.get("theta"),
            "forecast": plan.get("forecast"),
            "best_test_accuracy": summary.get("best_test_accuracy"),
            "clients": [client.get("name") or f"client {n}" for n, client in enumerate(scenario.get("clients") or [])],
        }  # fmt: skip

    def _place(self, name: str) -> dict[str, str]:
        """The folder that a run shares with other runs of its sweep ("" for a single run), and its name in that
        folder."""
        *above, last = name.split(_SEPARATOR)
        if above[-1:] == [_SWEPT]:
            above = above[:-1] or [self.root.name]
        return {"group": "/".join(above), "label": last}

    def config(self, name: str) -> dict[str, Any]:
        """The complete experiment of a run."""
        return _document(self.folder(name) / "config.yaml")

    def rounds(self, name: str) -> list[Event]:
        """All rounds so far, with the keys that the page needs."""
        path = self.folder(name) / "rounds.jsonl"
        if not path.is_file():
            return []
        try:
            return [slim(event) for event in read_json_lines(path)]
        except InputError:
            return []  # the run is just being resumed, and its log is being cut

    # --- starting and stopping runs ---------------------------------------------------------------------------------

    def start(self, experiment: Experiment, wish: str | None) -> str:
        """Start a run in a new folder and return its name."""
        name = experiment.run_name if wish is None else wish
        if not _NAME.fullmatch(name):
            raise InputError("name: must have at most 100 characters, only letters, digits and . _ = , + -, and begin "
                             "with a letter or digit")
        if wish is None:
            name = self._free(name)
        folder = self.root / name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError(f"name: {name} exists already; choose another name") from None
        except OSError as error:
            raise FedgapError(f"{self.root}: cannot be written ({error.strerror})") from None
        write_document(experiment.to_dict(), folder / "experiment.yaml")
        self._launch(folder, "train", str(folder / "experiment.yaml"), "--out", str(folder), "--json")
        return name

    def resume(self, name: str) -> None:
        """Continue a run that was stopped, or start it again if training had not begun."""
        folder = self.folder(name)
        state, _ = self.state(name)
        if state not in ("stopped", "failed"):
            raise InputError(f"run: must have stopped before it can be continued; it is {state}")
        if has_run(folder):
            self._launch(folder, "resume", str(folder), "--json")
        elif (folder / "experiment.yaml").is_file():
            self._launch(folder, "train", str(folder / "experiment.yaml"), "--out", str(folder), "--json")
        else:
            raise InputError("run: cannot be continued, because its folder has neither job/job.json nor experiment.yaml"
                             "; start a new run")

    def stop(self, name: str) -> None:
        """Ask a run to end after its current round. Everything so far stays on disk."""
        folder = self.folder(name)
        mark = _json(folder / _MARK)
        if self._alive(folder, mark):
            os.kill(mark["pid"], signal.SIGTERM)
            write_json(folder / _MARK, mark | {"stopping": True})
            return
        pid = self._writer(folder, mark)
        if pid is None:
            raise InputError("run: has stopped already")
        if "fedgap" not in command(pid):
            raise InputError("run: was not started by fedgap's own command; stop it where it was started")
        os.kill(pid, signal.SIGTERM)

    def _free(self, name: str) -> str:
        number = 1
        while (self.root / (name if number == 1 else f"{name}-{number}")).exists():
            number += 1
        return name if number == 1 else f"{name}-{number}"

    def _launch(self, folder: Path, *arguments: str) -> None:
        with open(folder / _LOG, "wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "fedgap", *arguments], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
        self._started[process.pid] = process
        write_json(folder / _MARK, {"pid": process.pid, "started": time.time()})

    def _alive(self, folder: Path, mark: dict[str, Any]) -> bool:
        """Whether the process that was started for this folder still works on it. (Another process may have its number
        by now.)"""
        pid = mark.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or pid < 2:
            return False
        child = self._started.get(pid)
        return child.poll() is None if child is not None else str(folder) in command(pid)

    def _writer(self, folder: Path, mark: dict[str, Any]) -> int | None:
        """The process outside the studio that trains this run, for example ``fedgap train`` in a terminal; None if
        there is none."""
        pid = self._writers.process_of(folder / "rounds.jsonl")
        return None if pid == mark.get("pid") else pid


def slim(event: Event) -> Event:
    """The values of a round that the page draws."""
    return {key: event[key] for key in KEPT if key in event}


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run that has begun or is about to begin."""
    return has_run(folder) or (folder / _MARK).is_file()


def _last_words(folder: Path) -> str:
    """The last line of the process's output, without the leading ``fedgap:``."""
    try:
        lines = (folder / _LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("fedgap: ")[:500] if lines else ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _document(path: Path) -> dict[str, Any]:
    try:
        known = path.stat()
    except OSError:
        return {}
    return _parsed(path, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=2000)  # a page asks for all runs every few seconds, and their documents hardly ever change
def _parsed(path: Path, changed_ns: int, size: int) -> dict[str, Any]:
    try:
        value = parse(read_file(path), path.name)
    except InputError:
        return {}
    return value if isinstance(value, dict) else {}


def _learner(scenario: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any] | None:
    """The learning settings that the page shows; None as long as there is no scenario.

    If local steps and upload bits were planned, they are taken from the plan."""
    learning = scenario.get("learning")
    if not isinstance(learning, dict):
        return None
    planned: dict[str, Any] = next(iter(plan.get("segments") or []), {})
    usual = {"local_steps": 1, "upload_bits": 32}
    return {**{key: planned.get(key) or learning.get(key, value) for key, value in usual.items()},
            "optimiser": _inner(learning, "server", "optimiser") or "sgd", "batches": learning.get("batches", "as_is")}


def _inner(document: dict[str, Any], section: str, key: str) -> Any:
    written = document.get(section)
    return written.get(key) if isinstance(written, dict) else None
