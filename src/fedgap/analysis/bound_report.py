"""The bound θ in every reading of the paper, and the generalization statements φ of the clients.

A *reading* is a choice between the constants as printed or corrected, and between three ways to aggregate φ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.analysis.cost_report import MOST_CLIENTS
from fedgap.analysis.plan_check import check_plan
from fedgap.config import Bound, Scenario
from fedgap.errors import InputError
from fedgap.planning import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.report.bound_terms import TERMS, local_steps_note
from fedgap.report.number_format import alike, number, rounds, share
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.theory import Terms, divergence, smoothed, statement
from fedgap.theory.generalization import Reading

if TYPE_CHECKING:
    from rich.console import RenderableType


CONSTANTS = ("printed", "corrected")
AGGREGATIONS = ("sum", "mean", "mixture")
STATEMENTS: tuple[Reading, ...] = ("as_printed", "size_normalised")


def theorem_weight(bound: Bound) -> float:
    """γ₂·R = L²·B², the weight of pruning by Theorem 1."""
    return bound.smoothness**2 * bound.parameter_moment


@dataclass(frozen=True)
class BoundReading:
    """θ under one choice of constants and one aggregation of φ."""

    constants: str
    aggregation: str
    terms: Terms | None
    reason: str = ""
    """Why there is no θ; empty if there is one."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values. An infinite term becomes None, because JSON has no infinity."""
        head = {"constants": self.constants, "aggregation": self.aggregation}
        if self.terms is None:
            return head | {"reason": self.reason}
        values = {**asdict(self.terms), "theta": self.terms.theta}
        return head | {name: float(value) if np.isfinite(value) else None for name, value in values.items()}


@dataclass(frozen=True)
class ClientStatement:
    """φ of one client, as printed and size-normalised, and the numbers from which it is computed.

    These numbers are None if the client's labels are not known.
    """

    name: str
    given: float | None
    """φ as given in the scenario; None if it is computed from labels."""
    samples: int | None = None
    smoothed_zeros: int | None = None
    """Number of classes without a sample in the training or the target set; each counts as one sample (smoothing)."""
    divergence: float | None = None
    """KL(p̂‖p̃), in nats."""
    rarest: float | None = None
    """p′: the smoothed share of the client's rarest class."""
    as_printed: float | None = None
    size_normalised: float | None = None
    used: float | None = None
    """The φ that is used for planning."""


@dataclass(frozen=True, repr=False)
class BoundReport(Printable):
    """θ by terms with both constants and all three aggregations, and the statement φ of every client."""

    plan: str
    """The plan that is evaluated, in words."""
    rounds: int
    constants: str
    """The scenario's constants."""
    aggregation: str
    """The scenario's aggregation of φ."""
    readings: tuple[BoundReading, ...]
    statements: tuple[ClientStatement, ...]
    pruning_weight: float
    """γ₂·R as the scenario uses it."""
    theorem_weight: float
    """γ₂·R = L²·B² by Theorem 1."""
    secant: float | None
    """Measured γ₂·R, if there is one: an estimate, not a bound."""
    measured: bool
    """Whether the scenario uses the secant."""
    local_steps: int = 1
    """τ, the local steps of a client in a round. θ holds only for one step."""
    planned: bool = True
    """Whether the report is about a plan; otherwise it is about the starting point of Algorithm 1."""

    def reading(self, constants: str | None = None, aggregation: str | None = None) -> BoundReading:
        """Return one reading, by default the scenario's."""
        wanted = (constants or self.constants, aggregation or self.aggregation)
        return next(reading for reading in self.readings if (reading.constants, reading.aggregation) == wanted)

    def parts(self) -> list[RenderableType]:
        """Return the table of θ by terms, a sentence on the weight of pruning, and the table of φ."""
        return [self._readings_table(), *self._start_note(), *local_steps_note(self.local_steps),
                self._weight_sentence(), self._statements_table()]

    def _start_note(self) -> list[str]:
        """Return a list with a note on why θ differs from that of ``fedgap plan``; it is empty if a plan was given."""
        if self.planned:
            return []
        return ["This is the starting point of Algorithm 1. It is not a plan and may exceed the budgets, so a plan has "
                "another θ. For a plan: fedgap plan SCENARIO --out plan.json, then fedgap bound SCENARIO --plan "
                "plan.json."]

    def _readings_table(self) -> Sheet:
        table = Sheet(
            f"The bound θ for {self.plan}", "constants", "φ by", *(name for name, _ in TERMS.values()), "θ",
            "dominated by", left=("φ by", "dominated by"), caption="→ this scenario's reading",
        )
        for reading in self.readings:
            chosen = reading == self.reading()
            label, style = ("→ " if chosen else "  ") + reading.constants, "bold" if chosen else None
            if reading.terms is None:
                table.add_row(label, reading.aggregation, *["–"] * 5, "no value: " + reading.reason, style=style)
                continue
            values = asdict(reading.terms)
            largest = max(values, key=lambda name: values[name])
            table.add_row(
                label, reading.aggregation, *alike([*values.values(), reading.terms.theta]),
                f"{TERMS[largest][0]} {share(values[largest], reading.terms.theta)}", style=style,
            )
        return table

    def _weight_sentence(self) -> str:
        text = f"Pruning's weight γ₂·R is {self.pruning_weight:.4g}"
        if self.measured:
            return (f"{text}, a measured secant (an estimate, not a bound); the theorem's L²·B² is "
                    f"{self.theorem_weight:.4g}.")
        secant = "" if self.secant is None else f"; the measured secant is {self.secant:.4g}"
        return f"{text}, the theorem's L²·B²{secant}."

    def _statements_table(self) -> Sheet:
        shown = list(self.statements)
        if len(shown) > MOST_CLIENTS:  # list clients without φ, and then those with the largest φ
            shown = sorted(shown, key=lambda row: -np.inf if row.used is None else -row.used)[:MOST_CLIENTS]
        hidden = len(self.statements) - len(shown)
        table = Sheet(
            "Generalization statements", "client", "samples", "zeros", "KL, nats", "rarest\nclass p′", "φ as\nprinted",
            "φ size-\nnormalised", "φ given", "φ used",
            caption="zeros: classes without a sample, counted as one (add-one smoothing)"
            + (f"; {hidden} clients with smaller φ are not listed" if hidden else ""),
        )
        for row in shown:
            counts = ("–" if count is None else f"{count:,}" for count in (row.samples, row.smoothed_zeros))
            values = (row.divergence, row.rarest, row.as_printed, row.size_normalised, row.given, row.used)
            table.add_row(row.name, *counts, *map(number, values))
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return all readings and the clients' φ as plain values."""
        return {
            "rounds": self.rounds, "local_steps": self.local_steps,
            "reading": {"constants": self.constants, "aggregation": self.aggregation},
            "pruning_weight": {"used": self.pruning_weight, "theorem": self.theorem_weight, "secant": self.secant},
            "readings": [reading.to_dict() for reading in self.readings],
            "clients": [asdict(row) for row in self.statements],
        }


def bound(scenario: Scenario, plan: Plan | None = None) -> BoundReport:
    """Return the bound θ of a plan in every reading of the paper, and the φ of each client, as a printable report.

    >>> scenario = fedgap.Scenario.load("paper-mnist")
    >>> plan = fedgap.plan(scenario)
    >>> report = fedgap.bound(scenario, plan)
    >>> len(report.statements), abs(report.reading().terms.theta / plan.theta - 1) < 1e-9
    (10, True)

    :param plan: by default the starting point of Algorithm 1, in which all clients take part in every round and prune
        as much as allowed. It is not a plan, because it may exceed the budgets.
    """
    fleet = scenario.fleet()
    if plan is None:
        everybody = np.ones(scenario.size, dtype=np.bool_)
        segments: tuple[Segment, ...] = (
            Segment(scenario.rounds, everybody, fleet.max_ratio, fleet.max_power_w, fleet.max_frequency_hz,
                    local_steps=scenario.learning.usual_local_steps),
        )
        what = f"all clients in all {rounds(scenario.rounds)}, pruned as much as allowed"
    else:
        check_plan(scenario, plan, other_scenario=True)
        segments, what = plan.segments, f"the plan's {rounds(plan.rounds)}"
    used = scenario.bound
    return BoundReport(
        plan=what, rounds=sum(segment.rounds for segment in segments), constants=used.constants,
        aggregation=used.aggregation,
        readings=tuple(_reading(scenario, segments, constants, aggregation)
                       for aggregation in AGGREGATIONS for constants in CONSTANTS),
        statements=_statements(scenario), pruning_weight=used.pruning_weight, theorem_weight=theorem_weight(used),
        secant=used.pruning_sensitivity, measured=used.sensitivity == "secant",
        local_steps=max(segment.local_steps for segment in segments), planned=plan is not None,
    )


def _reading(
    scenario: Scenario, segments: tuple[Segment, ...], constants: str, aggregation: str
) -> BoundReading:
    try:
        changed = scenario.with_overrides([f"bound.constants={constants}", f"bound.aggregation={aggregation}"])
        problem = Problem.of(changed).with_rounds(sum(segment.rounds for segment in segments))
        return BoundReading(constants, aggregation, problem.objective(segments))
    except InputError as error:
        return BoundReading(constants, aggregation, None, str(error).partition(" (override")[0])


def _statements(scenario: Scenario) -> tuple[ClientStatement, ...]:
    rows = []
    for name, client in zip(scenario.names, scenario.clients, strict=True):
        known: dict[str, Any] = {}
        target = client.target_counts or scenario.target_counts
        if client.label_counts is not None and target is not None:
            train = smoothed(client.label_counts)
            known = {
                "samples": sum(client.label_counts),
                "smoothed_zeros": client.label_counts.count(0) + target.count(0),
                "divergence": float(divergence(train, smoothed(target))),
                "rarest": float(train.min()),
            }
            for reading in STATEMENTS:
                try:
                    known[reading] = float(statement([client.label_counts], [target], reading)[0])
                except InputError:
                    known[reading] = None  # Lemma 1 has no φ for these labels
        used = client.phi if client.phi is not None else known.get(scenario.bound.statement)
        rows.append(ClientStatement(name, client.phi, used=used, **known))
    return tuple(rows)
