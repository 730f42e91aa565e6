"""Describe the progress of a solver in one line."""

from __future__ import annotations

import math


def describe_progress(what: str, iteration: int, best: float, bound: float, alpha: float) -> str:
    """Return one line that describes a solver's progress; the arguments are those of ``progress`` in ``fedgap.plan``.

    :param what: what the solver does; :param best: the least θ − α so far, or the least θ while the number of rounds is
        being chosen; :param bound: the lower bound on θ − α so far; :param alpha: α.
    """
    if what.startswith("horizon"):
        return f"{what}: θ {best:.6g} ({iteration} tried)" if math.isfinite(best) else what
    parts = [f"{what} {iteration}"]
    if math.isfinite(best):
        parts.append(f"best θ {best + alpha:.6g}")
    if math.isfinite(bound):
        parts.append(f"bound {bound + alpha:.6g}")
    if math.isfinite(best) and math.isfinite(bound) and best > 0.0:
        parts.append(f"gap {max(0.0, best - bound) / best:.2%}")
    kept = "keeps the best so far" if math.isfinite(best) else "ends with whatever fits"
    return " · ".join(parts) + f"   (Ctrl-C {kept})"
