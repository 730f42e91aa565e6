"""Small experiments on the embedded digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fedgap.config import Experiment

SMALL = ("data.train_samples=800", "data.test_samples=200", "model.name=mlp", "engine.threads=1", "engine.device=cpu",
         "evaluate_every=3", "checkpoint_every=4", "budget.energy_j=1e6", "budget.delay_s=1e6")


@pytest.fixture(scope="session")
def small() -> Callable[..., Experiment]:
    """The embedded experiment, smaller, with further overrides."""
    from fedgap.config import Experiment  # here, since a GPU machine may have no pydantic

    return lambda *overrides: Experiment.load("embedded", [*SMALL, *overrides])
