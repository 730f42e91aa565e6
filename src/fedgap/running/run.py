"""Execute saved jobs in their run folders, and read finished runs.

``python -m fedgap.running.run DIR...`` executes (or resumes) run folders on a machine with torch, numpy, safetensors,
PyYAML and rich. Folders with the same model and data set are trained together, others one after the other."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedgap.errors import InputError, RunFailedError
from fedgap.files import hold_folder, remove_torn, write_bytes, write_json
from fedgap.learning.data import Dataset, load
from fedgap.report.printable import Printable
from fedgap.running.checkpoint import Checkpoints
from fedgap.running.events import Event, OnEvents, RoundLog, read_rounds
from fedgap.running.final_evaluation import accuracy_figures
from fedgap.running.interrupts import interruptible
from fedgap.running.job import Job
from fedgap.running.loop import Rounds
from fedgap.running.model_card import model_card
from fedgap.running.predict import Predictions, TrainedModel
from fedgap.running.ruled_steering import RuledSteering
from fedgap.running.run_folder import has_run
from fedgap.running.run_report import run_report
from fedgap.running.tracker import RunTrackers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedgap.planning.plan import Plan
    from fedgap.running.steering import Steering

DEPLOY_COMMAND = Path("deployment") / "command.txt"
"""File in a deployed run's folder with the command that resumes it."""


@dataclass(frozen=True)
class Run(Printable):
    """A run's folder. Its files are read when they are needed; ``print`` shows the results.

    >>> small = ["rounds=3", "budget.delay_s=2", "model.name=mlp", "data.train_samples=300", "engine.threads=1"]
    >>> made = fedgap.train(fedgap.Experiment.load("embedded", small), "runs/read")
    >>> run = fedgap.Run("runs/read")
    >>> run.finished, run.summary["rounds"], [event["round"] for event in run.history]
    (True, 3, [0, 1, 2])
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # users may pass a string

    @cached_property
    def job(self) -> Job:
        """The job, with everything that the run was asked to do."""
        return Job.load(self.folder / "job")

    @cached_property
    def trained_job(self) -> Job:
        """The job with the rounds that were trained. It differs from :attr:`job` if a policy decided the rounds."""
        steering, state = _steering(self), Checkpoints(self.folder / "checkpoint").load()
        if steering is None or state is None:
            return self.job
        steering.load(state[1]["steering"])
        return steering.whole_job(int(state[1]["round"]))

    @cached_property
    def plan(self) -> Plan:
        """The plan that was trained."""
        from fedgap.planning.plan import Plan

        return Plan.load(self.folder / "plan.json")

    def parts(self) -> list[RenderableType]:
        """A table of the results, and remarks."""
        if not self.finished:
            return [f"{self.folder}: the run has not finished; continue with `fedgap resume {self.folder}`"]
        return run_report(self.folder, self.summary, self.job, self.history)

    @property
    def history(self) -> list[Event]:
        """One dictionary per round, as in ``rounds.jsonl``."""
        return read_rounds(self.folder / "rounds.jsonl")

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """The results, as in ``summary.json``."""
        if not self.finished:
            raise InputError(f"{self.folder}: the run has not finished; continue with `fedgap resume {self.folder}`")
        try:
            result: dict[str, Any] = json.loads((self.folder / "summary.json").read_bytes())
        except ValueError as error:
            raise InputError(f"{self.folder / 'summary.json'}: is not valid JSON ({error}); delete it, and `fedgap "
                             f"resume {self.folder}` writes it again") from None
        return result

    @property
    def failure(self) -> str:
        """Why the run failed; "" if it did not."""
        return str(self.summary["ended"]) if self.summary.get("failed") else ""

    @cached_property
    def trained(self) -> TrainedModel:
        """The trained model together with the format of its inputs."""
        if not has_run(self.folder):
            raise InputError(f"{self.folder}: holds no run; start one with `fedgap train`")
        return TrainedModel.load(self.folder, self.job)

    @property
    def model(self) -> nn.Module:
        """The trained model (the pruned one, if that was evaluated), in evaluation mode.

        It takes standardised inputs; :meth:`predict` takes raw samples."""
        return self.trained.module

    def predict(self, samples: ArrayLike | Tensor) -> Predictions:
        """Predict classes for raw ``samples``, without standardisation: images (n, h, w) or (n, c, h, w), or vectors
        (n, features)."""
        return self.trained.predict(samples)


def execute(folders: Sequence[Path], *, dataset: Dataset | None = None, on_events: OnEvents | None = None) -> list[Run]:
    """Train the jobs in these run folders together until each has ended, resuming from checkpoints.

    The jobs must share model, data, device and precision. Ctrl-C (or SIGTERM) lets the current round end, writes
    everything to disk and raises KeyboardInterrupt."""
    runs = [Run(Path(folder)) for folder in folders]
    for folder in folders:
        if not has_run(Path(folder)):
            if (folder / "sweep.json").exists():
                raise InputError(f"{folder}: holds a sweep; the same `fedgap sweep` command continues it")
            raise InputError(f"{folder}: holds no run; start one with `fedgap train`")
    waiting = [i for i, run in enumerate(runs) if not run.finished]
    if not waiting:
        return runs
    jobs = [run.job for run in runs]
    for i in waiting:
        if jobs[i].extra.get("deployed"):
            raise InputError(f"{runs[i].folder}: this run is a deployment; continue it with: {deploy_command(runs[i])}")
    dataset = dataset or open_data(runs[waiting[0]])
    if dataset.digest() != jobs[waiting[0]].data_sha256:
        raise InputError(f"data: {dataset.name} is not the data that this run began with (its SHA-256 differs); "
                         "provide the original data, or train into another folder")
    if len({jobs[i].kind for i in waiting}) > 1:
        raise InputError(f"{runs[waiting[0]].folder}: differs from the other runs in model, data, device or precision, "
                         "so they cannot be trained together; pass them one by one")
    with ExitStack() as held, interruptible() as interrupted:
        for i in waiting:
            held.enter_context(hold_folder(runs[i].folder))
            remove_torn(runs[i].folder)
        states = {i: Checkpoints(runs[i].folder / "checkpoint").load() for i in waiting}
        at = {i: state[1]["round"] if state else 0 for i, state in states.items()}
        for start in sorted(set(at.values())):  # after a crash, runs may be at different rounds; those are not stacked
            together = [i for i in waiting if at[i] == start]
            _train({i: runs[i] for i in together}, [states[i] for i in together], dataset, interrupted, on_events)
    return runs


def by_kind(folders: Iterable[Path]) -> list[list[Path]]:
    """Group run folders into lists that can be trained together."""
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        groups.setdefault(Job.load(folder / "job").kind, []).append(folder)
    return list(groups.values())


def open_data(run: Run) -> Dataset:
    """The run's data set: the copy in its folder if there is one, otherwise the one that its job names."""
    copy = run.folder / "job" / "data.npz"
    return Dataset.open(copy) if copy.is_file() else load(**run.job.data)


def deploy_command(run: Run) -> str:
    """The command that resumes a deployed run: the one with which it was started, as it was typed."""
    typed = run.folder / DEPLOY_COMMAND
    if typed.is_file():
        return typed.read_text(encoding="utf-8").strip()
    return f"flwr run, with the same app, connection and run-config (folder=\"{run.folder.resolve()}\")"


def _train(runs: dict[int, Run], states: list[Any], dataset: Dataset, interrupted: Callable[[], bool],
           on_events: OnEvents | None) -> None:
    positions, began = list(runs), time.monotonic()
    rounds = Rounds([run.job for run in runs.values()], dataset, steerings=[_steering(run) for run in runs.values()])
    if states[0] is not None:
        rounds.load(states)
    logs = {i: RoundLog(runs[i].folder / "rounds.jsonl", state[1]["log"] if state else 0)
            for i, state in zip(positions, states, strict=True)}
    write_versions([run.folder for run in runs.values()], rounds)
    trackers = {i: RunTrackers(run) for i, run in runs.items()}

    def write() -> None:
        for i, events in zip(positions, rounds.drain(), strict=True):
            logs[i].write(events)
            trackers[i].log(events)
            if on_events and events:
                on_events(i, runs[i].job, events)

    def checkpoint() -> None:
        write()
        for row, i in enumerate(positions):
            tensors, state = rounds.state(row)
            state["log"] = logs[i].sync()
            Checkpoints(runs[i].folder / "checkpoint").save(rounds.round, tensors, state)

    again: list[int] = []  # runs that returned to an earlier round, and so continue separately

    def take_back(row: int) -> None:
        """Return a run whose loss is not finite to its last good round, and continue at half the rate."""
        account, i = rounds.accounts[row], positions[row]
        assert account.good is not None
        tensors, before = account.good
        reason, changed = account.progress.ended.split(";")[0], account.halve_rate()
        account.take_back(runs[i].history[before["round"]:], reason, changed)
        state = {**account.state(), **before, "log": logs[i].cut(before["round"])}
        Checkpoints(runs[i].folder / "checkpoint").save(before["round"], tensors, state)
        again.append(i)

    while positions:
        ended = [row for row, account in enumerate(rounds.accounts) if account.stopped(rounds.round)]
        if ended or interrupted():
            checkpoint()
            for row in ended:
                account = rounds.accounts[row]
                if account.progress.not_finite and account.good is not None and not account.recovery:
                    take_back(row)
                else:
                    finish(runs[positions[row]], rounds, row, time.monotonic() - began)
                    trackers[positions[row]].close(runs[positions[row]].summary)
            if interrupted() and len(ended) < len(positions):
                for tracker in trackers.values():
                    tracker.close()
                raise KeyboardInterrupt
            left = [row for row in range(len(positions)) if row not in ended]
            positions = [positions[row] for row in left]
            if left:
                rounds.keep(left)
            continue
        rounds.step()
        if rounds.ready():
            write()
        if rounds.round % rounds.accounts[0].job.checkpoint_every == 0:
            checkpoint()
    for i, log in logs.items():
        log.close()
        trackers[i].close()
    for i in again:
        state = Checkpoints(runs[i].folder / "checkpoint").load()
        _train({i: runs[i]}, [state], dataset, interrupted, on_events)


def _steering(run: Run) -> Steering | RuledSteering | None:
    """The object that decides the run's rounds if it has a policy; None if it follows its plan."""
    if not run.job.policy:
        return None
    if "rule" in run.job.policy:
        return RuledSteering(run.job)
    from fedgap.running.steering import Steering  # needs the planner, which a static run does not

    return Steering.of(run.folder, run.job)


def finish(run: Run, rounds: Rounds, row: int, wall_s: float) -> None:
    """Write ``model.safetensors`` and ``model_card.md``, then ``summary.json``, whose presence shows that the run has
    ended."""
    account, layout = rounds.accounts[row], rounds.engine.layout
    weights, buffers = rounds.shipped(row), rounds.model.buffers[row]
    frozen = {name: p for name, p in rounds.engine.module.named_parameters() if not p.requires_grad}
    tensors = {**frozen, **layout.split(weights), **layout.split_buffers(buffers)}
    write_bytes(run.folder / "model.safetensors",
                save_tensors({name: t.detach().cpu().float().contiguous().clone() for name, t in tensors.items()}))
    history, ledger, job = run.history, account.ledger, account.whole_job(rounds.round)
    last = next((event for event in reversed(history) if "test_accuracy" in event), {})
    best = max((event["test_accuracy"] for event in history if "test_accuracy" in event), default=None)
    summary = {
        "format": 1, "ended": account.stopped(rounds.round), "diverged": account.progress.diverged,
        "scheme": job.scheme, "seed": job.seed,
        "rounds": rounds.round, "rounds_planned": run.job.rounds,
        "test_accuracy": last.get("test_accuracy"), "best_test_accuracy": best, "test_loss": last.get("test_loss"),
        "train_loss": history[-1]["train_loss"] if history else None,
        "generalization_gap": last.get("generalization_gap"),
        "energy_j": ledger.energy_j, "delay_s": ledger.delay_s, "broadcast_j": ledger.broadcast_j,
        "energy_left_j": job.energy_budget_j - ledger.energy_j, "delay_left_s": job.delay_budget_s - ledger.delay_s,
        "accounting": job.accounting, "uploaded_bits": ledger.uploaded_bits,
        "kept_weights": int(torch.count_nonzero(rounds.kept(row))), "weights": layout.size,
        "clients": ledger.by_client(), **_policy_summary(job, history), **job.extra.get("summary", {}),
        "wall_s": round(wall_s, 3)}
    if account.recovery:
        summary["taken_back"] = account.recovery
    if account.progress.diverged:
        summary |= {"ended": account.progress.ended, "failed": True}
    if "preprocessing" in summary:  # the job of a run that fedgap 0.1 began does not have it
        summary |= accuracy_figures(job, *rounds.test_answers(row))
        versions = json.loads((run.folder / "versions.json").read_bytes())
        write_bytes(run.folder / "model_card.md", model_card(run.folder, job, summary, versions).encode())
    write_json(run.folder / "summary.json", summary)


def _policy_summary(job: Job, history: Sequence[Event]) -> dict[str, Any]:
    """The keys of the summary for a run whose rounds a policy decided."""
    if not job.policy:
        return {}
    return {"policy": job.policy["name"], "planned_again": sum("planned_again" in event for event in history)}


def write_versions(folders: list[Path], rounds: Rounds) -> None:
    """Write the versions of fedgap, Python and packages, and the device, into each run's folder."""
    device = rounds.engine.device
    versions = {"fedgap": _version(), "python": platform.python_version(), "torch": torch.__version__,
                "numpy": np.__version__, "platform": platform.platform(), "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
                "precision": rounds.engine.precision}
    for folder in folders:
        write_json(folder / "versions.json", versions)


def _version() -> str:
    try:
        return metadata.version("fedgap")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "source"


def main(arguments: Sequence[str]) -> int:
    """Execute the named run folders and return the exit code."""
    from fedgap.running.live_progress import show

    failures = []
    try:
        for group in by_kind(map(Path, arguments)):
            with show() as on_events:
                failures += [f"{run.folder}: {run.failure}" for run in execute(group, on_events=on_events)
                             if run.failure]
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:  # most often a full disk; all files are intact, and the same command resumes
        print(error, file=sys.stderr)
        return InputError.exit_code
    except KeyboardInterrupt:
        return 130
    for failure in failures:
        print(failure, file=sys.stderr)
    return RunFailedError.exit_code if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
