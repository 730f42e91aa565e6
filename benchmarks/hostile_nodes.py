"""Measure what one hostile node of four does to each aggregator, with server and nodes in one process and real digits.

    python -m benchmarks.hostile_nodes [--seeds 5] [--out FILE]

Run it in the repository's root, because it uses the hostile nodes of the tests. ``accuracy`` is the test accuracy after
30 rounds (null if the run failed), ``named`` the number of rounds until the hostile node was reported.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedgap.config import Experiment
from fedgap.deploy.enrol import first_clients
from fedgap.errors import RunFailedError
from tests.deploy.direct import Fleet, news
from tests.deploy.hostile import TRAINING, claims, enormous, scaled

ATTACKS = {"none": None, "times -10": scaled(-10.0), "times -4": scaled(-4.0), "3.3e38": enormous}
AGGREGATORS = ("mean", "clipped_mean", "coordinate_trimmed_mean", "coordinate_median")
LIAR = 1


def trained(seed: int, aggregator: str, spoil: Any, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    keys = ["model.name=mlp", "engine.threads=1", "engine.kind=loop", *TRAINING, f"seed={seed}",
            f"learning.aggregator={aggregator}", *extra]
    with tempfile.TemporaryDirectory() as folder:
        nodes = Fleet(first_clients(Experiment.load("embedded", keys), 4), 4, Path(folder))
        if spoil is not None:
            nodes.spoil[LIAR] = spoil
        try:
            run = nodes.session(round_s=60.0).run()
        except RunFailedError:
            return {"accuracy": None, "named": None, "others_named": [], "longest": None}
        told = [(number, client) for number, client, _ in news(run) if client is not None]
        lengths = [event["client_norm"] for event in run.history if None not in event["client_norm"]]
        ratios = [max(norms) / sorted(norms)[1] for norms in lengths]
        return {"accuracy": run.summary["test_accuracy"],
                "named": min((number + 1 for number, client in told if client == LIAR), default=None),
                "others_named": sorted({client for _, client in told} - {LIAR}), "longest": max(ratios, default=None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hostile_nodes.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    shards = ("partition.kind=shards", "partition.shards=2")
    cases = [(attack, aggregator, spoil, ()) for attack, spoil in ATTACKS.items() for aggregator in AGGREGATORS]
    for aggregator in ("mean", "coordinate_trimmed_mean"):
        cases.append(("none, two labels", aggregator, None, shards))
        cases.append(("claims ten labels, has two", aggregator, claims(label_counts=[20] * 10), shards))
    for seed in range(options.seeds):
        for attack, aggregator, spoil, extra in cases:
            rows.append({"seed": seed, "attack": attack, "aggregator": aggregator,
                         **trained(seed, aggregator, spoil, extra)})
            print(rows[-1], flush=True)
        options.out.write_text(json.dumps({"nodes": 4, "hostile": 1, "rounds": 30, "seeds": seed + 1, "rows": rows},
                                          indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
