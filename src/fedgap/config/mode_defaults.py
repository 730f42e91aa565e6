"""The two modes, ``as_printed`` and ``repaired``, as defaults for the keys that the author left out."""

from collections.abc import Mapping
from typing import Any, Literal

Mode = Literal["as_printed", "repaired"]
Statement = Literal["as_printed", "size_normalised"]
Aggregation = Literal["sum", "mean", "mixture"]
Constants = Literal["printed", "corrected"]
Sensitivity = Literal["theorem", "secant"]
ImportanceWeights = Literal["previous", "current"]

MIXTURE_LIMIT = 12
"""The largest fleet for which ``repaired`` aggregates by ``mixture``; above it by ``mean``."""

PLANNING_KEYS: Mapping[str, tuple[str, str]] = {
    "statement": ("bound", "statement"),
    "aggregation": ("bound", "aggregation"),
    "constants": ("bound", "constants"),
    "sensitivity": ("bound", "sensitivity"),
    "dense_first": ("pruning", "dense_first"),
}
"""The readings that planning needs: name → the scenario's section and key."""


def mode_readings(mode: Mode, *, clients: int, counts_known: bool, secant_known: bool) -> dict[str, Any]:
    """What each reading is in this mode, by name.

    :param clients: N, on which the repaired aggregation depends.
    :param counts_known: whether every client's label histogram and the target's are known, which ``mixture`` needs.
    :param secant_known: whether ``bound.pruning_sensitivity`` was measured, which ``secant`` needs.
    """
    if mode == "as_printed":
        return {"statement": "as_printed", "aggregation": "sum", "constants": "printed", "sensitivity": "theorem",
                "dense_first": False, "evaluate_pruned": False, "importance_weights": "previous"}
    aggregation = "mixture" if counts_known and clients <= MIXTURE_LIMIT else "mean"
    sensitivity = "secant" if secant_known else "theorem"
    return {"statement": "size_normalised", "aggregation": aggregation, "constants": "corrected",
            "sensitivity": sensitivity, "dense_first": True, "evaluate_pruned": True, "importance_weights": "current"}
