"""The engine: all selected clients' gradients or local steps of a round, of one or many runs, in as few passes as the
device allows.

``schedule`` decides which clients share a pass. ``forwards`` evaluates a stack of pruned models (``stacked`` has the
hand-written stacks of fedgap's models, ``batch_last`` one for local steps on a CPU). ``passes`` is the arithmetic of
one pass, ``local_steps`` that of a pass with local steps, and ``graphs`` replays passes on a GPU.
"""

from fedgap.learning.engine.core import STRATEGIES, Engine, check_device
from fedgap.learning.engine.precision import PRECISIONS

__all__ = ["PRECISIONS", "STRATEGIES", "Engine", "check_device"]
