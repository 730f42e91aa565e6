"""Choose, among plans of equal value, the one with the least energy.

If there is energy to spare (its price is zero), many deadlines give the same value. An unpruned first round might then
run at full power although the other rounds have time to spare. This module keeps the share m of the model that every
client keeps, and chooses the deadlines with the least energy, at which all rounds have the same price of time
(:meth:`fedgap.planning.client_curves.ClientCurves.share`). The plan's value does not change, because it depends only on
the selections and m.
"""

from dataclasses import replace

import numpy as np

from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.fixed_composition import Composed
from fedgap.planning.plan import Segment
from fedgap.planning.task import Task
from fedgap.planning.tolerances import BUDGET_MARGIN


def thriftier(task: Task, solved: Composed) -> tuple[Segment, ...]:
    """Return the segments with powers and clocks of least energy, or unchanged if energy is scarce or nothing is saved.

    The clients of a plan with a single segment already use all of the time, which needs least energy, unless idle power
    makes shorter rounds cheaper.
    """
    problem, segments = task.problem, solved.segments
    spent = problem.energy(segments)
    single = len(segments) < 2 and not task.kinds[-1].curves.idles
    if single or solved.energy_price > 0.0 or spent >= problem.energy_j * (1.0 - BUDGET_MARGIN):
        return segments
    selected = np.stack([segment.selected for segment in segments])
    ratio = np.stack([segment.pruning_ratio for segment in segments])
    keep = np.where(selected, problem.fleet.cost_share(ratio), 1.0)
    curves = ClientCurves.stack([task.kinds[part.kind].curves for part in solved.composition.parts])
    curves = replace(curves, keep_min=keep)
    rounds = np.array([segment.rounds for segment in segments], dtype=np.float64)
    shared = curves.share(selected, rounds, problem.delay_s, of_energy=False)
    if shared is None:  # the plan uses up the time; only rounding makes it look infeasible
        return segments
    point = curves.until(shared[1])[1]
    power, frequency = curves.power(point.s), curves.frequency(point.x)
    saving = tuple(
        replace(segment, power_w=np.where(chosen, watts, 0.0), frequency_hz=np.where(chosen, hertz, 0.0))
        for segment, chosen, watts, hertz in zip(segments, selected, power, frequency, strict=True)
    )
    in_time = problem.delay(saving) <= problem.delay_s * (1.0 + BUDGET_MARGIN)
    return saving if in_time and problem.energy(saving) < spent * (1.0 - BUDGET_MARGIN) else segments
