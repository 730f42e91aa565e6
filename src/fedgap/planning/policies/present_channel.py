"""Choose powers and clocks for the present channels."""

from dataclasses import replace

import numpy as np

from fedgap.arrays import Floats
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.plan import Segment
from fedgap.planning.schemes import Scheme
from fedgap.system import Fleet


def least_energy(fleet: Fleet, scheme: Scheme, segment: Segment, deadline_s: float) -> Segment:
    """Return a round with the same clients and pruning ratios, and with the powers and clocks of least energy.

    Powers or clocks that the scheme does not decide are the clients' highest. If a client cannot meet the deadline even
    at full power and clock, the round lasts as long as the slowest client needs, and all others use that time.
    """
    chosen = segment.selected
    keep = np.where(chosen, fleet.cost_share(segment.pruning_ratio), 1.0)
    curves = replace(ClientCurves.of(fleet, free_power=scheme.power, free_frequency=scheme.frequency), keep_min=keep)
    deadline = np.maximum(deadline_s, curves.shortest(chosen))
    _, point = curves.until(np.asarray(deadline))
    return replace(segment, rounds=1, power_w=np.where(chosen, curves.power(point.s), 0.0),
                   frequency_hz=np.where(chosen, curves.frequency(point.x), 0.0))


def least_joules(fleet: Fleet, scheme: Scheme, longest_s: float) -> Floats:
    """Return the least energy that each client needs for a round of at most ``longest_s`` seconds, J, (N,).

    The client prunes as much as allowed. If the time does not suffice, it is the energy at full power and clock.
    """
    curves = ClientCurves.of(fleet, prune=scheme.prune, free_power=scheme.power, free_frequency=scheme.frequency)
    time = np.maximum(longest_s - curves.overhead, curves.keep_min * curves.u_min)
    price = curves.price_of_time(time / curves.keep_min)
    return np.asarray(curves.keep_min * curves.at(price).energy)
