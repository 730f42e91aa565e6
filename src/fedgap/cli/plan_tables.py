"""Tables of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgap.cli.binding import binding, energy_binds
from fedgap.cli.number_format import alike, number, rounds, share, si, split
from fedgap.cli.uncut_table import Sheet

if TYPE_CHECKING:
    from fedgap.planning import Plan, Segment
    from fedgap.planning.problem import Problem

MOST_CLIENTS = 40
"""Rows of a table of clients; of a larger fleet those who spend most are shown."""
FEW_CLIENTS = 12
"""Up to here the table lists those who are not selected, too."""
MOST_SEGMENTS = 6

TERMS = {
    "alpha": ("α", "how far there was to go"),
    "clients": ("clients", "noise of few clients"),
    "generalization": ("generalization", "their data against the target's"),
    "pruning": ("pruning", "what was removed"),
}
"""θ's terms: name → what to call it, and what it is the price of."""


def segment_table(problem: Problem, plan: Plan, segment: Segment) -> Sheet:
    """The clients of one segment: what each does in a round, what it costs, and what binds it."""
    cost = problem.cost(segment)
    taking_part = np.sum([np.where(s.selected, s.rounds, 0) for s in plan.segments], axis=0)
    unpruned = ", unpruned" if not segment.pruning_ratio[segment.selected].any() else ""
    title = (
        f"{segment.rounds:,} of {rounds(plan.rounds)}{unpruned}: {int(segment.selected.sum())} of {problem.size} "
        f"clients, {si(float(cost.delay_s), 's')} and {si(float(cost.energy_j), 'J')} a round"
    )
    shown, hidden = listed(segment, cost.client_j)
    made = Sheet(
        title, "client", "rounds", "pruned", "power", "clock", "download+\ncompute+upload", "energy", "what binds",
        left=("what binds",), caption=hidden,
    )
    words = binding(problem, segment, energy=energy_binds(problem, plan))
    for n in shown:
        name, part = problem.names[n], share(float(taking_part[n]), plan.rounds)
        if not segment.selected[n]:
            made.add_row(name, part, *["–"] * 5, "not selected", style="dim")
            continue
        made.add_row(
            name, part, f"{100.0 * segment.pruning_ratio[n]:.1f} %", si(segment.power_w[n], "W"),
            si(segment.frequency_hz[n], "Hz"),
            split(cost.download_s[n], cost.compute_s[n], cost.upload_s[n]), si(cost.client_j[n], "J"), words[n],
        )
    return made


def listed(segment: Segment, spent: np.ndarray) -> tuple[list[int], str | None]:
    """Which clients a table lists, in their order, and a sentence about those it does not."""
    size = segment.selected.size
    if size <= FEW_CLIENTS:
        return list(range(size)), None
    chosen = np.flatnonzero(segment.selected)
    shown = np.sort(chosen[np.argsort(-spent[chosen], kind="stable")[:MOST_CLIENTS]])
    more = f"{chosen.size - shown.size} more take part, each spending less; " if chosen.size > shown.size else ""
    return [int(n) for n in shown], f"{more}{size - chosen.size} clients are not selected; --json has everybody"


def terms_table(plan: Plan) -> Sheet:
    """θ by terms, each with its share."""
    made = Sheet("The bound θ by terms", "term", "value", "share", "is the price of", left=("is the price of",))
    total = sum(value for value in plan.terms.values())
    *values, theta = alike([*(plan.terms[key] for key in TERMS), plan.theta], 6)
    for text, (key, (name, meaning)) in zip(values, TERMS.items(), strict=True):
        made.add_row(name, text, share(plan.terms[key], total), meaning)
    made.add_section()
    made.add_row("θ", theta, "", "all of it", style="bold")
    return made


def budget_table(problem: Problem, plan: Plan) -> Sheet:
    """Both budgets: what is used, what there is, and what more of it would be worth."""
    made = Sheet("Budgets", "budget", "used", "of", "share", "more of it", left=("more of it",))
    made.add_row(
        "energy", f"{plan.energy_j:.6g} J", f"{problem.energy_j:.6g} J", share(plan.energy_j, problem.energy_j),
        price(plan, "energy", "a joule"),
    )
    made.add_row(
        "delay", f"{plan.delay_s:.6g} s", f"{problem.delay_s:.6g} s", share(plan.delay_s, problem.delay_s),
        price(plan, "delay", "a second"),
    )
    return made


def price(plan: Plan, key: str, unit: str) -> str:
    """A shadow price as a sentence."""
    value = None if plan.prices is None else plan.prices[key]
    if value is None:
        return "price unknown"
    return f"{unit} more lowers θ by {-value:.3g}" if value < 0.0 else f"{unit} more would not lower θ"


def certificate(plan: Plan) -> str:
    """What is known about better plans, in a sentence."""
    if plan.gap is None or plan.lower_bound is None:
        return "There is no certificate: better plans may exist."
    scope = "" if plan.scheme == "proposed" else f" by {plan.scheme}"  # others may choose what a scheme holds fixed
    scope += "" if plan.bound_scope == "all" else " with one selection in all rounds"
    return (f"Certified: no plan of {rounds(plan.rounds)}{scope} has θ below {number(plan.lower_bound, 6)}, so this "
            f"one is within {within(plan.gap)}.")


def within(gap: float) -> str:
    """A gap in per cent of the cost θ − α."""
    return "0.0001 % of the best cost θ − α" if gap < 1e-6 else f"{100.0 * gap:.2g} % of the best cost θ − α"


def comparison_table(problem: Problem, answers: list[Plan]) -> Sheet:
    """A row a scheme."""
    made = Sheet(
        f"Six schemes, {problem.rounds:,} rounds, {problem.energy_j:g} J, {problem.delay_s:g} s", "scheme", "rounds",
        *(name for name, _ in TERMS.values()), "θ", "gap", "energy", "delay",
        caption="θ = ∞ where the budgets do not carry all rounds. gap: to the certified bound, as a share of θ − α",
    )
    for answer in answers:
        if not answer.feasible:
            made.add_row(answer.scheme, "0", *["–"] * 4, "∞", "–", "–", "–", style="dim")
            continue
        made.add_row(
            answer.scheme, f"{answer.rounds:,}", *alike([*(answer.terms[key] for key in TERMS), answer.theta]),
            "–" if answer.gap is None else "0" if answer.gap < 1e-6 else f"{answer.gap:.1e}",
            share(answer.energy_j, problem.energy_j), share(answer.delay_s, problem.delay_s),
            style="bold" if answer.scheme == "proposed" else None,
        )
    return made
