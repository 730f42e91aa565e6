"""Problem P1: the objective by terms, the named constraints, and the slack of each constraint for any plan.

The plans of all solvers and schemes are scored here, by the formulas of ``fedgap.system`` and ``fedgap.theory``.
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
"""A scenario with more rounds is rejected: planning would need gigabytes, and a run writes one line per round."""


@dataclass(frozen=True, eq=False)
class Problem:
    """P1: min θ(a, λ) s.t. E ≤ E₀, T ≤ T₀, 0 ≤ λ ≤ λ^max, f^min ≤ f ≤ f^max, p^min ≤ p ≤ p^max, a binary.

    f^min = p^min = 0 in the paper. A client may also have a battery: its joules over all rounds are then at most B_n.
    """

    fleet: Fleet
    rounds: int
    """R = S + 1, the number of rounds."""
    energy_j: float
    """E₀, the energy budget in J."""
    delay_s: float
    """T₀, the delay budget in s."""
    constants: BoundConstants
    phi: Floats
    """φ_n, shape (N,). With the aggregation ``mixture`` it only tells the search where good selections may be."""
    aggregation: Aggregation
    label_counts: Floats | None = None
    """Training samples of each client and class, (N, classes); None if they are not known."""
    target_counts: Floats | None = None
    """Samples of each class in the target set, (classes,); None if they are not known."""
    reading: Reading = "size_normalised"
    dense_first: bool = False
    """Whether round 0 must be unpruned."""
    upload_bits: int = 32
    """Bits per uploaded value, from which ``fleet.uplink_bits`` was computed."""
    names: tuple[str, ...] = ()
    """The clients' names; empty if there are none."""
    scenario: Scenario | None = None
    """The scenario of the problem; None if the problem was made without one."""

    @classmethod
    def of(cls, scenario: Scenario) -> "Problem":
        """Make the problem of a scenario."""
        if not isinstance(scenario, Scenario):
            raise InputError(f"scenario: must be a fedgap.Scenario; to read a file or preset, use "
                             f"fedgap.Scenario.load({str(scenario)!r})")
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
        """Return the same problem with another number of rounds.

        α, β, γ₁ and γ₂ are all proportional to 1/R and are scaled accordingly.
        """
        old, scale = self.constants, self.rounds / rounds
        constants = BoundConstants(old.alpha * scale, old.beta * scale, old.gamma1 * scale, old.gamma2 * scale, rounds)
        return replace(self, rounds=rounds, constants=constants)

    def with_learner(self, local_steps: int, upload_bits: int | None) -> "Problem":
        """Return the same problem with other local steps and upload bits; None keeps the bits."""
        bits = upload_bits or self.upload_bits
        fleet = self.fleet if local_steps == self.local_steps else self.fleet.with_local_steps(local_steps)
        fleet = fleet if bits == self.upload_bits else fleet.with_upload_bits(bits)
        return replace(self, fleet=fleet, upload_bits=bits)

    def without_generalization(self) -> "Problem":
        """Return the same problem with γ₁ = 0."""
        return replace(self, constants=replace(self.constants, gamma1=0.0))

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return self.fleet.size

    def statement(self, selected: Bools) -> Floats:
        """Return Φ of each selection (..., N) by the scenario's aggregation, shape (...)."""
        if self.aggregation == "mixture":
            assert self.label_counts is not None
            return self.pooled(selected.astype(np.float64) @ self.label_counts, selected.sum(axis=-1))
        return aggregate(self.phi, selected, self.aggregation)

    def pooled(self, histogram: Floats, count: npt.ArrayLike) -> Floats:
        """Return Φ by the aggregation ``mixture``, shape (...).

        :param histogram: summed label histograms of each selection, (..., classes);
        :param count: number of clients in each selection, (...); Φ is ∞ for 0.
        """
        assert self.target_counts is not None
        phi = possible_statement(histogram, self.target_counts, self.reading)
        return np.where(np.asarray(count) > 0, phi, np.inf)

    def selection_cost(self, selected: Bools) -> Floats:
        """Return R·(β + γ₁Φ²)/k of each selection (..., N): the cost of a round without pruning, shape (...).

        θ − α is the mean over rounds of this cost and of that of pruning. The cost is infinite for a selection without
        clients or without a value of Φ.
        """
        clients, gap, _ = round_terms(self.constants, selected, self.statement(selected), np.zeros(selected.shape))
        return np.asarray(self.rounds * (clients + gap))

    @property
    def pruning_weight(self) -> float:
        """R·γ₂: the cost of pruning in a round with mean pruning ratio 1."""
        return self.rounds * self.constants.gamma2

    @property
    def local_steps(self) -> int:
        """τ: the mini-batch steps that every client takes in a round."""
        return int(self.fleet.local_steps.max())

    # --- the objective and the two totals -------------------------------------------------------------------------

    def objective(self, segments: Iterable[Segment]) -> Terms:
        """Return θ(a, λ) of Theorem 1 by terms, for a plan with these segments."""
        clients = gap = pruning = 0.0
        for segment in segments:
            phi = self.statement(segment.selected)
            parts = round_terms(self.constants, segment.selected, phi, segment.pruning_ratio)
            clients, gap, pruning = (
                total + segment.rounds * float(part) for total, part in zip((clients, gap, pruning), parts, strict=True)
            )
        return Terms(self.constants.alpha, clients, gap, pruning)

    def cost(self, segment: Segment) -> RoundCost:
        """Return the cost of one round of a segment by client and cause, with the segment's local steps and bits."""
        fleet = self.with_learner(segment.local_steps, segment.upload_bits).fleet
        return round_cost(fleet, segment.selected, segment.pruning_ratio, segment.power_w, segment.frequency_hz)

    def energy(self, segments: Iterable[Segment]) -> float:
        """Return E, the joules of all rounds together."""
        return float(sum(segment.rounds * float(self.cost(segment).energy_j) for segment in segments))

    def client_energy(self, segments: Iterable[Segment]) -> Floats:
        """Return the joules of each client in all rounds together, (N,)."""
        total = np.zeros(self.size)
        for segment in segments:
            total += segment.rounds * self.cost(segment).client_j
        return total

    def delay(self, segments: Iterable[Segment]) -> float:
        """Return T, the seconds of all rounds together. A round lasts as long as its slowest selected client needs."""
        return float(sum(segment.rounds * float(self.cost(segment).delay_s) for segment in segments))

    @property
    def broadcast_j(self) -> float:
        """Joules of the broadcast in every round; they do not depend on the selection."""
        return float(broadcast_energy(self.fleet))

    # --- the constraints by name -------------------------------------------------------------------------------------
    # Each function returns the slack of a constraint, relative to its limit. At least 0 means that the plan keeps it.

    def energy_budget(self, segments: Sequence[Segment]) -> float:
        """Slack of the energy budget, (E₀ − E)/E₀ ≥ 0, (P1-a)."""
        return (self.energy_j - self.energy(segments)) / self.energy_j

    def delay_budget(self, segments: Sequence[Segment]) -> float:
        """Slack of the delay budget, (T₀ − T)/T₀ ≥ 0, (P1-b)."""
        return (self.delay_s - self.delay(segments)) / self.delay_s

    def battery_range(self, segments: Sequence[Segment]) -> float:
        """Slack of the batteries, min over clients with a battery of (B_n − E_n)/B_n; 0 if nobody has one.

        E_n are the client's joules in all rounds.
        """
        battery = self.fleet.battery_j
        if np.isinf(battery).all():
            return 0.0
        return float((1.0 - self.client_energy(segments) / battery).min())

    def pruning_range(self, segments: Sequence[Segment]) -> float:
        """Slack of 0 ≤ λ ≤ λ^max: the minimum of λ and λ^max − λ over selected clients, (P1-c)."""
        return min(_room(s.pruning_ratio, s.selected, self.fleet.max_ratio) for s in segments)

    def frequency_range(self, segments: Sequence[Segment]) -> float:
        """Slack of f^min ≤ f ≤ f^max: the minimum of (f − f^min)/f^max and 1 − f/f^max over selected clients,
        (P1-d)."""
        most, least = self.fleet.max_frequency_hz, self.fleet.min_frequency_hz
        return min(_room(s.frequency_hz / most, s.selected, least=least / most) for s in segments)

    def power_range(self, segments: Sequence[Segment]) -> float:
        """Slack of p^min ≤ p ≤ p^max: the minimum of (p − p^min)/p^max and 1 − p/p^max over selected clients,
        (P1-e)."""
        most, least = self.fleet.max_power_w, self.fleet.min_power_w
        return min(_room(s.power_w / most, s.selected, least=least / most) for s in segments)

    def somebody_selected(self, segments: Sequence[Segment]) -> float:
        """Slack of at least one client per round: the minimum of Σ_n a_n − 1 over the rounds.

        The paper's (P1-f) only makes a binary, but θ is infinite if nobody is selected.
        """
        return float(min(int(s.selected.sum()) for s in segments) - 1)

    def all_rounds(self, segments: Sequence[Segment]) -> float:
        """Slack of having R rounds: 0 if the segments' rounds add up to R, otherwise minus the difference."""
        return -float(abs(sum(s.rounds for s in segments) - self.rounds))

    def first_round_dense(self, segments: Sequence[Segment]) -> float:
        """Slack of an unpruned round 0: −max λ of the first segment; 0 if round 0 may be pruned."""
        first = segments[0]
        return -float(np.where(first.selected, first.pruning_ratio, 0.0).max()) if self.dense_first else 0.0

    def slacks(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Return the slack of every constraint by its name."""
        ranges = self.pruning_range, self.frequency_range, self.power_range, self.battery_range
        counts = self.somebody_selected, self.all_rounds, self.first_round_dense
        return {check.__name__: check(segments) for check in (self.energy_budget, self.delay_budget, *ranges, *counts)}

    def refuse(self, plan: Plan) -> None:
        """Raise an error if a plan is outside P1's variable ranges, has too many rounds, or has other local steps or
        bits.

        Budgets are not checked here.
        """
        for name, check in (("pruning_ratio", self.pruning_range), ("frequency_hz", self.frequency_range),
                            ("power_w", self.power_range)):
            for position, segment in enumerate(plan.segments):
                if check([segment]) < -1e-9:
                    raise InputError(f"plan: segments[{position}] has a {name} outside the range that the scenario "
                                     "allows; plan again for this scenario")
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
            raise InputError(f"plan: must have at most the scenario's {self.rounds} rounds; got {plan.rounds}")

    def violation(self, segments: Sequence[Segment]) -> float:
        """Return by how much the worst constraint is violated, relative to its limit; 0 for a feasible plan."""
        return max(0.0, -min(self.slacks(segments).values()))


def _room(values: Floats, selected: Bools, most: Floats | float = 1.0, least: Floats | float = 0.0) -> float:
    """Return the least distance of the selected clients' values from the ends of [least, most], negative outside."""
    return float(np.where(selected, np.minimum(values - least, most - values), np.inf).min())


def _own_statements(scenario: Scenario) -> Floats:
    """Return φ_n for the aggregation ``mixture``, with twice the largest φ for clients that have none.

    ``mixture`` needs φ only of summed histograms; those of single clients only guide the search.
    """
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
