"""Find the root of a function of one variable.

scipy's ``brentq`` is the same method, but importing ``scipy.optimize`` takes longer than most plans.
"""

from collections.abc import Callable

import numpy as np

from fedgap.arrays import Floats

_STEPS = 100
"""Maximum number of steps; bisection alone would need about 60 for any two floats."""


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float) -> float:
    """Return a root between ``low`` and ``high``, where the function has different signs, by Brent's method.

    The error is at most xtol + rtol·|root|. The method interpolates linearly or quadratically, and bisects if that does
    not shrink the bracket fast enough.
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


def sign_change(
    function: Callable[[Floats], Floats], low: Floats, high: Floats, at_low: Floats, at_high: Floats, *,
    width: float, met: float = 0.0, steps: int = 100,
) -> tuple[Floats, Floats]:
    """Narrow B brackets [low, high] around the point where a rising function changes its sign; return both ends, (B,).

    The function may jump at that point. The next point is that of the secant through both ends, with the Illinois rule,
    which halves the value at an end that stays; every third time it is the middle. The search ends when every bracket
    is at most ``width`` wide, relative to its upper end. If a value is within ``met`` of zero, both ends are that
    point.

    :param at_low: the function at ``low``, below 0, (B,); :param at_high: at ``high``, at least 0, (B,).
    """
    stayed = np.zeros(low.shape)  # -1: the lower end moved last, 1: the upper one
    for step in range(steps):
        if (high - low <= width * np.abs(high)).all():
            break
        with np.errstate(all="ignore"):
            secant = (low * at_high - high * at_low) / (at_high - at_low)
        middle = 0.5 * (low + high)
        trial = np.where((secant > low) & (secant < high) & (step % 3 != 2), secant, middle)
        value = function(trial)
        up = value >= 0.0
        at_low = np.where(up, np.where(stayed > 0.0, 0.5 * at_low, at_low), value)
        at_high = np.where(up, value, np.where(stayed < 0.0, 0.5 * at_high, at_high))
        there = np.abs(value) <= met
        low, high = np.where(up & ~there, low, trial), np.where(up | there, trial, high)
        stayed = np.where(up, 1.0, -1.0)
    return low, high
