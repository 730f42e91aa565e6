"""The engine: all selected clients' gradients of a round, of one or many runs, in as few passes as the device allows.

``schedule`` decides which clients share a pass, ``forwards`` how a stack of pruned models is evaluated (``stacked``
holds the hand-written stacks of our own models), ``passes`` is the arithmetic of one pass, ``graphs`` replays it on a
GPU.
"""

from fedgap.learning.engine.core import STRATEGIES, Engine, check_device
from fedgap.learning.engine.precision import PRECISIONS

__all__ = ["PRECISIONS", "STRATEGIES", "Engine", "check_device"]
