"""What a plan spends, by client and cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgap.cli.binding import ends_last
from fedgap.cli.number_format import share, si
from fedgap.cli.plan_tables import MOST_CLIENTS, MOST_SEGMENTS
from fedgap.cli.uncut_table import Sheet

if TYPE_CHECKING:
    from fedgap.planning import Plan
    from fedgap.planning.problem import Problem

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spent:
    """All rounds of a plan; arrays have shape (N,)."""

    problem: Problem
    plan: Plan
    rounds: Array
    """Rounds that each client takes part in."""
    compute_j: Array
    upload_j: Array
    compute_s: Array
    upload_s: Array
    download_s: Array
    waiting_s: Array
    """Between a client's own end and the round's."""
    straggles: Array
    """Rounds that end when this client does; several clients may tie."""
    broadcast_j: float

    @classmethod
    def of(cls, problem: Problem, plan: Plan) -> Spent:
        """Sum a plan's rounds up."""
        size = problem.size
        sums = {key: np.zeros(size) for key in ("compute_j", "upload_j", "compute_s", "upload_s", "download_s")}
        rounds, waiting, straggles = np.zeros(size), np.zeros(size), np.zeros(size)
        for segment in plan.segments:
            cost = problem.cost(segment)
            for key, total in sums.items():
                total += segment.rounds * getattr(cost, key)
            late = ends_last(problem, segment)
            rounds += segment.rounds * segment.selected
            waiting += segment.rounds * np.where(segment.selected & ~late, cost.delay_s - cost.client_s, 0.0)
            straggles += segment.rounds * late
        return cls(
            problem, plan, rounds=rounds, waiting_s=waiting, straggles=straggles,
            broadcast_j=plan.rounds * problem.broadcast_j, **sums,
        )

    @property
    def energy_j(self) -> float:
        """Everybody's, the server's included."""
        return self.problem.energy(self.plan.segments)

    @property
    def delay_s(self) -> float:
        """All rounds, one after another."""
        return self.problem.delay(self.plan.segments)

    def clients_table(self) -> Sheet:
        """Who spends what, over all rounds."""
        client_j = self.compute_j + self.upload_j
        order = np.argsort(-client_j, kind="stable")[:MOST_CLIENTS]
        hidden = self.problem.size - order.size
        made = Sheet(
            f"Who spends what in {self.plan.rounds:,} rounds", "who", "takes part", "computing", "uploading", "energy",
            "share", "busy", "waiting", "ends last in",
            caption=f"{hidden} clients that spend less are not listed; --json has everybody" if hidden else None,
        )
        for n in sorted(order) if not hidden else order:
            if self.rounds[n] == 0:
                made.add_row(self.problem.names[n], "0", *["–"] * 7, style="dim")
                continue
            busy = self.compute_s[n] + self.upload_s[n] + self.download_s[n]
            made.add_row(
                self.problem.names[n], f"{self.rounds[n]:,.0f}", si(self.compute_j[n], "J"), si(self.upload_j[n], "J"),
                si(client_j[n], "J"), share(client_j[n], self.energy_j), si(busy, "s"), si(self.waiting_s[n], "s"),
                f"{self.straggles[n]:,.0f}",
            )
        made.add_section()
        made.add_row(
            "server", f"{self.plan.rounds:,}", "–", "–", si(self.broadcast_j, "J"),
            share(self.broadcast_j, self.energy_j), "–", "–", "–",
        )
        made.add_row(
            "all", "", si(float(self.compute_j.sum()), "J"), si(float(self.upload_j.sum()), "J"),
            si(self.energy_j, "J"), "", "", "", "", style="bold",
        )
        return made

    def time_table(self) -> Sheet:
        """Where the time of each segment's rounds goes: the slowest client's download, computing and upload."""
        made = Sheet(
            "Where a round's time goes", "rounds", "a round takes", "download", "compute", "upload", "straggler",
            left=("straggler",),
        )
        for segment in self.plan.segments[:MOST_SEGMENTS]:
            cost, slowest = self.problem.cost(segment), int(ends_last(self.problem, segment).sum())
            first, length = int(cost.straggler), float(cost.delay_s)
            parts = [float(x[first]) for x in (cost.download_s, cost.compute_s, cost.upload_s)]
            made.add_row(
                f"{segment.rounds:,}", si(length, "s"), *(f"{si(x, 's')} ({share(x, length)})" for x in parts),
                self._who(slowest, int(segment.selected.sum()), first),
            )
        return made

    def _who(self, last: int, selected: int, first: int) -> str:
        if last == 1:
            return self.problem.names[first]
        if last == selected:
            return f"nobody: {'both' if selected == 2 else f'all {selected}'} end together"
        return f"{self.problem.names[first]} and {last - 1} more"

    def totals_table(self) -> Sheet:
        """Both totals against the budgets."""
        made = Sheet("Totals", "total", "used", "of", "share")
        for name, used, most, unit in (
            ("energy", self.energy_j, self.problem.energy_j, "J"),
            ("delay", self.delay_s, self.problem.delay_s, "s"),
        ):
            made.add_row(name, f"{used:.6g} {unit}", f"{most:.6g} {unit}", share(used, most))
        return made

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        per_client = {
            "rounds": self.rounds.astype(int), "compute_j": self.compute_j, "upload_j": self.upload_j,
            "compute_s": self.compute_s, "upload_s": self.upload_s, "download_s": self.download_s,
            "waiting_s": self.waiting_s, "straggler_rounds": self.straggles.astype(int),
        }
        segments = []
        for segment in self.plan.segments:
            cost = self.problem.cost(segment)
            segments.append(
                {"rounds": segment.rounds, "delay_s": float(cost.delay_s), "energy_j": float(cost.energy_j),
                 "straggler": self.problem.names[int(cost.straggler)]}
            )
        return {
            "energy_j": self.energy_j, "delay_s": self.delay_s, "broadcast_j": self.broadcast_j,
            "budget": {"energy_j": self.problem.energy_j, "delay_s": self.problem.delay_s}, "segments": segments,
            "clients": [
                {"name": name, **{key: values[n].item() for key, values in per_client.items()}}
                for n, name in enumerate(self.problem.names)
            ],
        }
