"""Problem P1, written once: the objective by terms, the named constraints, and the slack of any plan.

Every solver and scheme is scored here, by the literal formulas of ``fedgap.system`` and ``fedgap.theory``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedgap.arrays import Bools, Floats
from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning.plan import Plan, Segment
from fedgap.system import Fleet, RoundCost, broadcast_energy, round_cost
from fedgap.theory import BoundConstants, Terms, aggregate, pooled_statement, possible_statement, round_terms
from fedgap.theory.generalization import Aggregation, Reading

MOST_ROUNDS = 1_000_000
"""More rounds are a mistake: planning would need gigabytes, and a run writes one line per round."""


@dataclass(frozen=True, eq=False)
class Problem:
    """P1: min θ(a, λ) s.t. E ≤ E₀, T ≤ T₀, 0 ≤ λ ≤ λ^max, f^min ≤ f ≤ f^max, p^min ≤ p ≤ p^max, a binary.

    f^min = p^min = 0 in the paper. A client may also have a battery: its joules over all rounds are then at most B_n.
    """

    fleet: Fleet
    rounds: int
    """R = S + 1."""
    energy_j: float
    """E₀."""
    delay_s: float
    """T₀."""
    constants: BoundConstants
    phi: Floats
    """φ_n, shape (N,); for ``mixture`` only a guide to good selections."""
    aggregation: Aggregation
    label_counts: Floats | None = None
    target_counts: Floats | None = None
    reading: Reading = "size_normalised"
    dense_first: bool = False
    """Whether round 0 must be unpruned."""
    upload_bits: int = 32
    """Bits of an uploaded value, which the fleet's ``uplink_bits`` follow."""
    names: tuple[str, ...] = ()
    scenario: Scenario | None = None
    """The scenario of the problem; None if it was built by hand."""

    @classmethod
    def of(cls, scenario: Scenario) -> "Problem":
        """The problem of a scenario."""
        if not isinstance(scenario, Scenario):
            raise InputError(f"scenario: must be a Scenario; fedgap.Scenario.load({str(scenario)!r}) reads one")
        if scenario.rounds > MOST_ROUNDS:
            raise InputError(f"rounds: must be at most {MOST_ROUNDS:,}, because a run writes one line per round; "
                             f"got {scenario.rounds:,}")
        mixture = scenario.bound.aggregation == "mixture"
        counts, target = scenario.label_counts(), scenario.target_counts
        return cls(
            fleet=scenario.fleet(),
            rounds=scenario.rounds,
            energy_j=scenario.budget.energy_j,
            delay_s=scenario.budget.delay_s,
            constants=scenario.constants(),
            phi=_own_statements(scenario) if mixture else scenario.phi(),
            aggregation=scenario.bound.aggregation,
            label_counts=None if counts is None or target is None else counts.astype(np.float64),
            target_counts=None if counts is None or target is None else np.asarray(target, dtype=np.float64),
            reading=scenario.bound.statement,
            dense_first=scenario.pruning.dense_first,
            upload_bits=scenario.learning.usual_upload_bits,
            names=tuple(scenario.names),
            scenario=scenario,
        )

    def with_rounds(self, rounds: int) -> "Problem":
        """The same problem over another number of rounds; the constants' sums over rounds do not change."""
        old, scale = self.constants, self.rounds / rounds
        constants = BoundConstants(old.alpha * scale, old.beta * scale, old.gamma1 * scale, old.gamma2 * scale, rounds)
        return replace(self, rounds=rounds, constants=constants)

    def with_learner(self, local_steps: int, upload_bits: int | None) -> "Problem":
        """The same problem with other local steps and upload bits; None keeps the bits."""
        bits = upload_bits or self.upload_bits
        fleet = self.fleet if local_steps == self.local_steps else self.fleet.with_local_steps(local_steps)
        fleet = fleet if bits == self.upload_bits else fleet.with_upload_bits(bits)
        return replace(self, fleet=fleet, upload_bits=bits)

    def without_generalization(self) -> "Problem":
        """The same problem with γ₁ = 0."""
        return replace(self, constants=replace(self.constants, gamma1=0.0))

    @property
    def size(self) -> int:
        """N."""
        return self.fleet.size

    def statement(self, selected: Bools) -> Floats:
        """Φ of each selection, by the scenario's aggregation; shape (...)."""
        if self.aggregation == "mixture":
            assert self.label_counts is not None
            return self.pooled(selected.astype(np.float64) @ self.label_counts, selected.sum(axis=-1))
        return aggregate(self.phi, selected, self.aggregation)

    def pooled(self, histogram: Floats, count: npt.ArrayLike) -> Floats:
        """Φ by ``mixture`` of selections with these pooled labels (..., classes) and so many clients (...)."""
        assert self.target_counts is not None
        phi = possible_statement(histogram, self.target_counts, self.reading)
        return np.where(np.asarray(count) > 0, phi, np.inf)

    def selection_cost(self, selected: Bools) -> Floats:
        """R·(β + γ₁Φ²)/k of each selection: a round's cost before pruning, so that θ − α is a mean over rounds.

        It is infinite for a selection that has no clients or no value of Φ.
        """
        clients, gap, _ = round_terms(self.constants, selected, self.statement(selected), np.zeros(selected.shape))
        return np.asarray(self.rounds * (clients + gap))

    @property
    def pruning_weight(self) -> float:
        """R·γ₂: the cost of a round whose selected clients prune everything."""
        return self.rounds * self.constants.gamma2

    @property
    def local_steps(self) -> int:
        """τ: the mini-batch steps that every client takes in a round."""
        return int(self.fleet.local_steps.max())

    # --- the objective and the two totals -------------------------------------------------------------------------

    def objective(self, segments: Iterable[Segment]) -> Terms:
        """θ(a, λ) by terms, Theorem 1."""
        clients = gap = pruning = 0.0
        for segment in segments:
            phi = self.statement(segment.selected)
            parts = round_terms(self.constants, segment.selected, phi, segment.pruning_ratio)
            clients, gap, pruning = (
                total + segment.rounds * float(part) for total, part in zip((clients, gap, pruning), parts, strict=True)
            )
        return Terms(self.constants.alpha, clients, gap, pruning)

    def cost(self, segment: Segment) -> RoundCost:
        """One round of a segment with its local steps and upload bits, by client and cause."""
        fleet = self.with_learner(segment.local_steps, segment.upload_bits).fleet
        return round_cost(fleet, segment.selected, segment.pruning_ratio, segment.power_w, segment.frequency_hz)

    def energy(self, segments: Iterable[Segment]) -> float:
        """E: joules of all rounds."""
        return float(sum(segment.rounds * float(self.cost(segment).energy_j) for segment in segments))

    def client_energy(self, segments: Iterable[Segment]) -> Floats:
        """Joules of each client in all rounds, (N,)."""
        total = np.zeros(self.size)
        for segment in segments:
            total += segment.rounds * self.cost(segment).client_j
        return total

    def delay(self, segments: Iterable[Segment]) -> float:
        """T: seconds of all rounds, each as long as its slowest selected client."""
        return float(sum(segment.rounds * float(self.cost(segment).delay_s) for segment in segments))

    @property
    def broadcast_j(self) -> float:
        """Joules of the broadcast in every round; they do not depend on the selection."""
        return float(broadcast_energy(self.fleet))

    # --- the constraints by name; a slack ≥ 0 means that it is kept; slacks are relative to the limit
    # ------------------

    def energy_budget(self, segments: Sequence[Segment]) -> float:
        """(E₀ − E)/E₀ ≥ 0, (P1-a)."""
        return (self.energy_j - self.energy(segments)) / self.energy_j

    def delay_budget(self, segments: Sequence[Segment]) -> float:
        """(T₀ − T)/T₀ ≥ 0, (P1-b)."""
        return (self.delay_s - self.delay(segments)) / self.delay_s

    def battery_range(self, segments: Sequence[Segment]) -> float:
        """min over clients with a battery of (B_n − E_n)/B_n, with E_n the client's joules in all rounds; else 0."""
        battery = self.fleet.battery_j
        if np.isinf(battery).all():
            return 0.0
        return float((1.0 - self.client_energy(segments) / battery).min())

    def pruning_range(self, segments: Sequence[Segment]) -> float:
        """min over selected clients of λ and λ^max − λ, (P1-c)."""
        return min(_room(s.pruning_ratio, s.selected, self.fleet.max_ratio) for s in segments)

    def frequency_range(self, segments: Sequence[Segment]) -> float:
        """min over selected clients of (f − f^min)/f^max and 1 − f/f^max, (P1-d)."""
        most, least = self.fleet.max_frequency_hz, self.fleet.min_frequency_hz
        return min(_room(s.frequency_hz / most, s.selected, least=least / most) for s in segments)

    def power_range(self, segments: Sequence[Segment]) -> float:
        """min over selected clients of (p − p^min)/p^max and 1 − p/p^max, (P1-e)."""
        most, least = self.fleet.max_power_w, self.fleet.min_power_w
        return min(_room(s.power_w / most, s.selected, least=least / most) for s in segments)

    def somebody_selected(self, segments: Sequence[Segment]) -> float:
        """Σ_n a_n − 1 ≥ 0 in every round; (P1-f) makes a binary, θ = ∞ makes it non-zero."""
        return float(min(int(s.selected.sum()) for s in segments) - 1)

    def all_rounds(self, segments: Sequence[Segment]) -> float:
        """0 where the segments' rounds add up to R, otherwise minus the difference."""
        return -float(abs(sum(s.rounds for s in segments) - self.rounds))

    def first_round_dense(self, segments: Sequence[Segment]) -> float:
        """−max λ of the first segment where round 0 must be unpruned, else 0."""
        first = segments[0]
        return -float(np.where(first.selected, first.pruning_ratio, 0.0).max()) if self.dense_first else 0.0

    def slacks(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Every constraint's slack by name."""
        ranges = self.pruning_range, self.frequency_range, self.power_range, self.battery_range
        counts = self.somebody_selected, self.all_rounds, self.first_round_dense
        return {check.__name__: check(segments) for check in (self.energy_budget, self.delay_budget, *ranges, *counts)}

    def refuse(self, plan: Plan) -> None:
        """Reject a plan outside P1's variable ranges, with too many rounds or with another learner.

        Budgets are not checked here.
        """
        for name, check in (("pruning_ratio", self.pruning_range), ("frequency_hz", self.frequency_range),
                            ("power_w", self.power_range)):
            for position, segment in enumerate(plan.segments):
                if check([segment]) < -1e-9:
                    raise InputError(f"plan: segments[{position}] has a {name} beyond what the scenario allows")
        learning = None if self.scenario is None else self.scenario.learning
        for key, allowed in (("local_steps", self.local_steps), ("upload_bits", self.upload_bits)):
            if learning is not None and getattr(learning, key) == "auto":
                continue
            for position, segment in enumerate(plan.segments):
                if getattr(segment, key) not in (allowed, None):
                    raise InputError(f"plan: segments[{position}] has {key} {getattr(segment, key)}, but the "
                                     f"scenario has {allowed}; plan again, or change learning.{key}")
        if len({(segment.local_steps, segment.upload_bits) for segment in plan.segments}) > 1:
            raise InputError("plan: all segments must have the same local_steps and the same upload_bits")
        if plan.rounds > self.rounds:
            raise InputError(f"plan: has {plan.rounds} rounds, the scenario {self.rounds}")

    def violation(self, segments: Sequence[Segment]) -> float:
        """How far the worst constraint is broken, relative to its limit; 0 for a feasible plan."""
        return max(0.0, -min(self.slacks(segments).values()))


def _room(values: Floats, selected: Bools, most: Floats | float = 1.0, least: Floats | float = 0.0) -> float:
    """The least distance of the selected clients' values from the ends of [least, most]."""
    return float(np.where(selected, np.minimum(values - least, most - values), np.inf).min())


def _own_statements(scenario: Scenario) -> Floats:
    """φ_n, or twice the largest φ for clients without one: ``mixture`` does not need the φ of single clients."""
    try:
        return scenario.phi()
    except InputError:
        counts, target = scenario.label_counts(), scenario.target_counts
        assert counts is not None
        assert target is not None
        alone = pooled_statement(
            counts.astype(np.float64), np.asarray(target, dtype=np.float64), np.eye(len(counts), dtype=np.bool_)
        )
        finite = np.isfinite(alone)
        return np.where(finite, alone, 2.0 * alone[finite].max(initial=1.0))
