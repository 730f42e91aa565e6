"""Where the proposed scheme is worse than a baseline, and why: a part of the claims page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tools.claim_verdicts import Results

REPAIRED = """\
## Where the proposed scheme is below a baseline

Every comparison in which it is significantly worse, in the default mode `repaired`: in points of accuracy, or in nats
of training loss (figures 5 and 6, where more is worse), ± half of the 95 % interval. The reason: θ lets the
generalization term decide who takes part, and so leaves out clients whose labels differ; where all could take part
for as many rounds, their samples would have helped more. Random plans say the same: at σ = 5 θ ranks them badly, and
the number of their rounds ranks them well ([What ranks plans](what-ranks-plans.md)). Over the city fleet, where
`repaired` averages φ over clients, a few clients with balanced labels win over many whose labels are balanced only
together; pooling their labels (`mixture`) repairs that ([how φ enters](readings.md#aggregation)).

| where | baseline | proposed minus baseline | clients, proposed | clients, baseline |
|---|---|---|---|---|"""
BEFORE = """\
Worse by the 95 % interval of the comparison alone, but not after Holm's correction, and so counted as a tie above. At
T₀ = 90 s no scheme can finish its rounds, and each is planned at the most rounds that fit the budgets: a scheme that
may choose clients then takes one client in nearly all rounds, where all clients would learn more in fewer rounds.
Asked for fewer rounds, the proposed scheme is level with them (the row "however many rounds are asked for", and
`experiments/rounds`).

| where | baseline | proposed minus baseline | clients, proposed | clients, baseline |
|---|---|---|---|---|"""
LOSSES = ("fig5", "fig6")
"""Figures of training losses."""
AS_PRINTED = """\
As printed, by figure and baseline (the least and the largest difference of those that are significant, and the mean
number of clients in them). The reasons: Φ = Σφ grows with every client, so that the optimum is one client, or a few in
turn, whatever the labels ([how φ enters](readings.md#aggregation)), where a scheme that may not choose takes everybody;
and pruning as printed keeps its first mask for ever, while the full model is evaluated
([why](readings.md#dense_first)), so that one client alone does better without pruning.

| where | baseline | significantly below in | proposed minus baseline | clients, proposed | clients, baseline |
|---|---|---|---|---|---|"""


def repaired(results_of: Mapping[str, Results | None], *, significant: bool = True) -> list[str]:
    """One line for every comparison in the mode repaired in which the proposed scheme is worse: significantly, or with
    ``significant`` False only before Holm's correction."""
    lines = []
    for name, panel, c in _below(results_of, "repaired", significant):
        proposed, baseline = (_clients(panel, "repaired", scheme, c["value"]) for scheme in ("proposed", c["baseline"]))
        lines.append(f"| {name}, {panel['vary']} = {c['value']:g} | {c['baseline']} | {_difference(name, c)} | "
                     f"{proposed:.1f} | {baseline:.1f} |")
    return lines or ["| none | – | – | – | – |"]


def as_printed(results_of: Mapping[str, Results | None]) -> list[str]:
    """One line per figure and baseline for the comparisons in the mode as printed in which the proposed scheme is
    significantly worse."""
    groups: dict[tuple[str, str], list[tuple[Results, Results]]] = {}
    for name, panel, c in _below(results_of, "as_printed", True):
        groups.setdefault((name, c["baseline"]), []).append((panel, c))
    lines = []
    for (name, baseline), lost in groups.items():
        panel = lost[0][0]
        made = [c for c in panel["comparisons"] if (c["mode"], c["baseline"]) == ("as_printed", baseline)]
        least, most = (pick((c for _, c in lost), key=lambda c: abs(c["difference"])) for pick in (min, max))
        shown = [_difference(name, c) for c in (least, most)]
        clients = [float(np.mean([_clients(panel, "as_printed", scheme, c["value"]) for _, c in lost]))
                   for scheme in ("proposed", baseline)]
        lines.append(f"| {name} | {baseline} | {len(lost)} of {len(made)} | {' to '.join(dict.fromkeys(shown))} | "
                     f"{clients[0]:.1f} | {clients[1]:.1f} |")
    return lines or ["| none | – | – | – | – | – |"]


def _below(results_of: Mapping[str, Results | None], mode: str,
           significant: bool) -> Iterator[tuple[str, Results, Results]]:
    """Yield (figure, panel, comparison) wherever the proposed scheme is worse: significantly, or only before
    correction."""
    for name in ("fig4", "fig5", "fig6", "fig7", "fig8", "rounds", "heterogeneity"):
        worse = 1.0 if name in LOSSES else -1.0
        for number, panel in enumerate((results_of.get(name) or {}).get("panels", [])):
            for c in panel.get("comparisons", []):
                if c["mode"] != mode or c["half"] is None or worse * c["difference"] <= c["half"]:
                    continue
                if (c["verdict"] != "tie") is significant:
                    yield f"{name}: {panel['title']}" if number else name, panel, c


def _difference(name: str, c: Results) -> str:
    if name.partition(":")[0] in LOSSES:
        return f"{c['difference']:+.3f} ± {c['half']:.3f} nats"
    return f"{100 * c['difference']:+.2f} ± {100 * c['half']:.2f}"


def _clients(panel: Results, mode: str, scheme: str, value: float) -> float:
    """The mean number of clients per round, over seeds."""
    return float(np.mean([row["clients"] for row in panel["rows"]
                          if (row["mode"], row["scheme"], row["value"]) == (mode, scheme, value)]))
