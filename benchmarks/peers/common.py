"""What all contestants of the CPU benchmark share: the model, the data, and the timing of rounds.

Needs only torch and numpy, because each peer runs in an environment of its own, without fedgap."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

CLIENTS, BATCH, RATE = 10, 32, 0.01
STEPS = int(os.environ.get("LOCAL_STEPS", "1"))
"""Number of mini-batch steps of a client in a round, each on other samples."""


class LeNet5(nn.Module):
    """LeNet-5 on 28×28, 44,426 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


@cache
def data(samples: int = STEPS * BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """(CLIENTS, samples, 1, 28, 28) images and labels, the same for everybody."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, samples, 1, 28, 28, generator=generator)
    return x, torch.randint(10, (CLIENTS, samples), generator=generator)


def serve(rounds_within: Callable[[float], tuple[int, float]]) -> None:
    """Answer each line on stdin, a number of seconds, with the rounds done in about that time, as JSON.

    ``rounds_within(seconds)`` returns the rounds and the seconds they took. A waiting contestant uses no processor
    time, so that contestants can take turns."""
    torch.manual_seed(0)

    def quietly(seconds: float) -> tuple[int, float]:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            return rounds_within(seconds)

    quietly(0.5)  # warm up
    print(json.dumps({"ready": True, "threads": torch.get_num_threads(), "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        before = time.process_time()
        rounds, seconds = quietly(float(line))
        print(json.dumps({"rounds": rounds, "seconds": seconds, "processor_seconds": time.process_time() - before}),
              flush=True)


def stretch(step: Callable[[], object]) -> Callable[[float], tuple[int, float]]:
    """The function ``rounds_within`` for a contestant whose round is a function call."""

    def rounds_within(seconds: float) -> tuple[int, float]:
        rounds, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            step()
            rounds += 1
        return rounds, time.perf_counter() - start

    return rounds_within
