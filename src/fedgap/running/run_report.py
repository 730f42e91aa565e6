"""A run as people read it: what came out, and what to know before believing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgap.report.number_format import three
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedgap.running.job import Job

NEARLY = 1.1
"""Up to this ratio the scenario's gradient and the model's count as equally large."""


def run_report(folder: Path, summary: dict[str, Any], job: Job) -> list[RenderableType]:
    """The table, remarks, and where everything is."""
    table = Sheet(f"{summary['data']}, {summary['model']}, {summary['scheme']}, seed {summary['seed']}", "", "value",
                  left=["value"])

    def row(name: str, value: Any, text: str = "{}") -> None:
        table.add_row(name, "–" if value is None else text.format(value))

    row("rounds", f"{summary['rounds']} of {summary['rounds_planned']}: {summary['ended']}")
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
    return [table, *_remarks(summary, job), f"Everything is in {folder}; the model is {folder / 'model.safetensors'}."]


def _remarks(summary: dict[str, Any], job: Job) -> list[str]:
    """A loss that is not finite where the training did not end for it, and costs of another model."""
    remarks = []
    if summary["test_accuracy"] is not None and summary["test_loss"] is None and not summary.get("diverged"):
        remarks.append("The test loss is not finite; training probably diverged: try a smaller "
                       "scenario.learning.rate.")
    model_bits, charged = 32 * int(summary["weights"]), job.gradient_bits.tolist()
    if not min(charged) / NEARLY <= model_bits <= max(charged) * NEARLY:
        remarks.append(f"Joules and seconds are those of a gradient of {max(charged):,.0f} bits (the scenario's); this "
                       f"model's has {model_bits:,}. To charge the model's own size, set "
                       f"scenario.model.gradient_bits={model_bits}, and flops_per_sample likewise.")
    return remarks
