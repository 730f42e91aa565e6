"""Simulate a policy in a changing world without training: its rounds, joules, seconds and forecast error.

The world is a trace with one *row* per round. A row in which nobody trains is *idle*.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.errors import InputError
from fedgap.planning.client_curves import ClientCurves
from fedgap.planning.objectives.forecast_tangent import forecast
from fedgap.planning.plan import Segment
from fedgap.planning.policies.done_rounds import DoneRounds
from fedgap.planning.policies.policy import Decision, Policy, PolicyStart, RoundView, asked_clients, decided
from fedgap.planning.policies.present_channel import least_joules
from fedgap.planning.policies.present_round import PresentRound
from fedgap.report.number_format import rounds as rounds_text
from fedgap.report.printable import Printable
from fedgap.system import probe_cost
from fedgap.system.trace import Trace
from fedgap.theory.generalization import smoothed
from fedgap.theory.label_matching import label_divergence

Labels = tuple[Floats | None, Floats | None]
"""Label histograms of the clients, (N, classes), and of the target, (classes,)."""
BUDGET_KEPT = 1e-6
"""Relative excess at which a budget still counts as kept, because of rounding; the same as in a run's ledger."""
_UNKNOWN_LOSS = 1.0
"""The loss of every client that took part or was asked. Without training, losses are not known and set equal."""


@dataclass(frozen=True, eq=False)
class ChangingWorld:
    """A problem in a changing world: its channels, available clients and labels in each row."""

    start: PolicyStart
    trace: Trace
    labels_at: Callable[[int], Labels] | None = None
    """Function from a row to the labels in it; None if labels do not change."""
    clients_drift: bool = False
    """Whether the clients' labels change, and not only the target's."""

    @classmethod
    def of(cls, start: PolicyStart, trace: Trace) -> "ChangingWorld":
        """Return the world of a scenario with this trace, and with its drift of labels if it has one."""
        scenario = start.problem.scenario
        drift = None if scenario is None or scenario.world is None else scenario.world.drift
        if drift is None:
            return cls(start, trace)
        counts, target = start.problem.label_counts, start.problem.target_counts
        if counts is None or target is None:
            raise InputError("world.drift: needs label histograms; give clients label_counts, and the scenario "
                             "target_counts")
        drift.require_classes(target.size)
        rounds = start.plan.rounds

        def labels(row: int) -> Labels:
            own, aimed = counts, target
            if drift.who != "clients":
                aimed = target.sum() * drift.labels(target, drift.amount(min(1.0, row / rounds)))
            if drift.who != "target":
                # A client collects more of some labels and fewer of others, but none of labels that it never had.
                shares = np.where(counts > 0.0, drift.labels(counts, drift.collected(row, rounds)), 0.0)
                own = counts.sum(axis=-1, keepdims=True) * shares / shares.sum(axis=-1, keepdims=True)
            return own, aimed

        return cls(start, trace, labels, drift.who != "target")

    def labels(self, number: int) -> Labels:
        """Return the label histograms of the clients and of the target in row ``number`` of the world."""
        if self.labels_at is not None:
            return self.labels_at(number)
        return self.start.problem.label_counts, self.start.problem.target_counts

    def available(self, number: int) -> Bools:
        """Return which clients can take part in a row, (N,).

        They must be available in the trace, and their channel must be good enough to finish a round within the whole
        delay budget. The model is not sent to others either: that could cost more than all rounds together.
        """
        start = self.start
        fleet = self.trace.fleet(start.problem.fleet, number)
        curves = ClientCurves.of(fleet, prune=start.scheme.prune, free_power=start.scheme.power,
                                 free_frequency=start.scheme.frequency)
        shortest = curves.overhead + curves.keep_min * curves.u_min
        return np.asarray(self.trace.available[self.trace.row(number)] & (shortest <= start.problem.delay_s))

    def view(self, number: int, left: tuple[float, float], done: tuple[Segment, ...], *, losses: Floats | None = None,
             last_round: Floats | None = None, client_j: Floats | float = 0.0) -> RoundView:
        """Return what is known before the round in row ``number``.

        A client whose battery does not suffice for its cheapest round is not available.

        :param left: joules and seconds that are left of the budgets; :param done: the rounds trained so far;
        :param losses: last known losses of the clients, (N,), NaN if unknown; :param last_round: the last round in
            which each client took part, (N,), −1 if none; :param client_j: joules that each client has spent, (N,).
        """
        nominal = self.start.problem.fleet
        counts, target = self.labels(number)
        fleet, battery = self.trace.fleet(nominal, number), np.maximum(nominal.battery_j - client_j, 0.0)
        charged = least_joules(fleet, self.start.scheme, left[1]) <= battery
        return RoundView(
            number=number, fleet=fleet, available=self.available(number) & charged, battery_j=battery,
            energy_j=left[0], delay_s=left[1], label_counts=counts, target_counts=target, done=done,
            losses=np.full(nominal.size, np.nan) if losses is None else losses,
            last_round=np.full(nominal.size, -1.0) if last_round is None else last_round,
        )

    def present(self, number: int, left: tuple[float, float], *, first: bool) -> PresentRound | None:
        """Return the problem of one round in row ``number``; None if no client that may be selected is available.

        :param left: joules and seconds that are left; :param first: whether it is the first round that is trained.
        """
        return PresentRound.row(self.start, self.trace.fleet(self.start.problem.fleet, number),
                                self.available(number), self.labels(number), budgets=left, first=first)

    @property
    def last_target(self) -> Floats | None:
        """The target's label histogram after the plan's rounds, for which the model is made, (classes,)."""
        return self.labels(self.start.plan.rounds)[1]

    @property
    def for_last_target(self) -> "ChangingWorld":
        """The same world with the last target in every row, as who knows it in advance sees it."""
        if self.labels_at is None:
            return self
        labels, last = self.labels_at, self.last_target
        return replace(self, labels_at=lambda row: (labels(row)[0], last))

    @property
    def most_rows(self) -> int:
        """Upper limit on the number of rows that a run can pass: all rounds, plus idle rows in all of the time."""
        problem = self.start.problem
        return problem.rounds + int(problem.delay_s / self.start.step_s)


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedPolicy(Printable):
    """The result of simulating a policy."""

    rows: tuple[int, ...]
    """The row of the world in which each round was trained."""
    segments: tuple[Segment, ...]
    """The trained rounds; each is a segment with one round."""
    decisions: tuple[Decision, ...]
    """The policy's decision in each row that was passed."""
    energy_j: float
    delay_s: float
    client_j: Floats
    """Joules of each client, (N,)."""
    error: float
    """The forecast error for the world's last target; 1 if no round was trained."""
    ended: str
    """Why the simulation ended, in words."""

    @property
    def rounds(self) -> int:
        """The number of rounds that were trained."""
        return len(self.segments)

    def parts(self) -> list[str]:
        """Return one sentence with the result, for ``print``."""
        idle = len(self.decisions) - self.rounds - bool(self.decisions and self.decisions[-1].ends)
        return [f"{rounds_text(self.rounds)} and {idle} idle rows with {self.energy_j:.6g} J and {self.delay_s:.6g} s; "
                f"forecast accuracy {100.0 * (1.0 - self.error):.2f} % ({self.ended})."]


def simulate_policy(world: ChangingWorld, policy: Policy, name: str = "") -> SimulatedPolicy:
    """Let a policy decide row after row until it ends the run, all rounds are done, or a round would exceed a budget.

    :param name: of the policy in error messages; by default that of its class.
    """
    problem = world.start.problem
    energy = delay = 0.0
    client_j = np.zeros(problem.size)
    segments: list[Segment] = []
    rows: list[int] = []
    decisions: list[Decision] = []
    ended = "all rounds are done"
    losses, last_round = np.full(problem.size, np.nan), np.full(problem.size, -1.0)
    number = 0
    while len(segments) < problem.rounds:
        left = problem.energy_j - energy, problem.delay_s - delay
        view = world.view(number, left, tuple(segments), losses=losses.copy(), last_round=last_round.copy(),
                          client_j=client_j)
        asked = asked_clients(policy, view, name)
        if asked is not None:
            view = replace(view, losses=np.where(asked, _UNKNOWN_LOSS, losses))
        decision = replace(decided(policy, view, world.start, name), probed=asked)
        decisions.append(decision)
        if decision.ends:
            ended = decision.reason or "the policy ended it"
            break
        if decision.segment is None:
            spent_j, spent_s, spent_by_client = 0.0, world.start.step_s, np.zeros(problem.size)
        else:
            present = PresentRound.of(world.start, view)
            assert present is not None
            cost = present.cost(decision.segment)
            spent_j, spent_s = float(cost.energy_j), float(cost.delay_s)
            spent_by_client = present.spread(cost.client_j)
        if asked is not None:
            probe = probe_cost(view.fleet, asked)
            spent_j, spent_s = spent_j + float(probe.energy_j), spent_s + float(probe.delay_s)
            spent_by_client = spent_by_client + probe.client_j
        over = [name for name, total, budget in (("energy", energy + spent_j, problem.energy_j),
                                                 ("delay", delay + spent_s, problem.delay_s))
                if total > budget * (1.0 + BUDGET_KEPT)]
        if np.any(spent_by_client > view.battery_j * (1.0 + BUDGET_KEPT)):
            over.append("battery")
        if over:
            ended = f"the {over[0]} budget is spent"
            break
        energy, delay, client_j = energy + spent_j, delay + spent_s, client_j + spent_by_client
        if decision.segment is not None:
            segments.append(decision.segment)
            losses[decision.segment.selected], last_round[decision.segment.selected] = _UNKNOWN_LOSS, len(rows)
            rows.append(number)
        number += 1
    return SimulatedPolicy(tuple(rows), tuple(segments), tuple(decisions), energy, delay, client_j,
                           reached_error(world, rows, segments), ended)


def reached_error(world: ChangingWorld, rows: list[int], segments: list[Segment]) -> float:
    """Return the forecast error of these rounds: the labels drawn in each row, judged by the last target; 1 if none."""
    if not segments:
        return 1.0
    problem, done, last = world.start.problem, DoneRounds(), world.last_target
    for number, segment in zip(rows, segments, strict=True):
        present = world.present(number, (problem.energy_j, problem.delay_s), first=False)
        assert present is not None
        labels, divergence = present.drawn(segment.selected, len(segments))
        if world.labels_at is not None and last is not None:
            divergence = float(label_divergence(labels, smoothed(last)))
        done = done.with_round(segment, divergence)
    return min(1.0, done.error(forecast(problem.with_rounds(len(segments))).fixed))
