"""Runs: the loop over rounds, its ledger, checkpoints and faults, and sweeps over many runs.

``train`` and ``resume`` are the way in. What executes a prepared run (``run``, ``loop``, ``job``, ``ledger``,
``checkpoint``, ``events``, ``faults``) needs torch, numpy, safetensors and rich only, so names are imported when asked
for.
"""

from importlib import import_module
from typing import Any

_HOME = {"train": "train_and_resume", "resume": "train_and_resume", "Run": "run", "execute": "run", "Job": "job",
         "read_rounds": "events", "interleave": "round_order"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
