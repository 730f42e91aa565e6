"""Powers and clocks for the channels as they are now."""

from dataclasses import replace

import numpy as np

from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.plan import Segment
from fedgap.system import Fleet


def least_energy(fleet: Fleet, segment: Segment, deadline_s: float) -> Segment:
    """The round with the same clients and pruning ratios, at the powers and clocks of least energy for the deadline.

    Where somebody cannot meet it at full power and clock, the round is as long as the slowest needs, and all others use
    that time.
    """
    chosen = segment.selected
    keep = np.where(chosen, 1.0 - segment.pruning_ratio, 1.0)
    curves = replace(ClientCurves.of(fleet), keep_min=keep)
    deadline = np.maximum(deadline_s, curves.shortest(chosen))
    _, point = curves.until(np.asarray(deadline))
    return replace(segment, rounds=1, power_w=np.where(chosen, curves.power(point.s), 0.0),
                   frequency_hz=np.where(chosen, curves.frequency(point.x), 0.0))
