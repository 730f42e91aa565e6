"""Simulated faults: clients that drop out of a round or deliver too late."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.streams import stream


@dataclass(frozen=True)
class Faults:
    """How unreliable the fleet is. By default nothing fails."""

    dropout_probability: float = 0.0
    """Probability that a selected client drops out in a round, at a uniformly random moment of its work."""
    straggler_probability: float = 0.0
    """Probability that a selected client's processor is slower in a round."""
    straggler_slowdown: float = 1.0
    """How many times longer the computation of a slowed client takes; its joules stay the same."""

    @property
    def any(self) -> bool:
        """Whether any fault can occur."""
        return self.dropout_probability > 0.0 or self.straggler_probability > 0.0

    def to_dict(self) -> dict[str, float]:
        """The fields by name, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class Work:
    """The planned work of a round, arrays (N,) that are 0 for clients that are not selected: seconds and joules of
    computing and uploading, and seconds of downloading the global gradient."""

    selected: Bools
    compute_s: Floats
    upload_s: Floats
    download_s: Floats
    compute_j: Floats
    upload_j: Floats
    idle_w: Floats | float = 0.0
    """Idle power in W that each selected client draws during the whole round."""

    @property
    def client_s(self) -> Floats:
        """The time τ_n + τ̂_n of each selected client in seconds."""
        return self.compute_s + self.upload_s + self.download_s

    @property
    def delay_s(self) -> float:
        """Seconds until the slowest selected client has finished."""
        return float(self.client_s.max())

    @property
    def energy_j(self) -> float:
        """Joules of all selected clients, without the broadcast."""
        return float((self.compute_j + self.upload_j + self.idle_w * self.delay_s).sum())


@dataclass(frozen=True, eq=False)
class Attendance:
    """What happened in a round, arrays (N,): who delivered in time, who dropped out, who was late, and what each client
    spent."""

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
    # Numbers are drawn for all clients, so that a client's faults do not depend on who else is selected.
    draw = stream(seed, "faults", round_number).random((3, len(work.selected)))
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
    """spent/whole, limited to 0..1; 1 if ``whole`` is 0."""
    return np.asarray(np.clip(np.divide(spent, whole, out=np.ones_like(spent), where=whole > 0.0), 0.0, 1.0))
