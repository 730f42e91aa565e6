"""On a GPU nothing waits for the device round by round."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("pydantic", reason="plans and experiments need pydantic")

from fedgap.running.loop import Rounds
from fedgap.running.prepare import divide, prepare
from tests.running.plans import by_hand

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


STRONG = ("learning.local_steps=4", "learning.server.optimiser=adam", "learning.schedule=cosine",
          "learning.batches=balanced", "learning.upload_bits=8")


@pytest.mark.parametrize("learner", [(), STRONG])
@pytest.mark.parametrize("runs", [1, 5])
def test_a_round_does_not_synchronise(small, runs, learner):
    experiment = small("rounds=60", "model.name=lenet5", "engine.device=cuda", "evaluate_every=1000", *learner)
    _, _, scenario = divide(experiment)
    ready = prepare(experiment, by_hand(scenario, (1, range(10), 0.0), (59, range(10), 0.3)))
    rounds = Rounds([replace(ready.job, seed=seed) for seed in range(runs)], ready.dataset)
    for _ in range(20):  # plans, recordings and what rounds have in common are made once
        rounds.step()
    rounds.drain()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            rounds.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(rounds.drain()[0]) == 10
