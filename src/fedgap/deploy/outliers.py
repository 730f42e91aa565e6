"""Find clients whose updates or BatchNorm statistics are far from the others', a sign of a broken or hostile node."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low

TOO_LONG = 5.0
"""An update that is this many times longer than usual is an outlier; honest clients rarely send one."""
MEMORY = 20
"""Number of rounds whose median length is remembered, for rounds with too few clients to compare."""
LEAST_COMPARED = 3
"""Minimum number of clients in a round for comparing them with each other."""
ROUNDS_TO_NAME = 2
"""A client is reported if its update was too long in this many of its last three rounds."""
BLATANT_FACTOR = 100.0
"""A client whose update is this many times longer than usual is reported at once."""
QUIET_ROUNDS = 20
"""A client that was reported is not reported again for this many of its rounds."""


@dataclass
class Outliers:
    """Compares the lengths of the clients' updates, or of other changes that they send, round by round.

    ``what`` names the compared quantity in messages."""

    what: str = "its update"
    _medians: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    _recent: dict[int, deque[bool]] = field(default_factory=dict)
    _quiet: dict[int, int] = field(default_factory=dict)

    def usual(self, norms: Mapping[int, float]) -> float:
        """The length to compare with: the median of this round, or of earlier rounds if few clients delivered; 0 if
        unknown."""
        if len(norms) >= LEAST_COMPARED:
            return median_low(norms.values())
        return median_low(self._medians) if self._medians else 0.0

    def suspects(self, norms: Mapping[int, float]) -> list[int]:
        """The numbers of the clients whose update in this round is too long."""
        limit = TOO_LONG * self.usual(norms)
        return sorted(n for n, norm in norms.items() if 0.0 < limit < norm)

    def see(self, norms: Mapping[int, float]) -> dict[int, str]:
        """Process a round that counts; returns the clients to report now, with a message for each."""
        usual, suspects = self.usual(norms), self.suspects(norms)
        named = {}
        for client, norm in norms.items():
            recent = self._recent.setdefault(client, deque(maxlen=3))
            recent.append(client in suspects)
            self._quiet[client] = self._quiet.get(client, 0) - 1
            blatant = norm > BLATANT_FACTOR * usual
            if recent[-1] and (blatant or sum(recent) >= ROUNDS_TO_NAME) and self._quiet[client] < 0:
                self._quiet[client] = QUIET_ROUNDS
                named[client] = (f"is an outlier: {self.what} is {norm / usual:.3g} times as long as usual "
                                 f"({norm:.3g} against {usual:.3g})")
        honest = [norm for client, norm in norms.items() if client not in suspects]
        if len(honest) >= LEAST_COMPARED - 1:
            self._medians.append(median_low(honest))
        return named
