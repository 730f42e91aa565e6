"""What each reading of the paper does to a plan: the preset ``paper-mnist``, one reading changed at a time.

    python benchmarks/readings.py [--out FILE]

Each row describes a certified plan (by the solver ``exact``): clients per round, mean pruning ratio, energy, and the
terms of θ.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedgap.config import Scenario
from fedgap.planning import plan

CHANGES = (
    ("mode=as_printed",),
    (),
    ("bound.aggregation=sum",),
    ("bound.aggregation=mean",),
    ("bound.constants=printed",),
    ("bound.sensitivity=theorem",),
    ("bound.statement=as_printed", "bound.aggregation=mean"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "readings.json")
    options = parser.parse_args()
    rows = []
    for changes in CHANGES:
        made = plan(Scenario.load("paper-mnist", list(changes)))
        rounds = sum(segment.rounds for segment in made.segments)
        clients = sum(s.rounds * int(s.selected.sum()) for s in made.segments) / rounds
        ratio = sum(s.rounds * float(s.pruning_ratio[s.selected].mean()) for s in made.segments) / rounds
        rows.append({"changes": list(changes), "clients": clients, "pruning_ratio": ratio, "energy_j": made.energy_j,
                     "terms": made.terms, "status": made.status, "gap": made.gap})
        print(rows[-1], flush=True)
    options.out.write_text(json.dumps({"preset": "paper-mnist", "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
