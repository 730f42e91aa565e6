"""The engine: all selected clients' gradients or local steps of a round, of one or many runs, in as few passes as the
device allows.

``schedule`` decides which clients share a pass, ``forwards`` how a stack of pruned models is evaluated (``stacked``
holds the hand-written stacks of our own models, ``batch_last`` one for local steps on a CPU), ``passes`` is the
arithmetic of one pass, ``local_steps`` that of a pass with local steps, ``graphs`` replays it on a GPU.
"""

from fedgap.learning.engine.core import STRATEGIES, Engine, check_device
from fedgap.learning.engine.precision import PRECISIONS

__all__ = ["PRECISIONS", "STRATEGIES", "Engine", "check_device"]
