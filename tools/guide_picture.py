"""The picture of ``tools.guide``: how well each quantity ranks random plans by their test error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgap.evidence.scheme_picture import COLOURS
from fedgap.report.figures import PAGE_WIDTH, new_figure, plain_axes, save_figure


def draw_guide(results: Mapping[str, Any], path: Path) -> None:
    """Draw the rank correlation with the error of random plans for each reading of θ and each simpler quantity."""
    figure = new_figure(PAGE_WIDTH, 0.24 * len(results["correlations"][0]["of"]) + 1.6)
    axes = figure.subplots(1, len(results["correlations"]), squeeze=False, sharey=True)[0]
    names = sorted(results["correlations"][0]["of"], key=lambda n: results["correlations"][0]["of"][n]["mean"])
    for ax, block in zip(axes, results["correlations"], strict=True):
        for place, name in enumerate(names):
            correlation = block["of"][name]
            bound = name in results["rows"][0]["theta"]
            ax.errorbar(correlation["mean"], place, xerr=correlation["half"] or 0.0, fmt="o" if bound else "D",
                        capsize=2.5, color=COLOURS["all_clients"] if bound else COLOURS["no_pruning"], markersize=5)
        ax.axvline(0.0, color="#888888", linewidth=0.8)
        ax.set(xlim=(-1.0, 1.0), xticks=(-1.0, -0.5, 0.0, 0.5, 1.0), xticklabels=("−1", "−½", "0", "½", "1"),
               xlabel="rank correlation with the error")
        ax.set_title(block["title"], fontsize=10)
        ax.set_yticks(range(len(names)), names, fontsize=8)
        ax.set_ylim(-0.7, len(names) - 0.3)
        plain_axes(ax, "x")
    axes[0].plot([], [], "o", color=COLOURS["all_clients"], label="θ by statement, aggregation, γ₂, constants")
    axes[0].plot([], [], "D", color=COLOURS["no_pruning"], label="simpler guides")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save_figure(figure, path)
