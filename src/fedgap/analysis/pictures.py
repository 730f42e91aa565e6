"""Figures of planning: schemes side by side, and what other budgets would achieve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.errors import InputError
from fedgap.planning import Plan
from fedgap.report.bound_terms import TERMS
from fedgap.report.figures import PAGE_WIDTH, log_ticks, new_figure, plain_axes
from fedgap.report.number_format import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"alpha": "#999999", "clients": "#E69F00", "generalization": "#0072B2", "pruning": "#D55E00"}
"""Okabe and Ito's colours, which colour-blind people can tell apart."""
MARKS = {"alpha": "s", "clients": "^", "generalization": "o", "pruning": "D"}
STAR: dict[str, Any] = {"marker": "*", "linestyle": "", "color": "#D55E00", "markeredgecolor": "white",
                        "markersize": 16, "zorder": 5, "label": "the scenario's"}
"""How the scenario's own budgets are marked."""
LEVEL = 0.01
"""A θ that is less than this many per cent above the lowest is drawn as equal to it; solvers are not more exact."""
MOST_NUMBERED = 8
"""Largest number of cells in a row that have room for a number."""


def draw_comparison(plans: Sequence[Plan], rounds: int, title: str) -> Figure:
    """Draw each scheme's θ and its terms on a logarithmic scale, because they differ by orders of magnitude.

    A scheme that cannot finish all rounds within the budgets has hollow marks, which show the rounds that it can
    finish.

    :param rounds: the scenario's number of rounds.
    """
    figure = new_figure(8.5, 0.55 * len(plans) + 1.7)
    ax = figure.subplots()
    for row, answer in enumerate(plans):
        whole = answer.rounds == rounds
        for key, value in answer.terms.items():
            if answer.feasible and value > 0.0:
                face = COLOURS[key] if whole else "white"
                ax.plot(value, row, MARKS[key], color=COLOURS[key], markerfacecolor=face, markersize=8, zorder=3)
        if whole and np.isfinite(answer.theta):
            ax.plot(answer.theta, row, "|", color="black", markersize=20, markeredgewidth=2.5, zorder=2)
        text = f"θ = {answer.theta:.5g}" if whole else f"θ = ∞\n{answer.rounds} of {rounds} rounds"
        ax.text(1.02, row, text, va="center", fontsize=9, transform=ax.get_yaxis_transform())
    for key, (name, _) in TERMS.items():
        ax.plot([], [], MARKS[key], color=COLOURS[key], markersize=8, label=name)
    ax.plot([], [], "|", color="black", markersize=14, markeredgewidth=2.5, label="θ, their sum")
    ax.set_yticks(range(len(plans)), [answer.scheme for answer in plans])
    ax.set_ylim(len(plans) - 0.5, -0.5)
    ax.set_xscale("log")
    ax.set_xlabel("bound on the mean squared gradient norm, by terms (logarithmic)")
    ax.set_title(title, fontsize=10)
    plain_axes(ax, "x")
    figure.legend(loc="outside lower center", ncols=len(TERMS) + 1, fontsize=9, frameon=False)
    return figure


def draw_accuracies(plans: Sequence[Plan], title: str) -> Figure:
    """Draw each plan's forecast accuracy with its interval, the best on top."""
    known = sorted((answer for answer in plans if answer.forecast is not None),
                   key=lambda answer: answer.forecast.accuracy if answer.forecast else 0.0)
    figure = new_figure(7.5, 0.36 * len(known) + 1.5)
    ax = figure.subplots()
    for row, answer in enumerate(known):
        forecast = answer.forecast
        assert forecast is not None
        ends = (forecast.accuracy if end is None else end for end in (forecast.low, forecast.high))
        accuracy, low, high = (100.0 * value for value in (forecast.accuracy, *ends))
        ax.errorbar(accuracy, row, xerr=[[max(accuracy - low, 0.0)], [max(high - accuracy, 0.0)]], fmt="o",
                    color="#0072B2", capsize=3)
    ax.set_yticks(range(len(known)), [f"{answer.scheme} ({answer.rounds} rounds)" for answer in known])
    ax.set(xlabel="forecast accuracy on the test set, %, with its interval", title=title)
    plain_axes(ax, "x")
    return figure


def draw_frontier(
    energies: Sequence[float], delays: Sequence[float], theta: np.ndarray, energy_j: float, delay_s: float,
    accuracy: np.ndarray,
) -> Figure:
    """Draw the forecast accuracy and θ over a grid of budgets.

    At the top are the forecast accuracy and θ against the delay budget, with one line per energy budget. The lines are
    steps, because between two budgets only the plan of the smaller one is known. At the bottom is θ with one cell per
    pair of budgets. θ is drawn as the distance from the lowest θ, in per cent on a logarithmic scale. Pairs without a
    plan stay blank.

    :param theta: shape (energies, delays), NaN for pairs without a plan;
    :param energy_j: and :param delay_s: the scenario's own budgets, which get a star if the grid contains them;
    :param accuracy: forecast accuracy in per cent, of the same shape.
    """
    if np.isnan(theta).all():
        raise InputError("picture: there is nothing to draw, because no pair of budgets allows a plan; use larger "
                         "budgets")
    best = float(np.nanmin(theta))
    above = 100.0 * (theta / best - 1.0)
    floor = float(np.nanmin(np.where(above > LEVEL, above, np.nan), initial=1.0)) / 3.0
    above = np.where(above <= LEVEL, floor, above)  # a logarithmic axis has no 0, so the lowest θ is drawn at its end
    label = f"θ above the lowest, {best:.5g}, in %"
    star = (energies.index(energy_j), delays.index(delay_s)) if energy_j in energies and delay_s in delays else None
    figure = new_figure(PAGE_WIDTH, 7.6)
    grid = figure.add_gridspec(2, 2)
    forecast, lines, cells = (figure.add_subplot(place) for place in (grid[0, 0], grid[0, 1], grid[1, :]))
    _draw_lines(lines, energies, delays, above, star)
    _scale_above(lines, above, floor)
    lines.set_ylabel(label)
    _draw_lines(forecast, energies, delays, accuracy, star)
    forecast.set_ylabel("forecast accuracy, %")
    forecast.legend(title="energy budget E₀", fontsize=8, title_fontsize=8)
    _draw_cells(figure, cells, energies, delays, theta, above, star, floor, label)
    for ax in (lines, cells, forecast):
        ax.set_xlabel("delay budget T₀, s")
    for ax in (lines, forecast):
        plain_axes(ax, "both")
    return figure


def draw_target_frontier(
    pairs: Sequence[tuple[float, float]], answers: Mapping[str, tuple[float, float]], scenario: tuple[float, float],
    title: str,
) -> Figure:
    """Draw pairs of joules and seconds that just suffice for a target accuracy, both on logarithmic scales.

    The line has steps, because between two pairs only the joules of the pair with fewer seconds are known to suffice.

    :param answers: further pairs by name; :param scenario: the scenario's own pair.
    """
    figure = new_figure(7.0, 4.6)
    ax = figure.subplots()
    if pairs:
        ax.plot([seconds for _, seconds in pairs], [joules for joules, _ in pairs], "o-", drawstyle="steps-post",
                color="#0072B2", label="just suffices")
    for mark, (name, (joules, seconds)) in zip("sD^", answers.items(), strict=False):
        ax.plot(seconds, joules, mark, color="#009E73", markersize=8, label=name)
    ax.plot(scenario[1], scenario[0], **STAR)
    ax.set(xscale="log", yscale="log", xlabel="delay budget T₀, s", ylabel="energy budget E₀, J")
    for axis in (ax.xaxis, ax.yaxis):
        log_ticks(axis)
    ax.set_title(title, fontsize=10)
    plain_axes(ax, "both")
    ax.legend(fontsize=8)
    return figure


def _draw_lines(
    ax: Any, energies: Sequence[float], delays: Sequence[float], values: np.ndarray, star: tuple[int, int] | None,
) -> None:
    from matplotlib import colormaps

    colours, marks = colormaps["cividis"](np.linspace(0.0, 0.9, len(energies))), "os^Dv<>p"
    for n, energy in enumerate(energies):
        if np.isnan(values[n]).all():
            continue
        ax.plot(delays, values[n], f"{marks[n % len(marks)]}-", drawstyle="steps-post", color=colours[n], markersize=5,
                linewidth=1.3, label=f"{energy:.4g} J")
    if star is not None and np.isfinite(values[star]):
        ax.plot(delays[star[1]], values[star], **STAR)
    margin = 0.04 * (delays[-1] - delays[0]) or 1.0
    ax.set_xlim(delays[0] - margin, delays[-1] + margin)


def _scale_above(ax: Any, above: np.ndarray, floor: float) -> None:
    """Make the axis logarithmic, with the label 0 at its lower end, ``floor``."""
    ax.set_yscale("log")
    least, most = 1.5 * floor, float(np.nanmax(above))
    decades = 10.0 ** np.arange(np.floor(np.log10(least)), np.log10(most) + 1e-9)
    ticks = np.outer(decades, (1.0,) if len(decades) > 3 else (1.0, 2.0, 5.0)).ravel()
    ticks = ticks[(ticks >= least) & (ticks <= most)]
    ax.set_yticks([floor, *ticks], ["0", *(f"{tick:g}" for tick in ticks)])
    ax.minorticks_off()


def _draw_cells(
    figure: Figure, ax: Any, energies: Sequence[float], delays: Sequence[float], theta: np.ndarray, above: np.ndarray,
    star: tuple[int, int] | None, floor: float, label: str,
) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    norm = LogNorm(floor, max(float(np.nanmax(above)), 10.0 * floor))
    drawn = ax.imshow(np.ma.masked_invalid(above), origin="lower", aspect="auto", cmap="cividis_r", norm=norm)
    names = FuncFormatter(lambda value, _: "0" if value <= 1.01 * floor else number(value, 2))
    scale = figure.colorbar(drawn, ax=ax, label=label, format=names, ticks=LogLocator(subs=(1.0, 2.0, 5.0)))
    scale.ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xticks(range(len(delays)), [f"{delay:.4g}" for delay in delays])
    ax.set_yticks(range(len(energies)), [f"{energy:.4g}" for energy in energies])
    if len(delays) > MOST_NUMBERED:
        ax.tick_params(axis="x", labelrotation=90, labelsize=7)
    else:
        for row, column in zip(*np.nonzero(np.isfinite(theta)), strict=True):
            dark = norm(above[row, column]) > 0.5
            lowered = 0.28 if (row, column) == star else 0.0
            ax.text(column, row - lowered, number(float(theta[row, column]), 4), ha="center", va="center", fontsize=7,
                    color="white" if dark else "black")
    if star is not None:
        ax.plot(star[1], star[0], **STAR)
    ax.set_ylabel("energy budget E₀, J")
    ax.set_title("θ by budgets (★ the scenario's; blank: no plan fits, or not tried)", fontsize=9)
