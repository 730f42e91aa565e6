"""A trace: channel, availability and speed of every client in every round.

Row t holds for round t, counted from 0. A trace that is shorter than the training starts again from its first row.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.system.fleet import Fleet


@dataclass(frozen=True, eq=False)
class Trace:
    """What happens to N clients in T rounds; all arrays have shape (T, N)."""

    gain: Floats
    """Channel power gain relative to the fleet's, for uplink and downlink."""
    available: Bools
    """Whether the client can take part."""
    speed: Floats
    """The highest clock that the processor allows, relative to the fleet's."""

    @classmethod
    def constant(cls, rounds: int, clients: int) -> "Trace":
        """Return a trace in which nothing changes: all clients are available and as the fleet describes them."""
        ones = np.ones((rounds, clients))
        return cls(ones, ones > 0.0, ones)

    def with_row(self, gain: Floats, available: Bools, speed: Floats) -> "Trace":
        """Return the trace with one more row; arrays (N,)."""
        return Trace(np.vstack([self.gain, gain]), np.vstack([self.available, available]),
                     np.vstack([self.speed, speed]))

    def first(self, rounds: int) -> "Trace":
        """Return the trace of the first ``rounds`` rounds."""
        return Trace(self.gain[:rounds], self.available[:rounds], self.speed[:rounds])

    @property
    def rounds(self) -> int:
        """T, the number of rows."""
        return len(self.gain)

    def row(self, number: int) -> int:
        """Return the index of the row that holds for round ``number``."""
        return number % self.rounds

    def fleet(self, nominal: Fleet, number: int) -> Fleet:
        """Return the fleet with the channels and clocks of round ``number``. Clients that are not available stay in it.
        """
        row = self.row(number)
        return replace(nominal, uplink_gain=nominal.uplink_gain * self.gain[row],
                       downlink_gain=nominal.downlink_gain * self.gain[row],
                       max_frequency_hz=nominal.max_frequency_hz * self.speed[row])
