"""Fig. 3: the clients' label counts and generalization statements φ, for several Dirichlet parameters σ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedgap.config import Experiment
from fedgap.evidence.definition import Figure
from fedgap.learning.data import Dataset
from fedgap.running.prepare import divide
from fedgap.statistics import deviation, interval
from fedgap.theory.generalization import Reading, divergence, smoothed, statement

READINGS: dict[str, Reading] = {"repaired": "size_normalised", "as_printed": "as_printed"}


def results(figure: Figure, preset: str, dataset: Callable[[str], Dataset]) -> dict[str, Any]:
    """Label counts and φ of every client, for each σ and seed and by mode, and how φ varies among clients."""
    panel = figure.panels[preset][0]
    rows = []
    for sigma in panel.values:
        for seed in panel.seeds:
            experiment = Experiment.load(panel.experiment, [f"seed={seed}", f"partition.concentration={sigma}"])
            data, parts, _ = divide(experiment, dataset(panel.experiment))
            kl = divergence(smoothed(parts.label_counts), smoothed(parts.target_counts))
            phi = {mode: statement(parts.label_counts, parts.target_counts, reading)
                   for mode, reading in READINGS.items()}
            rows.append({"sigma": float(sigma), "seed": seed, "clients": len(kl),
                         "smoothed_zeros": int((parts.label_counts == 0).sum()),
                         "divergence": [float(f"{x:.5g}") for x in kl],
                         "phi": {mode: [float(f"{x:.5g}") for x in values] for mode, values in phi.items()},
                         "label_counts": parts.label_counts.tolist() if seed == panel.seeds[0] else None,
                         "data": data.name})
    return {"figure": figure.name, "title": figure.title, "kind": figure.kind, "preset": preset, "panel": panel.title,
            "rows": rows, "spread": spread(rows)}


def spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each σ and mode: the mean of φ, its standard deviation among clients, and its rank correlation with the KL
    divergence."""
    from scipy.stats import spearmanr

    summary = []
    for sigma in dict.fromkeys(row["sigma"] for row in rows):
        seeds = [row for row in rows if row["sigma"] == sigma]
        for mode in READINGS:
            means = interval([float(np.mean(row["phi"][mode])) for row in seeds])
            deviations = interval([deviation(row["phi"][mode]) for row in seeds])
            ranks = interval([float(spearmanr(row["divergence"], row["phi"][mode]).statistic) for row in seeds])
            summary.append({"sigma": sigma, "mode": mode, "seeds": len(seeds),
                            "mean": _pair(means), "deviation": _pair(deviations), "rank_with_divergence": _pair(ranks)})
    return summary


def _pair(value: Any) -> list[float | None]:
    return [float(f"{value.mean:.5g}"), None if value.half is None else float(f"{value.half:.4g}")]
