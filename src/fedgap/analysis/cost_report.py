"""The energy and time that a plan spends, by client and cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgap.analysis.plan_check import check_plan
from fedgap.arrays import Bools, Floats
from fedgap.config import Scenario
from fedgap.planning import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.report.number_format import share, si
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.system import RoundCost

NEAR = 1e-4
"""A limit counts as reached if a value is within this share of it; plans of Algorithm 1 stay about as far below."""
REAL_MARGIN = 0.05
"""Clients are shown as stragglers if they finish later than all others by at least this share of the round."""
MOST_CLIENTS = 40
"""Largest number of clients in a table; of a larger fleet those that spend most are shown."""
MOST_SEGMENTS = 6
"""Largest number of segments that are shown."""


@dataclass(frozen=True, eq=False)
class SegmentCost:
    """The cost of one round of a segment, and the number of these rounds."""

    rounds: int
    selected: Bools
    by_client: RoundCost
    """One round, by client and cause."""
    stragglers: Bools
    """The slowest clients of the round; several may tie. Shape (N,)."""
    local_steps: int = 1
    """τ: steps that each selected client takes in a round."""

    @property
    def energy_j(self) -> float:
        """Joules of one round, including the broadcast."""
        return float(self.by_client.energy_j)

    @property
    def delay_s(self) -> float:
        """Seconds of one round."""
        return float(self.by_client.delay_s)

    @property
    def real_stragglers(self) -> Bools:
        """The clients for which others wait, (N,): a minority that finishes clearly later than all others.

        In a good plan all clients finish at the same deadline, and there are no stragglers.
        """
        others = self.selected & ~self.stragglers
        latest = float(self.by_client.client_s.max(where=others, initial=0.0))
        behind = bool(latest <= (1.0 - REAL_MARGIN) * self.delay_s)
        return np.asarray(self.stragglers & (behind and 0 < self.stragglers.sum() <= others.sum()))

    @property
    def straggler(self) -> int:
        """Index of the slowest selected client; of several equally slow ones, the first."""
        return int(self.by_client.straggler)


def segment_cost(problem: Problem, segment: Segment) -> SegmentCost:
    """Return the cost of a segment."""
    cost = problem.cost(segment)
    late = segment.selected & (cost.client_s >= (1.0 - NEAR) * cost.delay_s)
    return SegmentCost(segment.rounds, segment.selected, cost, np.asarray(late), segment.local_steps)


@dataclass(frozen=True, eq=False, repr=False)
class CostReport(Printable):
    """What all rounds of a plan spend together; arrays have one value per client, (N,)."""

    names: tuple[str, ...]
    energy_budget_j: float
    """E₀, the energy budget of all rounds."""
    delay_budget_s: float
    """T₀, the delay budget of all rounds."""
    segments: tuple[SegmentCost, ...]
    rounds: npt.NDArray[np.int64]
    """The number of rounds in which each client takes part."""
    compute_j: Floats
    upload_j: Floats
    idle_j: Floats
    """Idle power P_n times the duration of the rounds in which the client takes part."""
    battery_j: Floats
    """B_n, the energy of each client's battery; infinite for a client without one."""
    compute_s: Floats
    upload_s: Floats
    download_s: Floats
    waiting_s: Floats
    """Seconds between the end of the client's work and the end of the round."""
    straggler_rounds: npt.NDArray[np.int64]
    """The number of rounds in which no other client finishes later; several clients may finish at the same time."""
    broadcast_j: float

    @classmethod
    def from_problem(cls, problem: Problem, plan: Plan) -> CostReport:
        """Return the cost of a plan. The plan must fit the problem."""
        costs = tuple(segment_cost(problem, segment) for segment in plan.segments)

        def total(values: list[Any]) -> Floats:
            return np.asarray(np.sum([np.zeros(problem.size), *values], axis=0))

        sums = {key: total([cost.rounds * getattr(cost.by_client, key) for cost in costs])
                for key in ("compute_j", "upload_j", "idle_j", "compute_s", "upload_s", "download_s")}
        waiting = [cost.rounds * np.where(cost.selected & ~cost.stragglers,
                                          cost.by_client.delay_s - cost.by_client.client_s, 0.0) for cost in costs]
        return cls(
            problem.names, problem.energy_j, problem.delay_s, costs,
            rounds=total([cost.rounds * cost.selected for cost in costs]).astype(np.int64),
            waiting_s=total(waiting),
            straggler_rounds=total([cost.rounds * cost.stragglers for cost in costs]).astype(np.int64),
            broadcast_j=plan.rounds * problem.broadcast_j, battery_j=problem.fleet.battery_j, **sums,
        )

    @property
    def client_j(self) -> Floats:
        """Each client's joules over all rounds."""
        return self.compute_j + self.upload_j + self.idle_j

    @property
    def total_rounds(self) -> int:
        """The number of rounds of the plan."""
        return sum(segment.rounds for segment in self.segments)

    @property
    def energy_j(self) -> float:
        """Joules of all clients and the server over all rounds."""
        return float(sum(segment.rounds * segment.energy_j for segment in self.segments))

    @property
    def delay_s(self) -> float:
        """Seconds of all rounds together."""
        return float(sum(segment.rounds * segment.delay_s for segment in self.segments))

    def parts(self) -> list[Sheet]:
        """Return tables of what each client spends, of where a round's time goes, and of both totals."""
        return [self._clients_table(), self._time_table(), self._totals_table()]

    def _clients_table(self) -> Sheet:
        client_j, idles = self.client_j, bool(self.idle_j.any())
        order = np.argsort(-client_j, kind="stable")[:MOST_CLIENTS]
        hidden = len(self.names) - order.size
        table = Sheet(
            f"Who spends what in {self.total_rounds:,} rounds", "who", "takes part", "computing", "uploading",
            *(["idle"] if idles else []), "energy",
            "share", "busy", "waiting", "ends last in",
            caption=f"{hidden} clients that spend less are not listed; --json lists all" if hidden else None,
        )
        for n in sorted(order) if not hidden else order:
            if self.rounds[n] == 0:
                table.add_row(self.names[n], "0", *["–"] * (7 + idles), style="dim")
                continue
            busy = self.compute_s[n] + self.upload_s[n] + self.download_s[n]
            table.add_row(
                self.names[n], f"{self.rounds[n]:,}", si(self.compute_j[n], "J"), si(self.upload_j[n], "J"),
                *([si(self.idle_j[n], "J")] if idles else []), si(client_j[n], "J"),
                share(client_j[n], self.energy_j), si(busy, "s"), si(self.waiting_s[n], "s"),
                f"{self.straggler_rounds[n]:,}",
            )
        table.add_section()
        table.add_row(
            "server", f"{self.total_rounds:,}", *["–"] * (2 + idles), si(self.broadcast_j, "J"),
            share(self.broadcast_j, self.energy_j), "–", "–", "–",
        )
        table.add_row(
            "all", "", si(float(self.compute_j.sum()), "J"), si(float(self.upload_j.sum()), "J"),
            *([si(float(self.idle_j.sum()), "J")] if idles else []), si(self.energy_j, "J"),
            *[""] * 4, style="bold",
        )
        return table

    def _time_table(self) -> Sheet:
        local = any(segment.local_steps > 1 for segment in self.segments)
        table = Sheet(
            "Where a round's time goes", "rounds", *(["local steps"] if local else []), "a round takes", "download",
            "compute", "upload", "straggler", left=("straggler",),
        )
        for segment in self.segments[:MOST_SEGMENTS]:
            cost, length = segment.by_client, segment.delay_s
            times = [float(part[segment.straggler]) for part in (cost.download_s, cost.compute_s, cost.upload_s)]
            table.add_row(
                f"{segment.rounds:,}", *([f"{segment.local_steps:,}"] if local else []), si(length, "s"),
                *(f"{si(x, 's')} ({share(x, length)})" for x in times),
                self._stragglers(segment),
            )
        return table

    def _stragglers(self, segment: SegmentCost) -> str:
        last, selected, first = int(segment.stragglers.sum()), int(segment.selected.sum()), segment.straggler
        if last == 1:
            return self.names[first]
        if last == selected:
            return f"nobody: {'both' if selected == 2 else f'all {selected}'} end together"
        return f"{self.names[first]} and {last - 1} more"

    def _totals_table(self) -> Sheet:
        table = Sheet("Totals", "total", "used", "of", "share")
        for name, used, most, unit in (
            ("energy", self.energy_j, self.energy_budget_j, "J"),
            ("delay", self.delay_s, self.delay_budget_s, "s"),
        ):
            table.add_row(name, f"{used:.6g} {unit}", f"{most:.6g} {unit}", share(used, most))
        for n in np.flatnonzero(np.isfinite(self.battery_j))[:MOST_CLIENTS]:
            used, most = float(self.client_j[n]), float(self.battery_j[n])
            table.add_row(f"battery of {self.names[n]}", f"{used:.6g} J", f"{most:.6g} J", share(used, most))
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return all totals, segments and clients as plain values."""
        columns = ("rounds", "compute_j", "upload_j", "idle_j", "compute_s", "upload_s", "download_s", "waiting_s",
                   "straggler_rounds")
        return {
            "energy_j": self.energy_j, "delay_s": self.delay_s, "broadcast_j": self.broadcast_j,
            "budget": {"energy_j": self.energy_budget_j, "delay_s": self.delay_budget_s},
            "segments": [
                {"rounds": segment.rounds, "local_steps": segment.local_steps, "delay_s": segment.delay_s,
                 "energy_j": segment.energy_j, "straggler": self.names[segment.straggler]}
                for segment in self.segments
            ],
            "clients": [
                {"name": name, **{key: getattr(self, key)[n].item() for key in columns}}
                for n, name in enumerate(self.names)
            ],
        }


def cost(scenario: Scenario, plan: Plan) -> CostReport:
    """Return what a plan spends in a scenario, by client and cause. The plan may have been made for another scenario.

    >>> scenario = fedgap.Scenario.load("paper-mnist")
    >>> plan = fedgap.plan(scenario)
    >>> report = fedgap.cost(scenario, plan)
    >>> abs(report.to_dict()["energy_j"] - plan.energy_j) < 1e-6
    True

    ``print(report)`` shows what each client spends, where the time of a round goes, and who finishes last.
    """
    check_plan(scenario, plan, other_scenario=True)
    return CostReport.from_problem(Problem.of(scenario), plan)
