"""The modes ``as_printed``, ``repaired`` and ``practical``: defaults for keys that a file leaves out.

A *reading* is one of several ways to understand a formula or rule of the paper, such as how φ is aggregated.
``as_printed`` takes the paper literally, and ``repaired`` corrects it; both train with the paper's FedSGD.
``practical`` is for training a good model: it has the readings of ``repaired`` and trains with
:data:`PRACTICAL_LEARNER`.
"""

from collections.abc import Mapping
from typing import Any, Literal

Mode = Literal["as_printed", "repaired", "practical"]
Statement = Literal["as_printed", "size_normalised"]
Aggregation = Literal["sum", "mean", "mixture"]
Constants = Literal["printed", "corrected"]
Sensitivity = Literal["theorem", "secant"]
ImportanceWeights = Literal["previous", "current"]

MIXTURE_LIMIT = 12
"""The largest number of clients for which ``repaired`` aggregates φ by ``mixture``; for more clients by ``mean``."""

PLANNING_KEYS: Mapping[str, tuple[str, str]] = {
    "statement": ("bound", "statement"),
    "aggregation": ("bound", "aggregation"),
    "constants": ("bound", "constants"),
    "sensitivity": ("bound", "sensitivity"),
    "dense_first": ("pruning", "dense_first"),
}
"""The readings that planning needs: name, and the section and key of a scenario that hold it."""

PRACTICAL_LEARNER: Mapping[str, Any] = {
    "rate": 0.03,
    "local_steps": "auto",
    "server": {"optimiser": "momentum", "momentum": 0.9},
    "schedule": "warm_up_cosine",
    "batches": "balanced",
}
"""The keys of ``learning`` in the mode ``practical``. Server momentum costs nothing and helps most. The planner chooses
the local steps, which cost little where uploading takes most of a round. With a momentum of 0.9, training converges at
a rate of 0.03 and diverges at 0.1. Without a warm-up, some seeds make no progress in their first rounds."""
PRACTICAL_IMPORTANCE = "magnitude"
"""The importance rule, by which weights are ranked for pruning, in the mode ``practical``."""
PRACTICAL_SCHEME = "forecast"
"""The scheme of an experiment in the mode ``practical``. It maximises the forecast accuracy; it does not minimise θ."""


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two ``learning`` sections; keys of ``upper`` have priority over those of ``lower``.

    Subsections are merged key by key. If ``upper`` names another optimiser, ``lower``'s keys for it are dropped,
    because they were meant for the old one.
    """
    result = {**lower, **upper}
    for name in ("server", "client"):
        below, above = lower.get(name), upper.get(name)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            other = above.get("optimiser", below.get("optimiser")) != below.get("optimiser")
            result[name] = {**({} if other else below), **above}
    return result


def mode_readings(mode: Mode, *, clients: int, counts_known: bool, secant_known: bool) -> dict[str, Any]:
    """Return the readings of the paper in this mode, by name; ``practical`` has those of ``repaired``.

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
