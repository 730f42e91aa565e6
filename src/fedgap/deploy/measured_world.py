"""The measured world of a deployment: which nodes are available, and how much slower than usual they are.

Joules and seconds remain those of the cost model; a measurement says by which factor a client is slower than usual. A
link that is d times slower has the gain at which the client's highest power gives 1/d of its rate; a processor that is
d times slower has 1/d of its highest clock. A client that is as fast as usual, or faster, has its nominal figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.system import Fleet
from fedgap.system.channel import slower_link_gain

FIRST = 5
"""Number of first measurements of a client whose median counts as usual."""
WEIGHT = 0.7
"""Weight of a new measurement in the smoothed logarithm of the slowness: being 10 times slower once counts as 5 times
slower."""
FADES = 0.9
"""Factor on that logarithm after each round without a measurement of the client, so that it is selected again some
time."""
NOTICED = 2.0
"""A client that is less than this many times slower than usual counts as unchanged."""
LINK_POLLS, PROCESSOR_POLLS = 5, 1
"""Times shorter than this many polling intervals count as equal, because messages wait for the next poll."""


class Slowness:
    """How many times slower than usual each of N clients is at one kind of work. ``state`` is everything that it
    remembers."""

    def __init__(self, clients: int, least_s: float) -> None:
        """``least_s``: shorter times count as this many seconds."""
        self._least_s = least_s
        self.state: dict[str, Any] = {"first": [[] for _ in range(clients)], "log_slower": [0.0] * clients,
                                      "measured": []}

    def see(self, client: int, seconds: float, amount: float) -> None:
        """Add a measurement: the seconds for an amount of work, in any unit.

        A larger amount may take proportionally longer. A smaller one may take as long as usual, because masked weights
        still cost time, and most of a small message's time does not depend on its size."""
        first = self.state["first"][client]
        if len(first) < FIRST:
            first.append([max(seconds, self._least_s), amount])
        usual_s, usual_amount = (sorted(values)[(len(first) - 1) // 2] for values in zip(*first, strict=True))
        expected_s = usual_s * max(1.0, amount / usual_amount)
        logs = self.state["log_slower"]
        logs[client] += WEIGHT * (math.log(max(1.0, seconds / expected_s)) - logs[client])
        self.state["measured"].append(client)

    def present(self) -> Floats:
        """How many times slower than usual each client is now, (N,); 1 for usual. Begins a new round."""
        logs, measured = self.state["log_slower"], set(self.state["measured"])
        self.state["log_slower"] = [log if n in measured else FADES * log for n, log in enumerate(logs)]
        self.state["measured"] = []
        slower = np.exp(self.state["log_slower"])
        return np.where(slower < NOTICED, 1.0, slower)


class MeasuredWorld:
    """Makes the world's rows from measurements; see :class:`~fedgap.running.steering.MeasuredRows`."""

    def __init__(self, nominal: Fleet, there: Callable[[], Collection[int]], least: int, poll_s: float) -> None:
        """:param there: a function that returns the clients that can take part now; :param least: with fewer clients
        than this no row is made; :param poll_s: seconds between two checks for answers."""
        self._nominal, self._there, self._least = nominal, there, least
        self.link = Slowness(nominal.size, LINK_POLLS * poll_s)
        """Slowness of a client's link: seconds of a round's messages, relative to their bytes."""
        self.processor = Slowness(nominal.size, PROCESSOR_POLLS * poll_s)
        """Slowness of a client's processor: seconds of computing, relative to its cycles."""

    def row(self) -> tuple[Floats, Bools, Floats] | None:
        """The present gain, availability and speed of each client, (N,) each; None while too few clients are there."""
        there = list(self._there())
        if len(there) < self._least:
            return None
        fleet = self._nominal
        available = np.zeros(fleet.size, dtype=np.bool_)
        available[there] = True
        slower = self.link.present()
        gain = slower_link_gain(slower, fleet.max_power_w, fleet.uplink_gain, fleet.bandwidth_hz,
                                fleet.uplink_noise_psd_w_hz)
        lowest = fleet.min_frequency_hz / fleet.max_frequency_hz
        return np.where(slower > 1.0, gain, 1.0), available, np.maximum(1.0 / self.processor.present(), lowest)

    @property
    def state(self) -> dict[str, Any]:
        """Everything that the measurements so far have shown."""
        return {"link": self.link.state, "processor": self.processor.state}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.link.state, self.processor.state = state["link"], state["processor"]
