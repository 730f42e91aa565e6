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


def terms_table(terms: Mapping[str, float], theta: float) -> Sheet:
    """θ by terms, each with its share."""
    table = Sheet("The bound θ by terms", "term", "value", "share", "is the price of", left=("is the price of",))
    total = sum(terms[key] for key in TERMS)
    *values, whole = alike([*(terms[key] for key in TERMS), theta], 6)
    for text, (key, (name, meaning)) in zip(values, TERMS.items(), strict=True):
        table.add_row(name, text, share(terms[key], total), meaning)
    table.add_section()
    table.add_row("θ", whole, "", "all of it", style="bold")
    return table
