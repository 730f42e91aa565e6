"""The report of a deployed run: modelled and measured joules, seconds and bytes."""

from __future__ import annotations

from fedgap.running.run import Run
from fedgap.running.run_report import plan_changes


def deployment_report(run: Run) -> list[str]:
    """The report as lines for a terminal."""
    summary, history = run.summary, run.history
    accuracy = summary["test_accuracy"]
    return [
        f"{summary['rounds']} of {summary['rounds_planned']} rounds ({summary['ended']}); test accuracy "
        f"{'–' if accuracy is None else f'{accuracy:.1%}'}",
        f"modelled {summary['delay_s']:.4g} s and {summary['energy_j']:.4g} J; measured "
        f"{sum(event['measured_s'] for event in history):.1f} s, of which "
        f"{sum(event['overhead_s'] for event in history):.1f} s were overhead (everything except the slowest client's "
        "computing)",
        f"uploads: modelled {summary['uploaded_bits'] / 8:.0f} bytes, measured "
        f"{sum(event['uploaded_bytes'] for event in history)}",
        *plan_changes(history),
        f"folder: {run.folder}",
    ]
