"""The modes ``as_printed``, ``repaired`` and ``practical``: defaults for keys that a file leaves out.

``as_printed`` and ``repaired`` are readings of the paper; both train with the paper's FedSGD. ``practical`` is for
training a good model: it reads the bound like ``repaired`` and trains with :data:`PRACTICAL_LEARNER`.
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
"""The largest fleet for which ``repaired`` aggregates by ``mixture``; above it by ``mean``."""

PLANNING_KEYS: Mapping[str, tuple[str, str]] = {
    "statement": ("bound", "statement"),
    "aggregation": ("bound", "aggregation"),
    "constants": ("bound", "constants"),
    "sensitivity": ("bound", "sensitivity"),
    "dense_first": ("pruning", "dense_first"),
}
"""The readings that planning needs: name → the scenario's section and key."""

PRACTICAL_LEARNER: Mapping[str, Any] = {
    "rate": 0.03,
    "local_steps": "auto",
    "server": {"optimiser": "momentum", "momentum": 0.9},
    "schedule": "warm_up_cosine",
    "batches": "balanced",
}
"""The keys of ``learning`` in the mode ``practical``. Server momentum costs nothing and helps most. Local steps are
planned; they are nearly free where uploading takes most of a round. A rate of 0.03 suits a momentum of 0.9, whereas 0.1
diverges; without a warm-up some seeds lose their first rounds."""
PRACTICAL_IMPORTANCE = "magnitude"
"""The rule that ranks weights in the mode ``practical``."""
PRACTICAL_SCHEME = "forecast"
"""The scheme of an experiment in the mode ``practical``: the most accurate model by the forecast, not the least θ."""


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sections ``learning``; keys of ``upper`` have priority over those of ``lower``.

    Subsections are merged key by key. If ``upper`` changes the optimiser, its rate is the default of the new one.
    """
    result = {**lower, **upper}
    for name in ("server", "client"):
        below, above = lower.get(name), upper.get(name)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            other = above.get("optimiser", below.get("optimiser")) != below.get("optimiser")
            result[name] = {**({} if other else below), **above}
    return result


def mode_readings(mode: Mode, *, clients: int, counts_known: bool, secant_known: bool) -> dict[str, Any]:
    """The readings of the paper in this mode, by name; those of ``practical`` are those of ``repaired``.

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
