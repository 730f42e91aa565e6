"""A tracker that writes the run's curves for TensorBoard into its folder (``tensorboard --logdir runs``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fedgap.running.events import Event
from fedgap.running.job import Job
from fedgap.running.tracker import TrackedRun

FOLDER = "tensorboard"
"""Name of the sub-folder in a run's folder."""
TAGS = {
    "train_loss": "loss/train", "test_loss": "loss/test", "validation_loss": "loss/validation",
    "test_accuracy": "accuracy/test", "validation_accuracy": "accuracy/validation",
    "generalization_gap": "loss/generalization_gap", "energy_j": "energy_j/round", "energy_total_j": "energy_j/total",
    "delay_s": "delay_s/round", "delay_total_s": "delay_s/total", "uploaded_bits": "uploaded_bits/round",
}
"""Key of a round's event → tag of its curve."""
RESULTS = ("accuracy/test", "loss/test", "energy_j/total", "delay_s/total")
"""The curves whose last values TensorBoard shows next to the hyperparameters."""


class TensorBoard:
    """Writes losses, accuracies, joules, seconds, clients, forecasts and hyperparameters; one step per round.

    A resumed run writes its rounds so far into a new file that replaces the old one, so that no round occurs twice."""

    def __init__(self, run: TrackedRun) -> None:
        """Begin the event file with the hyperparameters, the plan's forecast and the rounds so far."""
        folder = run.folder / FOLDER
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder))
        for summary in hparams(hyperparameters(run.job), dict.fromkeys(RESULTS, 0.0)):  # type: ignore[no-untyped-call]
            self._writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]
        self._scalars(_forecast(run.job.extra.get("summary", {}).get("forecast"), "planned"), 0)
        self.log(run.history)

    def log(self, events: Sequence[Event]) -> None:
        """Write the next points of the curves."""
        for event in events:
            self._scalars(scalars(event), event["round"])
        self._writer.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Write why the run ended, and close the file."""
        if summary is not None:
            self._writer.add_text("ended", str(summary["ended"]), summary["rounds"])
        self._writer.close()

    def _scalars(self, values: Iterator[tuple[str, float]], step: int) -> None:
        for tag, value in values:
            self._writer.add_scalar(tag, value, step)


def scalars(event: Event) -> Iterator[tuple[str, float]]:
    """The points that a round adds to the curves, as pairs of tag and value."""
    for key, tag in TAGS.items():
        if event.get(key) is not None:
            yield tag, event[key]
    ratios = event["pruning_ratio"]
    yield "clients/selected", len(event["clients"])
    yield "clients/missing", len(event.get("dropped", ())) + len(event.get("late", ()))
    yield "pruning_ratio/mean", sum(ratios) / len(ratios) if ratios else 0.0
    yield from _forecast(event.get("forecast"), "corrected")


def _forecast(forecast: Mapping[str, float] | None, name: str) -> Iterator[tuple[str, float]]:
    for key in ("accuracy", "low", "high") if forecast else ():
        yield f"forecast_{name}/{key}", forecast[key]  # type: ignore[index]


def hyperparameters(job: Job) -> dict[str, str | int | float]:
    """The settings that distinguish one run from another."""
    return {"scheme": job.scheme, "policy": job.policy.get("name", "plan"), "seed": job.seed,
            "data": str(job.data["name"]), "model": str(job.model["name"]), "clients": len(job.names),
            "rounds": job.rounds, "energy_budget_j": job.energy_budget_j, "delay_budget_s": job.delay_budget_s,
            "learning_rate": job.learning_rate, "local_steps": job.local_steps, "upload_bits": job.upload_bits,
            "aggregator": job.aggregator, "structure": job.structure}
