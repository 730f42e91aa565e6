"""Measure both sides of Lemma 1, Assumption 4, Proposition 1 and Theorem 1 during real trainings.

    python -m tools.trajectory FOLDER --data DATA --out RECORDS.jsonl

measures the jobs of a bundle and needs only torch and numpy. φ and θ are computed afterwards by ``tools.theorem``,
which has the scenario."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgap.evidence.bundle import open_data, unpack
from fedgap.evidence.store import Store
from fedgap.learning import pilot
from fedgap.learning.data import Dataset
from fedgap.learning.masks import kept_fraction
from fedgap.running.job import Job
from fedgap.running.loop import Rounds

_CHUNK = 10_000
_CURVATURE_SAMPLES = 256
_MOMENT_SAMPLES = 128


def measure(key: str, job: Job, dataset: Dataset, every: int) -> dict[str, Any]:
    """Train the job and measure at every ``every``-th round s, before and after its update:

    ``gap`` and ``gap_after`` L − L̃ at ω^(s) and ω^(s+1); ``gradient_norm2`` ‖G(ω̃^(s))‖²; ``test_norm2`` ‖∇L̃(ω̃^(s))‖²;
    ``train_norm`` ‖∇L(ω^(s), D̂)‖ and ``difference_norm`` ‖∇L − ∇L̃‖ over all clients' data; ``client_train_norm`` and
    ``client_difference_norm`` the same for each client's own D̂_n; ``norm2`` ‖ω‖²; ``pruned_norm2`` the mean over
    selected clients of ‖ω − ω̃_n‖²; ``curvature`` L and ``moment`` A² at some of these rounds.
    """
    rounds = Rounds([job], dataset)
    device, objective = rounds.engine.device, pilot.objective_of(rounds.engine.module)
    train_x, train_y = dataset.train_x.to(device), dataset.train_y.to(device)
    test_x, test_y = dataset.test_x.to(device), dataset.test_y.to(device)
    owned = torch.from_numpy(job.indices).to(device)
    client_indices = [owned[start:start + size]
                      for start, size in zip(job.offsets.tolist(), job.sizes.tolist(), strict=True)]
    generator = torch.Generator().manual_seed(job.seed)
    sample = owned[torch.randperm(len(owned), generator=generator)[:_CURVATURE_SAMPLES].to(device)]

    def gradient(weights: Tensor, x: Tensor, y: Tensor, index: Tensor | None = None) -> Tensor:
        total, count = torch.zeros_like(weights), len(y) if index is None else len(index)
        for start in range(0, count, _CHUNK):
            part = slice(start, start + _CHUNK) if index is None else index[start:start + _CHUNK]
            total += pilot.gradient(objective, weights, x[part], y[part]) * (len(y[part]) / count)
        return total

    @torch.no_grad()
    def loss(weights: Tensor, x: Tensor, y: Tensor, index: Tensor | None = None) -> float:
        index = torch.arange(len(y), device=device) if index is None else index
        total = 0.0
        for start in range(0, len(index), _CHUNK):
            part = index[start:start + _CHUNK]
            total += float(objective(weights, x[part], y[part]).double().sum())
        return total / len(index)

    rows: list[dict[str, Any]] = []
    start_loss = loss(rounds.model.weights[0], train_x, train_y, owned)
    while rounds.round < job.rounds:
        s = rounds.round
        before = rounds.model.weights[0].clone()
        rounds.step()
        if s % every and s != job.rounds - 1:
            continue
        rounds.drain()
        after = rounds.model.weights[0]
        segment = job.schedule[s]
        ratios = job.ratio[segment, job.selected[segment]].tolist()
        ranks = rounds.state(0)[0]["ranks"]
        pruned = before * kept_fraction(ranks, ratios).to(before)
        lost = [before * (1 - kept_fraction(ranks, [ratio]).to(before)) for ratio in ratios]
        test = gradient(before, test_x, test_y)
        clients = [gradient(before, train_x, train_y, index) for index in client_indices]
        whole = torch.zeros_like(before)
        for client, index in zip(clients, client_indices, strict=True):
            whole += client * (len(index) / len(owned))
        row = {
            "round": s, "clients": len(ratios), "pruning_ratio": sum(ratios) / len(ratios),
            "selected": torch.from_numpy(job.selected[segment]).nonzero().flatten().tolist(),
            "gap": loss(before, train_x, train_y, owned) - loss(before, test_x, test_y),
            "gap_after": loss(after, train_x, train_y, owned) - loss(after, test_x, test_y),
            "gradient_norm2": _square(before - after) / job.learning_rate**2,
            "test_norm2": _square(gradient(pruned, test_x, test_y)),
            "train_norm": _square(whole) ** 0.5, "difference_norm": _square(whole - test) ** 0.5,
            "client_train_norm": [_square(g) ** 0.5 for g in clients],
            "client_difference_norm": [_square(g - test) ** 0.5 for g in clients],
            "norm2": _square(before), "pruned_norm2": sum(map(_square, lost)) / len(lost),
            "test_error": _error(objective, before, rounds, test_x, test_y),
        }
        if len(rows) % 4 == 0:
            row["curvature"] = pilot.smoothness(objective, before, train_x[sample], train_y[sample],
                                                generator=generator, starts=2, iterations=30)
            few = sample[:_MOMENT_SAMPLES]
            row["moment"] = pilot.gradient_moment(objective, before, train_x[few], train_y[few])
        rows.append({k: float(f"{v:.6g}") if isinstance(v, float) else
                     [float(f"{x:.5g}") for x in v] if isinstance(v, list) and k != "selected" else v
                     for k, v in row.items()})
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"key": key, "seed": job.seed, "scheme": job.scheme, "rounds": job.rounds, "start_loss": start_loss,
            "learning_rate": job.learning_rate, "batch_size": int(job.batch_size[0]), "machine": machine,
            "torch": torch.__version__.split("+")[0], "rows": rows}


@torch.no_grad()
def _error(objective: Any, weights: Tensor, rounds: Rounds, x: Tensor, y: Tensor) -> float:
    return 1.0 - rounds.engine.evaluate(weights[None], rounds.model.buffers, x, y)[0].accuracy


def _square(vector: Tensor) -> float:
    return float(vector.double().square().sum())


def main(arguments: Sequence[str]) -> int:
    """Measure a bundle's jobs that have no record yet; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.trajectory", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="the folder of the data set's files")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file of records")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--every", type=int, default=10)
    given = parser.parse_args(arguments)
    store, dataset = Store(given.out), None
    for key, job in unpack(given.folder).items():
        if key not in store:
            dataset = dataset or open_data(job.data, given.data)
            store.add([measure(key, replace(job, device=given.device), dataset, given.every)])
            print(f"{key}: measured", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
