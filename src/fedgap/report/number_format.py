"""Number formats for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

_PREFIXES = {-5: "f", -4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}


def si(value: float, unit: str) -> str:
    """Format a value with three digits and an SI prefix: ``si(0.2073, "W")`` is ``207 mW``."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:.3g} {unit}"
    value = float(f"{value:.2e}")  # rounded first, so that 999.6 is 1.00 k and not 1000
    step = min(max(math.floor(math.log10(abs(value)) / 3 + 1e-12), min(_PREFIXES)), max(_PREFIXES))
    return f"{three(value / 1000.0**step)} {_PREFIXES[step]}{unit}"


def three(value: float) -> str:
    """Format a value with three significant digits and trailing zeros. From 0.001 to 100,000 it has no exponent."""
    if value == 0.0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    value = float(f"{value:.2e}")
    digits = 2 - math.floor(math.log10(abs(value)) + 1e-12)
    return f"{value:.{max(0, digits)}f}"


def number(value: float | None, digits: int = 4) -> str:
    """Format a value with this many significant digits, ∞ if it is infinite, and – if it is None."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    text = f"{value:.{digits}g}"
    if "e" in text:
        return f"{float(text):,.0f}" if "e+" in text and abs(value) < 1e7 else text
    return f"{float(text):,.{len(text.partition('.')[2])}f}"


def four_digits(value: float) -> float:
    """Round a measured number to four significant digits, because it is not more accurate than that."""
    return float(f"{value:.4g}")


def alike(values: Sequence[float], digits: int = 5) -> list[str]:
    """Format numbers that belong together, such as a sum and its terms, with equally many decimals.

    The largest has ``digits`` digits. A value that would round to zero keeps its own precision.
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if not 1e-3 <= largest < 1e7:
        return [number(value, digits) for value in values]
    decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
    return [number(value, 2) if not math.isfinite(value) or 0.0 < abs(value) < 0.5 * 10.0**-decimals
            else f"{value:,.{decimals}f}" for value in values]


def share(part: float, whole: float) -> str:
    """Format a share as a percentage, with one decimal if it is small."""
    if not whole > 0.0 or not math.isfinite(part) or not math.isfinite(whole):
        return "–"
    percent = 100.0 * part / whole
    if percent == 0.0:
        return "0 %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %" if percent >= 0.05 else "< 0.1 %"


ROUNDING = 1e-9
"""A remainder below this share of the whole is a rounding error, such as 5.7e-14 s left of 150 s."""


def remainder(whole: float, spent: float) -> float:
    """Return what is left of ``whole``, at least 0 and exactly 0 if it is only a rounding error."""
    left = whole - spent
    return left if left > ROUNDING * whole else 0.0


def rounds(count: int) -> str:
    """Format a number of rounds: ``1 round``, ``2 rounds``."""
    return f"{count:,} round" + ("" if count == 1 else "s")


def split(*seconds: float) -> str:
    """Format the parts of a time in one unit: ``48+20+307 ms``."""
    scale, unit = (1.0, "s") if sum(seconds) >= 10.0 else (1e3, "ms") if sum(seconds) >= 1e-2 else (1e6, "µs")
    return "+".join(f"{scale * part:.0f}" for part in seconds) + f" {unit}"
