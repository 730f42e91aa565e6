"""Simulated faults: clients that drop out of a round or are too late."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.streams import stream


@dataclass(frozen=True)
class Faults:
    """How unreliable the fleet is. The default is a fleet without faults."""

    dropout_probability: float = 0.0
    """Probability that a selected client drops out in a round, at a uniformly random moment of its work."""
    straggler_probability: float = 0.0
    """Probability that a selected client's processor is slower in a round."""
    straggler_slowdown: float = 1.0
    """How many times longer its computing then takes; the joules of its own work stay the same."""

    @property
    def any(self) -> bool:
        """Whether anything can go wrong at all."""
        return self.dropout_probability > 0.0 or self.straggler_probability > 0.0

    def to_dict(self) -> dict[str, float]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class Work:
    """A round as planned, arrays (N,), 0 where not selected: seconds and joules of computing and of uploading, seconds
    of receiving the global gradient."""

    selected: Bools
    compute_s: Floats
    upload_s: Floats
    download_s: Floats
    compute_j: Floats
    upload_j: Floats
    idle_w: Floats | float = 0.0
    """What each selected client draws throughout the round, W."""

    @property
    def client_s(self) -> Floats:
        """Each selected client's τ_n + τ̂_n."""
        return self.compute_s + self.upload_s + self.download_s

    @property
    def delay_s(self) -> float:
        """Seconds until the slowest selected client has ended."""
        return float(self.client_s.max())

    @property
    def energy_j(self) -> float:
        """Joules of all selected clients, without the broadcast."""
        return float((self.compute_j + self.upload_j + self.idle_w * self.delay_s).sum())


@dataclass(frozen=True, eq=False)
class Attendance:
    """What happened in a round, arrays (N,): who delivered in time, who dropped out, who was late, what each spent."""

    arrived: Bools
    dropped: Bools
    late: Bools
    compute_j: Floats
    upload_j: Floats
    client_s: Floats
    delay_s: float
    idle_j: Floats | float = 0.0


def attend(work: Work, faults: Faults, seed: int, round_number: int) -> Attendance:
    """Simulate what the selected clients do in a round.

    The deadline is the planned time of the slowest selected client. A client that drops out is charged the joules that
    it spent until then. A client whose time τ_n + τ̂_n exceeds the deadline is charged until the deadline minus its
    download, when the server closes the round. All selected clients draw idle power until the round ends. If a client
    is missing, the server waits until the deadline; otherwise the round lasts as long as its slowest client.
    """
    nobody = np.zeros_like(work.selected)
    deadline = work.delay_s
    if not faults.any:
        return Attendance(work.selected, nobody, nobody, work.compute_j, work.upload_j, work.client_s, deadline,
                          work.idle_w * deadline)
    draw = stream(seed, "faults", round_number).random((3, len(work.selected)))  # for all clients, whoever is selected
    slowed = work.selected & (draw[0] < faults.straggler_probability)
    dropped = work.selected & (draw[1] < faults.dropout_probability)
    compute_s = np.where(slowed, faults.straggler_slowdown, 1.0) * work.compute_s
    late = work.selected & ~dropped & (compute_s + work.upload_s + work.download_s > deadline)
    whole = compute_s + work.upload_s
    limit = np.minimum(whole, np.maximum(deadline - work.download_s, 0.0))
    until = np.where(dropped, np.minimum(draw[2] * whole, limit), np.where(late, limit, whole))
    computed = _share(until, compute_s)
    uploaded = _share(until - compute_s, work.upload_s)
    arrived = work.selected & ~dropped & ~late
    client_s = until + np.where(arrived | late, work.download_s, 0.0)
    delay_s = deadline if (dropped | late).any() else float(client_s.max())
    return Attendance(arrived, dropped, late, computed * work.compute_j, uploaded * work.upload_j, client_s, delay_s,
                      work.idle_w * delay_s)


def _share(spent: Floats, whole: Floats) -> Floats:
    """spent/whole within 0..1; 1 where there was nothing to do."""
    return np.asarray(np.clip(np.divide(spent, whole, out=np.ones_like(spent), where=whole > 0.0), 0.0, 1.0))
