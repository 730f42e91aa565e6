"""Figures of planning: schemes side by side, and the trade between joules, seconds and θ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.cli.number_format import number
from fedgap.cli.plan_tables import TERMS
from fedgap.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedgap.cli.fronts import Point
    from fedgap.planning import Plan
    from fedgap.planning.problem import Problem

COLOURS = {"alpha": "#999999", "clients": "#E69F00", "generalization": "#0072B2", "pruning": "#D55E00"}
"""Okabe and Ito's colours, which colour-blind people can tell apart."""
OWN = "#D55E00"
MARKS = {"alpha": "s", "clients": "^", "generalization": "o", "pruning": "D"}
_FORMATS = (".png", ".pdf", ".svg")


def check(path: Path | None) -> None:
    """Say before anything is computed that a picture cannot be drawn there."""
    if path is not None and path.suffix.lower() not in _FORMATS:
        raise InputError(f"--picture: must end in {', '.join(_FORMATS)}; got {str(path)!r}")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def draw_comparison(problem: Problem, answers: list[Plan], path: Path) -> None:
    """Each scheme's θ and its terms on a logarithmic scale, for they differ by orders of magnitude.

    A scheme whose budgets do not carry all rounds has hollow marks, for the rounds it can do.
    """
    figure = _figure(8.5, 0.55 * len(answers) + 1.7)
    ax = figure.subplots()
    for row, answer in enumerate(answers):
        whole = answer.rounds == problem.rounds
        for key, value in answer.terms.items():
            if answer.feasible and value > 0.0:
                face = COLOURS[key] if whole else "white"
                ax.plot(value, row, MARKS[key], color=COLOURS[key], markerfacecolor=face, markersize=8, zorder=3)
        if whole and np.isfinite(answer.theta):
            ax.plot(answer.theta, row, "|", color="black", markersize=20, markeredgewidth=2.5, zorder=2)
        text = f"θ = {answer.theta:.5g}" if whole else f"θ = ∞\n{answer.rounds} of {problem.rounds} rounds"
        ax.text(1.02, row, text, va="center", fontsize=9, transform=ax.get_yaxis_transform())
    for key, (name, _) in TERMS.items():
        ax.plot([], [], MARKS[key], color=COLOURS[key], markersize=8, label=name)
    ax.plot([], [], "|", color="black", markersize=14, markeredgewidth=2.5, label="θ, their sum")
    ax.set_yticks(range(len(answers)), [answer.scheme for answer in answers])
    ax.set_ylim(len(answers) - 0.5, -0.5)
    ax.set_xscale("log")
    ax.set_xlabel("bound on the mean squared gradient norm, by terms (logarithmic)")
    ax.set_title(f"{problem.rounds} rounds within {problem.energy_j:g} J and {problem.delay_s:g} s", fontsize=10)
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(TERMS) + 1, fontsize=9, frameon=False)
    _save(figure, path)


def draw_frontier(points: list[Point], own: tuple[float, float], path: Path) -> None:
    """How far θ is above the grid's lowest, in per cent and logarithmic, for it spans orders of magnitude.

    Left: against the delay budget, a line an energy budget. Right: lines of equal θ over both budgets.
    """
    from matplotlib import colormaps

    energies = sorted({p.budget_energy_j for p in points})
    delays = sorted({p.budget_delay_s for p in points})
    theta = np.full((len(energies), len(delays)), np.nan)
    for p in points:
        if np.isfinite(p.theta):
            theta[energies.index(p.budget_energy_j), delays.index(p.budget_delay_s)] = p.theta
    if np.isnan(theta).all():
        raise InputError("--picture: there is nothing to draw, for no budget carries a plan")
    best = float(np.nanmin(theta))
    above = 100.0 * (theta / best - 1.0)
    floor = float(np.nanmin(np.where(above > 1e-6, above, np.nan), initial=1.0)) / 3.0
    above = np.maximum(above, floor)  # a logarithmic axis has no zero: the lowest θ stands at its foot
    figure = _figure(11.0, 4.4)
    lines, plane = figure.subplots(1, 2)
    label = f"θ above the lowest, {best:.5g}, in %"
    colours = colormaps["cividis"](np.linspace(0.0, 0.9, len(energies)))
    styles = [f"{mark}-" for mark in "os^Dv<>p"]
    for n, (row, energy) in enumerate(zip(above, energies, strict=True)):
        style = styles[n % len(styles)]
        lines.plot(delays, row, style, color=colours[n], markersize=5, linewidth=1.3, label=f"{energy:.4g} J")
    if own[0] in energies and own[1] in delays:
        at = above[energies.index(own[0]), delays.index(own[1])]
        lines.plot(own[1], at, "*", color=OWN, markeredgecolor="white", markersize=16, label="the scenario's", zorder=5)
    lines.set(xlabel="delay budget T₀, s", ylabel=label, yscale="log", xlim=_around(delays))
    decades = 10.0 ** np.arange(np.ceil(np.log10(1.5 * floor)), np.log10(np.nanmax(above)) + 1e-9)
    lines.set_yticks([floor, *decades], ["0", *(f"{decade:g}" for decade in decades)])
    lines.minorticks_off()
    lines.legend(title="energy budget E₀", fontsize=8, title_fontsize=8)
    _draw_plane(figure, plane, np.array(delays), np.array(energies), above, label)
    plane.plot(own[1], own[0], "*", color=OWN, markeredgecolor="white", markersize=16, label="the scenario's")
    plane.legend(fontsize=8, loc="upper right")
    for ax in (lines, plane):
        ax.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _draw_plane(
    figure: Figure, ax: Any, delays: np.ndarray, energies: np.ndarray, above: np.ndarray, label: str
) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter

    known = np.ma.masked_invalid(above)
    ax.set(facecolor="#dddddd", xlim=_around(delays.tolist()), ylim=_around(energies.tolist()))
    if known.count() >= 4 and float(np.ptp(known.compressed())) > 0.0:
        levels = np.geomspace(float(known.min()), float(known.max()) * (1.0 + 1e-9), 9)
        filled = ax.contourf(delays, energies, known, levels=levels, norm=LogNorm(), cmap="cividis_r")
        ax.contour(delays, energies, known, levels=levels, colors="white", linewidths=0.5)
        names = FuncFormatter(lambda value, _: "0" if value <= 1.01 * levels[0] else number(value, 2))
        figure.colorbar(filled, ax=ax, label=label, format=names)
        title = "lines of equal θ (grey: no plan fits, or not tried)"
    else:
        title = "too few different θ for lines of equal θ"
    ax.set(xlabel="delay budget T₀, s", ylabel="energy budget E₀, J")
    ax.set_title(title, fontsize=9)


def _around(values: list[float]) -> tuple[float, float]:
    margin = 0.04 * (values[-1] - values[0]) or 1.0
    return values[0] - margin, values[-1] + margin
