"""The page about a run's folder names whatever a run writes into it."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedgap.running.prepare import divide
from fedgap.running.train_and_resume import train
from tests.running.plans import by_hand

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"
LEARNERS = {
    "fedsgd": ("pruning.importance=taylor",),
    "previous weights": ("importance_weights=previous", "learning.server.optimiser=momentum"),
    "matched and small": ("learning.local_steps=2", "learning.server.optimiser=adam", "learning.batches=target",
                          "learning.upload_bits=8", "data.validation=0.1", "stop.patience=9", "mode=practical"),
}


def inner_keys(value):
    """The keys of an object and of the objects in it."""
    if isinstance(value, list):
        return set().union(*map(inner_keys, value[:1]))
    return set(value).union(*map(inner_keys, value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("learner", LEARNERS)
def test_everything_that_a_run_writes_is_documented(small, tmp_path, learner):
    experiment = small("rounds=4", "evaluate_every=2", "faults.dropout_probability=0.2", *LEARNERS[learner])
    plan = by_hand(divide(experiment)[2], (1, range(10), 0.0), (3, range(10), 0.3))
    folder = train(experiment, tmp_path / "run", plan=plan).folder
    described = {word.rstrip("/") for word in re.findall(r"`([\w./]+)`", PAGE.read_text())}
    assert {path.name for path in folder.iterdir()} <= described
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    latest, summary, versions = (json.loads((folder / name).read_bytes())
                                 for name in ("checkpoint/latest.json", "summary.json", "versions.json"))
    tensors = load_file(folder / "checkpoint" / latest["file"])
    written = inner_keys(lines[-1]).union(*map(set, lines), inner_keys(latest), inner_keys(summary), versions, tensors)
    assert written - described - {"format"} == set()
