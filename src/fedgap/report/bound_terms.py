"""The terms of the bound θ: what to call them, and their table."""

from __future__ import annotations

from collections.abc import Mapping

from fedgap.report.number_format import alike, share
from fedgap.report.uncut_table import Sheet

TERMS = {
    "alpha": ("α", "how far there was to go"),
    "clients": ("clients", "noise of few clients"),
    "generalization": ("generalization", "their data against the target's"),
    "pruning": ("pruning", "what was removed"),
}
"""Key of a term → its name, and what it is the price of."""


def local_steps_note(steps: int) -> list[str]:
    """What to say beside θ of rounds with so many local steps, as a list of at most one sentence."""
    text = (f"θ bounds the training with one gradient step per client and round; it does not cover the {steps} local "
            "steps of these rounds.")
    return [text] if steps > 1 else []


def theta_parts(terms: Mapping[str, float], theta: float, local_steps: int) -> list[Sheet | str]:
    """θ by terms, each with its share; with local steps, a sentence about them."""
    table = Sheet("The bound θ by terms", "term", "value", "share", "is the price of", left=("is the price of",))
    total = sum(terms[key] for key in TERMS)
    *values, whole = alike([*(terms[key] for key in TERMS), theta], 6)
    for text, (key, (name, meaning)) in zip(values, TERMS.items(), strict=True):
        table.add_row(name, text, share(terms[key], total), meaning)
    table.add_section()
    table.add_row("θ", whole, "", "all of it", style="bold")
    return [table, *local_steps_note(local_steps)]
