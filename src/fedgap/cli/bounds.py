"""The bound θ in every reading, and the statements φ behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgap.cli.number_format import alike, number, rounds, share
from fedgap.cli.plan_tables import MOST_CLIENTS, TERMS
from fedgap.cli.uncut_table import Sheet
from fedgap.errors import InputError
from fedgap.planning import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.theory import divergence, smoothed, statement
from fedgap.theory.generalization import Reading

if TYPE_CHECKING:
    from fedgap.config import Scenario
    from fedgap.theory import Terms

CONSTANTS = ("printed", "corrected")
AGGREGATIONS = ("sum", "mean", "mixture")
STATEMENTS: tuple[Reading, ...] = ("as_printed", "size_normalised")


@dataclass(frozen=True, eq=False)
class Readings:
    """θ by terms under both constants and all three aggregations, for one plan."""

    scenario: Scenario
    rounds: int
    what: str
    """The plan that is evaluated, in words."""
    terms: dict[tuple[str, str], Terms | str]
    """(constants, aggregation) → θ by terms, or why there is none."""

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan | None) -> Readings:
        """Evaluate a plan, or without one: everybody in every round, pruned to the most (Algorithm 1's start)."""
        fleet = scenario.fleet()
        if plan is None:
            everybody = np.ones(scenario.size, dtype=np.bool_)
            segments: tuple[Segment, ...] = (
                Segment(scenario.rounds, everybody, fleet.max_ratio, fleet.max_power_w, fleet.max_frequency_hz),
            )
            what = f"everybody in all {rounds(scenario.rounds)}, pruned to the most"
        else:
            segments, what = plan.segments, f"the plan's {rounds(plan.rounds)}"
        count = sum(segment.rounds for segment in segments)
        found: dict[tuple[str, str], Terms | str] = {}
        for aggregation in AGGREGATIONS:
            for constants in CONSTANTS:
                try:
                    read = scenario.with_overrides([f"bound.constants={constants}", f"bound.aggregation={aggregation}"])
                    found[constants, aggregation] = Problem.of(read).with_rounds(count).objective(segments)
                except InputError as error:
                    found[constants, aggregation] = str(error).partition(" (override")[0]
        return cls(scenario, count, what, found)

    @property
    def own(self) -> tuple[str, str]:
        """The scenario's reading."""
        return self.scenario.bound.constants, self.scenario.bound.aggregation

    def table(self) -> Sheet:
        """A row a reading; the scenario's own is marked."""
        made = Sheet(
            f"The bound θ for {self.what}", "constants", "φ by", *(name for name, _ in TERMS.values()), "θ",
            "dominated by", left=("φ by", "dominated by"), caption="→ this scenario's reading",
        )
        for key, terms in self.terms.items():
            label = ("→ " if key == self.own else "  ") + key[0]
            style = "bold" if key == self.own else None
            if isinstance(terms, str):
                made.add_row(label, key[1], *["–"] * 5, "no value: " + terms, style=style)
                continue
            values = {name: getattr(terms, name) for name in TERMS}
            largest = max(values, key=lambda name: values[name])
            made.add_row(
                label, key[1], *alike([*values.values(), terms.theta]),
                f"{TERMS[largest][0]} {share(values[largest], terms.theta)}", style=style,
            )
        return made

    def sentence(self) -> str:
        """Where the pruning term's weight comes from, and what the theorem alone would say."""
        bound = self.scenario.bound
        theorem = bound.smoothness**2 * bound.parameter_moment
        text = f"Pruning's weight γ₂·R is {bound.pruning_weight:.4g}"
        if bound.sensitivity == "secant":
            text += f", a measured secant (an estimate, not a bound); the theorem's L²·B² is {theorem:.4g}."
        else:
            measured = bound.pruning_sensitivity
            secant = "" if measured is None else f"; the measured secant is {measured:.4g}"
            text += f", the theorem's L²·B²{secant}."
        return text

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "rounds": self.rounds,
            "reading": {"constants": self.own[0], "aggregation": self.own[1]},
            "pruning_weight": {
                "used": self.scenario.bound.pruning_weight,
                "theorem": self.scenario.bound.smoothness**2 * self.scenario.bound.parameter_moment,
                "secant": self.scenario.bound.pruning_sensitivity,
            },
            "readings": [
                {"constants": constants, "aggregation": aggregation}
                | ({"reason": terms} if isinstance(terms, str) else _finite(terms))
                for (constants, aggregation), terms in self.terms.items()
            ],
        }


def _finite(terms: Terms) -> dict[str, Any]:
    values = {**{name: getattr(terms, name) for name in TERMS}, "theta": terms.theta}
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}


@dataclass(frozen=True)
class Statements:
    """φ of every client in both readings, with what it is made of."""

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, scenario: Scenario) -> Statements:
        """From the clients' label histograms, where they have them."""
        rows = []
        for name, client in zip(scenario.names, scenario.clients, strict=True):
            row: dict[str, Any] = {"name": name, "given": client.phi, "samples": None, "smoothed_zeros": None,
                                   "divergence": None, "rarest": None, **dict.fromkeys(STATEMENTS)}
            target = client.target_counts or scenario.target_counts
            if client.label_counts is not None and target is not None:
                train = smoothed(client.label_counts)
                row |= {
                    "samples": sum(client.label_counts),
                    "smoothed_zeros": client.label_counts.count(0) + target.count(0),
                    "divergence": float(divergence(train, smoothed(target))),
                    "rarest": float(train.min()),
                }
                for reading in STATEMENTS:
                    try:
                        row[reading] = float(statement([client.label_counts], [target], reading)[0])
                    except InputError:
                        row[reading] = None  # the singularity of Lemma 1
            row["used"] = client.phi if client.phi is not None else row[scenario.bound.statement]
            rows.append(row)
        return cls(tuple(rows))

    def table(self) -> Sheet:
        """A row a client; of a large fleet those with the largest φ."""
        shown = list(self.rows)
        if len(shown) > MOST_CLIENTS:
            shown = sorted(shown, key=lambda row: -np.inf if row["used"] is None else -row["used"])[:MOST_CLIENTS]
        made = Sheet(
            "Generalization statements", "client", "samples", "zeros", "KL, nats", "rarest\nclass p′", "φ as\nprinted",
            "φ size-\nnormalised", "φ given", "φ used",
            caption="zeros: classes without a sample, counted as one (add-one smoothing)"
            + (f"; {len(self.rows) - len(shown)} clients with smaller φ are not listed" if len(shown) < len(self.rows)
               else ""),
        )
        for row in shown:
            made.add_row(
                row["name"], *("–" if row[key] is None else f"{row[key]:,}" for key in ("samples", "smoothed_zeros")),
                *(number(row[key]) for key in ("divergence", "rarest", *STATEMENTS, "given", "used")),
            )
        return made

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {"clients": list(self.rows)}
