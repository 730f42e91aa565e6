"""The printed report of a run: a table of its results, and remarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgap.report.number_format import three
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedgap.running.events import Event
    from fedgap.running.job import Job

_CHANGES = 4
"""Number of changes of the plan that are described; the others are only counted."""


def run_report(folder: Path, summary: dict[str, Any], job: Job, history: Sequence[Event]) -> list[RenderableType]:
    """The parts of the report: the table, remarks, and where the files are."""
    table = Sheet(f"{summary['data']}, {summary['model']}, {summary['scheme']}, seed {summary['seed']}", "", "value",
                  left=["value"])

    def row(name: str, value: Any, text: str = "{}") -> None:
        table.add_row(name, "–" if value is None else text.format(value))

    row("rounds", f"{summary['rounds']} of {summary['rounds_planned']}: {summary['ended']}")
    if job.policy:
        row("policy", f"{job.policy['name']}, {_times(len(_changes(history)))}")
    row("test accuracy", summary["test_accuracy"], "{:.2%}")
    row("test loss", summary["test_loss"], "{:.4f}")
    row("mini-batch loss", summary["train_loss"], "{:.4f}")
    row("generalization gap", summary["generalization_gap"], "{:+.4f}")
    row("energy", f"{three(summary['energy_j'])} J of {three(job.energy_budget_j)}")
    row("delay", f"{three(summary['delay_s'])} s of {three(job.delay_budget_s)}")
    row("weights kept", f"{summary['kept_weights']:,} of {summary['weights']:,}")
    for key in ("dropped", "late", "rejected"):
        count = sum(client[key] for client in summary["clients"])
        if count:
            row(f"{key} uploads", count)
    return [table, *plan_changes(history), *_remarks(summary, job),
            f"Everything is in {folder}; the model is {folder / 'model.safetensors'}."]


def plan_changes(history: Sequence[Event]) -> list[str]:
    """Sentences that say when and why a policy changed its plan; only the first few changes are described."""
    changes = _changes(history)
    told = [f"Round {event['round']} was planned again: {event['planned_again']}." for event in changes[:_CHANGES]]
    if len(changes) > _CHANGES:
        more = len(changes) - _CHANGES
        told.append(f"{more} later round{' was' if more == 1 else 's were'} also planned again; `planned_again` in "
                    "rounds.jsonl says why.")
    return told


def _changes(history: Sequence[Event]) -> list[Event]:
    return [event for event in history if "planned_again" in event]


def _times(count: int) -> str:
    return {0: "never planned again", 1: "planned again once"}.get(count, f"planned again {count} times")


def _remarks(summary: dict[str, Any], job: Job) -> list[str]:
    """Remarks about a loss that is not finite, and about costs that belong to another model size."""
    from fedgap.running.prepare import NEARLY

    remarks = []
    if summary["test_accuracy"] is not None and summary["test_loss"] is None and not summary.get("diverged"):
        remarks.append("The test loss is not finite; training probably diverged: try a smaller "
                       "scenario.learning.rate.")
    model_bits, charged = 32 * int(summary["weights"]), job.gradient_bits.tolist()
    if not min(charged) / NEARLY <= model_bits <= max(charged) * NEARLY:
        remarks.append(f"Joules and seconds were computed for a gradient of {max(charged):,.0f} bits, as the scenario "
                       f"says; this model's gradient has {model_bits:,} bits. To charge the model's own size, set "
                       f"scenario.model.gradient_bits={model_bits}, and flops_per_sample likewise.")
    return remarks
