"""The root of a function of one variable.

scipy's ``brentq`` is the same method, but importing ``scipy.optimize`` takes longer than most plans.
"""

from collections.abc import Callable

_STEPS = 100
"""Bisection alone would need about 60 steps for any bracket of floats."""


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float) -> float:
    """A root between ``low`` and ``high``, where the signs differ, within xtol + rtol·|root|: Brent's method.

    Inverse quadratic or linear interpolation, replaced by bisection where it does not shrink the bracket fast enough.
    """
    before, at = low, high
    f_before, f_at = function(low), function(high)
    if f_before == 0.0:
        return before
    if f_at == 0.0:
        return at
    if (f_before < 0.0) == (f_at < 0.0):
        raise ValueError(f"no change of sign between {low} and {high}")
    other, f_other, step, last = before, 0.0, 0.0, 0.0
    for _ in range(_STEPS):
        if f_before != 0.0 and (f_before < 0.0) != (f_at < 0.0):
            other, f_other = before, f_before
            step = last = at - before
        if abs(f_other) < abs(f_at):
            before, at, other = at, other, at
            f_before, f_at, f_other = f_at, f_other, f_at
        tolerance = 0.5 * (xtol + rtol * abs(at))
        half = 0.5 * (other - at)
        if f_at == 0.0 or abs(half) < tolerance:
            break
        trial, allowed = half, 0.0
        if abs(last) > tolerance and abs(f_at) < abs(f_before):
            if before == other:
                trial = -f_at * (at - before) / (f_at - f_before)
            else:
                slope, chord = (f_before - f_at) / (before - at), (f_other - f_at) / (other - at)
                trial = -f_at * (f_other * chord - f_before * slope) / (chord * slope * (f_other - f_before))
            allowed = min(abs(last), 3.0 * abs(half) - tolerance)
        last, step = (step, trial) if 2.0 * abs(trial) < allowed else (half, half)
        before, f_before = at, f_at
        if abs(step) > tolerance:
            at += step
        else:
            at += tolerance if half > 0.0 else -tolerance
        f_at = function(at)
    return at
