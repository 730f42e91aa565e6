"""The engine computes the gradients or local steps of all selected clients of a round, for one or many runs, in as few
passes as the device allows.

A pass is one forward and backward computation of a stack of pruned models. ``schedule`` decides which clients share a
pass. ``forwards`` evaluates a stack of pruned models (``stacked`` has hand-written stacks of fedgap's own models,
``batch_last`` one for local steps on a CPU). ``passes`` has the arithmetic of one pass, ``local_steps`` that of a pass
with local steps, and ``graphs`` replays passes on a GPU."""

from fedgap.learning.engine.core import STRATEGIES, Engine, check_device
from fedgap.learning.engine.precision import PRECISIONS

__all__ = ["PRECISIONS", "STRATEGIES", "Engine", "check_device"]
