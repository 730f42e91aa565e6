"""The terms of the bound θ: what to call them, and their table."""

from __future__ import annotations

from collections.abc import Mapping

from fedgap.report.number_format import alike, share
from fedgap.report.uncut_table import Sheet

TERMS = {
    "alpha": ("α", "the initial loss"),
    "clients": ("clients", "few clients, so noisy updates"),
    "generalization": ("generalization", "their data differ from the target's"),
    "pruning": ("pruning", "removed weights"),
}
"""Name and cause of each term, by its key."""


def local_steps_note(steps: int) -> list[str]:
    """Return a list with the note that θ does not cover local steps; it is empty if there is one step per round."""
    text = (f"θ bounds training with one gradient step per client and round; it does not cover the {steps} local "
            "steps of these rounds.")
    return [text] if steps > 1 else []


def theta_parts(terms: Mapping[str, float], theta: float, local_steps: int) -> list[Sheet | str]:
    """Return the table of θ by terms with their shares, and the note about local steps."""
    table = Sheet("The bound θ by terms", "term", "value", "share", "caused by", left=("caused by",))
    total = sum(terms[key] for key in TERMS)
    *values, whole = alike([*(terms[key] for key in TERMS), theta], 6)
    for text, (key, (name, meaning)) in zip(values, TERMS.items(), strict=True):
        table.add_row(name, text, share(terms[key], total), meaning)
    table.add_section()
    table.add_row("θ", whole, "", "all of these", style="bold")
    return [table, *local_steps_note(local_steps)]
