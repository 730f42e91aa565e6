"""The ledger counts the joules and seconds that a run has spent, by client and in total."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgap.arrays import Floats
from fedgap.running.faults import Attendance
from fedgap.running.job import Job


@dataclass(frozen=True, eq=False)
class Charge:
    """The cost of one round. Its energy is that of the selected clients plus the broadcast; its delay is the time until
    the server can start the next round."""

    went: Attendance
    broadcast_j: float
    uploaded_bits: float
    client_j: Floats
    """Joules of each client, (N,)."""
    energy_j: float
    complete: bool
    """Whether all selected clients delivered."""

    @staticmethod
    def of(went: Attendance, broadcast_j: float, uploaded_bits: float) -> Charge:
        """The cost of a round with this attendance (``went``)."""
        client_j = went.compute_j + went.upload_j + went.idle_j
        return Charge(went, broadcast_j, uploaded_bits, client_j, float(client_j.sum()) + broadcast_j,
                      not (went.dropped | went.late).any())

    @property
    def delay_s(self) -> float:
        """The duration of the round in seconds."""
        return self.went.delay_s

    @property
    def client_s(self) -> Floats:
        """Seconds that each client was busy, (N,)."""
        return self.went.client_s


@dataclass(eq=False)
class Ledger:
    """Running totals of a run.

    Without faults they are the paper's E and T: Σ_s [Σ_n a_n(Ẽ_n + Ê_n) + p̂·max_n H_n/r̂_n] and Σ_s max_n a_n(τ_n +
    τ̂_n)."""

    job: Job
    energy_j: float = 0.0
    delay_s: float = 0.0
    broadcast_j: float = 0.0
    uploaded_bits: float = 0.0
    compute_j: Floats = field(init=False)
    upload_j: Floats = field(init=False)
    idle_j: Floats = field(init=False)
    probe_j: Floats = field(init=False)
    """Joules that each client spent on reporting its loss before rounds, (N,)."""
    client_s: Floats = field(init=False)
    dropped: NDArray[np.int64] = field(init=False)
    late: NDArray[np.int64] = field(init=False)
    rejected: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        clients = len(self.job.names)
        self.compute_j, self.upload_j, self.idle_j, self.probe_j, self.client_s = np.zeros((5, clients))
        self.dropped, self.late, self.rejected = np.zeros((3, clients), dtype=np.int64)

    def affords(self, energy_j: float, delay_s: float) -> str:
        """Whether a round of this cost fits into what is left of both budgets: "" if so, otherwise which budget is
        spent.

        Budgets are checked with a relative tolerance of 1e-6, as in plans."""
        if self.energy_j + energy_j > self.job.energy_budget_j * (1 + 1e-6):
            return "the energy budget is spent" if self.energy_j else "the first round would exceed the energy budget"
        if self.delay_s + delay_s > self.job.delay_budget_s * (1 + 1e-6):
            return "the delay budget is spent"
        return ""

    def book(self, charge: Charge) -> None:
        """Add the cost of a round to the totals."""
        went = charge.went
        self.energy_j += charge.energy_j
        self.delay_s += went.delay_s
        self.broadcast_j += charge.broadcast_j
        self.uploaded_bits += charge.uploaded_bits
        self.compute_j += went.compute_j
        self.upload_j += went.upload_j
        self.idle_j += went.idle_j
        self.client_s += went.client_s
        if not charge.complete:
            self.dropped += went.dropped
            self.late += went.late

    def book_probe(self, client_j: Floats, client_s: Floats) -> dict[str, Any]:
        """Charge the clients that were asked for their loss, and return the keys for the round's event.

        ``client_j`` and ``client_s`` are (N,), 0 for clients that were not asked. The server waits for the slowest
        answer."""
        energy_j, delay_s = float(client_j.sum()), float(client_s.max())
        self.energy_j += energy_j
        self.delay_s += delay_s
        self.probe_j += client_j
        self.client_s += client_s
        return {"probed": np.flatnonzero(client_s).tolist(), "probe_j": energy_j, "probe_s": delay_s}

    @property
    def client_j(self) -> Floats:
        """All joules spent by each client, (N,)."""
        return self.compute_j + self.upload_j + self.idle_j + self.probe_j

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint must hold; JSON keeps every float64 exactly."""
        return {key: value.tolist() if isinstance(value, np.ndarray) else value
                for key, value in vars(self).items() if key != "job"}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        for key, value in state.items():
            setattr(self, key, np.array(value, dtype=getattr(self, key).dtype) if isinstance(value, list) else value)

    def by_client(self) -> list[dict[str, Any]]:
        """One row per client, for the summary."""
        return [{"name": name, "compute_j": float(self.compute_j[n]), "upload_j": float(self.upload_j[n]),
                 **({"idle_j": float(self.idle_j[n])} if self.idle_j.any() else {}),
                 **({"probe_j": float(self.probe_j[n])} if self.probe_j.any() else {}),
                 "seconds": float(self.client_s[n]), "dropped": int(self.dropped[n]), "late": int(self.late[n]),
                 "rejected": int(self.rejected[n])} for n, name in enumerate(self.job.names)]
