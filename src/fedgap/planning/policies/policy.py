"""The interface of policies. A policy decides one round at a time, from what is known before that round.

A policy is an object with one method, :meth:`Policy.decide`. Whatever changes while it runs must be in its ``state`` as
plain values. Checkpoints contain the state, so that a run that was killed and resumed decides as it would have.
"""

from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, Protocol

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning.objectives.forecast_tangent import forecast
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.planning.round_order import interleave
from fedgap.planning.schemes import Scheme
from fedgap.planning.task import Task
from fedgap.registry import POLICIES, call_extension
from fedgap.system import Fleet
from fedgap.theory.fitted_forecast import FittedForecast


@dataclass(frozen=True, eq=False)
class PolicyStart:
    """What a policy knows before the first round.

    >>> from fedgap.planning.policies.policy import PolicyStart
    >>> from fedgap.planning.solve import scheme_of
    >>> scenario = fedgap.Scenario.load("paper-mnist")
    >>> plan = fedgap.plan(scenario)
    >>> start = PolicyStart.of(scenario, plan, scheme_of("proposed"))
    >>> len(start.order) == plan.rounds
    True
    """

    problem: Problem
    """The problem with the nominal fleet and the whole budgets."""
    scheme: Scheme
    plan: Plan
    """The plan for the nominal fleet. A policy cannot change its local steps and upload bits."""
    order: tuple[int, ...]
    """For each round of the plan, the index of its segment."""
    seed: int
    """Seed of the run, for policies that draw random numbers."""
    step_s: float = 1.0
    """Seconds that a round takes in which nobody trains."""
    selected: Bools | None = None
    """The clients that take part in every round, (N,), if the scheme fixes them; otherwise None."""

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan, scheme: Scheme, seed: int = 0, order: str = "even") -> "PolicyStart":
        """Make it from a scenario, its plan, and the scheme that made the plan.

        :param order: of the plan's segments, see :func:`fedgap.planning.round_order.interleave`.
        """
        problem = Problem.of(scenario).with_learner(plan.local_steps, plan.upload_bits)
        return cls(
            problem=problem, scheme=scheme, plan=plan, seed=seed,
            order=tuple(interleave([segment.rounds for segment in plan.segments],
                                   first=0 if problem.dense_first else None, order=order).tolist()),
            step_s=1.0 if scenario.world is None else scenario.world.step_s,
            selected=Task.of(problem, scheme).selected,
        )

    @cached_property
    def fitted(self) -> FittedForecast:
        """The forecast of the scenario, or the built-in one."""
        return forecast(self.problem).fitted

    def affords_a_round(self, energy_j: float, delay_s: float) -> bool:
        """Return whether some round of the plan, with the nominal fleet, fits into what is left of the budgets.

        If so, it may help to wait for better channels.
        """
        costs = [self.problem.cost(segment) for segment in self.plan.segments]
        return any(cost.energy_j <= energy_j and cost.delay_s <= delay_s for cost in costs)


@dataclass(frozen=True, eq=False)
class RoundView:
    """What is known before a round.

    >>> class Cautious:
    ...     state = {}
    ...     def decide(self, view):
    ...         return Decision(None, ends=view.energy_j < 1.0 or not view.available.any())
    """

    number: int
    """The row of the world, counted from 0; it also counts rounds in which nobody trained."""
    fleet: Fleet
    """The clients with their present channels and clocks."""
    available: Bools
    """The clients that can take part, (N,)."""
    energy_j: float
    """Joules that are left of the energy budget."""
    delay_s: float
    """Seconds that are left of the delay budget."""
    battery_j: Floats
    """Joules that are left in each client's battery, (N,); infinite without one."""
    label_counts: Floats | None
    """The clients' present label histograms, (N, classes); None if they are not known."""
    target_counts: Floats | None
    """The target's present label histogram, (classes,); None if it is not known."""
    done: tuple[Segment, ...]
    """The rounds trained so far, in order; each is a segment with one round."""
    losses: Floats
    """Each client's training loss when it last took part or was asked, (N,); NaN if it never did."""
    last_round: Floats
    """The round in which each client last took part, (N,); −1 if it never did."""
    validation_accuracy: float | None = None
    """The latest validation accuracy; None without validation samples or evaluations."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a policy decides for the next round.

    >>> from fedgap.planning.policies.policy import Decision
    >>> Decision(None, ends=True, reason="the battery of client 3 is empty").ends
    True
    """

    segment: Segment | None
    """The round, as a segment with one round; None if nobody trains and time passes until the next round."""
    ends: bool = False
    """Whether training ends before this round."""
    reason: str = ""
    """Why the policy deviates from the plan or ends, as one sentence for the ledger and the studio; may be empty."""
    forecast_error: float | None = None
    """The error that is now expected at the end of training; None if the policy does not forecast it."""
    probed: Bools | None = None
    """Clients that were asked for their loss before the round, (N,). The caller of the policy fills this in."""
    notes: dict[str, float] = field(default_factory=dict)
    """Numbers that are shown with the round, such as virtual queues."""


class Policy(Protocol):
    """Decides the rounds of one run.

    A registered policy is a function or class that is called with a :class:`PolicyStart` and returns such an object.
    This one follows the plan and leaves out clients that are not available:

    >>> from dataclasses import replace
    >>> from fedgap.planning.policies.policy import Decision
    >>> class PlanWithoutAbsent:
    ...     def __init__(self, start):
    ...         self.start, self.state = start, {}
    ...     def decide(self, view):
    ...         if view.number >= len(self.start.order):
    ...             return Decision(None, ends=True)
    ...         planned = self.start.plan.segments[self.start.order[view.number]]
    ...         here = planned.selected & view.available
    ...         return Decision(replace(planned, rounds=1, selected=here) if here.any() else None)
    """

    state: dict[str, Any]
    """Everything that changes from round to round, as plain JSON values."""

    def decide(self, view: RoundView) -> Decision:
        """Decide the next round."""


def asked_clients(policy: Policy, view: RoundView, name: str = "") -> Bools | None:
    """Return the clients whose present loss a policy wants to know before it decides, (N,); None for nobody.

    Such a policy has a method ``asks``, which is called with the view; most policies have none. The answers are in the
    ``losses`` of the view that ``decide`` gets. What asking costs is charged to the budgets.

    :param name: of the policy in error messages; by default that of its class.
    """
    if not hasattr(policy, "asks"):
        return None
    name = name or type(policy).__name__
    asked: Bools | None = call_extension("policy", name, policy.asks, view)
    if asked is None:
        return None
    if not isinstance(asked, np.ndarray) or asked.dtype != np.bool_ or asked.shape != view.available.shape:
        raise InputError(f"policy: {name}.asks must return None or an array of {view.available.size} truth values; got "
                         f"{asked!r:.60}")
    return asked if asked.any() else None


def decided(policy: Policy, view: RoundView, start: PolicyStart, name: str = "") -> Decision:
    """Let a policy decide the next round, and raise an :class:`InputError` for a round that cannot be trained.

    Budgets and batteries are not checked here.

    :param start: has the local steps and upload bits that the round must have;
    :param name: of the policy in error messages; by default that of its class.
    """
    name = name or type(policy).__name__
    decision = call_extension("policy", name, policy.decide, view)
    if not isinstance(decision, Decision):
        raise InputError(f"policy: {name} must return a Decision; got {decision!r:.60}")
    if wrong := _wrong_words(decision) or ("" if decision.segment is None else _wrong_round(decision, view, start)):
        raise InputError(f"policy: {name} {wrong}")
    return decision


def _wrong_words(decision: Decision) -> str:
    """Return what is wrong with the parts of a decision that are only recorded; "" if nothing is."""
    if not isinstance(decision.reason, str):
        return f"must give its reason as text; got {decision.reason!r:.60}"
    numbers = {} if decision.forecast_error is None else {"forecast_error": decision.forecast_error}
    for key, value in {**numbers, **decision.notes}.items():
        if not isinstance(value, Real):
            return f"must give {key} as a number; got {value!r:.60}"
    return ""


_ROUNDING = 1e-9
"""Relative excess at which a limit of a client still counts as kept."""


def _wrong_round(decision: Decision, view: RoundView, start: PolicyStart) -> str:
    """Return why a decided round cannot be trained; "" if it can."""
    segment, fleet = decision.segment, view.fleet

    def first(clients: Bools) -> str:
        n = int(np.flatnonzero(clients)[0])
        return start.problem.names[n] if start.problem.names else f"client {n}"

    if not isinstance(segment, Segment):
        return f"must decide a Segment or None; got {segment!r:.60}"
    arrays = {key: getattr(segment, key) for key in ("selected", "pruning_ratio", "power_w", "frequency_hz")}
    for key, values in arrays.items():
        if not isinstance(values, np.ndarray) or values.shape != view.available.shape:
            return f"must give {key} as an array with one entry for each of {view.available.size} clients"
    if segment.selected.dtype != np.bool_ or not segment.selected.any():
        return "must select at least one client, with an array of truth values; if nobody trains, the segment is None"
    if (away := segment.selected & ~view.available).any():
        return f"must select available clients only; it selects {first(away)}"
    limits = {"pruning_ratio": (np.zeros(fleet.size), fleet.max_ratio),
              "power_w": (fleet.min_power_w, fleet.max_power_w),
              "frequency_hz": (fleet.min_frequency_hz, fleet.max_frequency_hz)}
    for key, (least, most) in limits.items():
        values, room = arrays[key], _ROUNDING * most
        outside = segment.selected & ~((values >= least - room) & (values <= most + room))
        if outside.any():
            return f"must keep {key} of {first(outside)} from {least[outside][0]:g} to {most[outside][0]:g}; got " \
                   f"{values[outside][0]:g}"
    learner = (start.plan.local_steps, start.problem.upload_bits)
    if segment.rounds != 1:
        return f"must decide a segment with one round; got {segment.rounds}"
    if (segment.local_steps, segment.upload_bits or learner[1]) != learner:
        return "must keep the plan's local_steps and upload_bits"
    return ""


def make_policy(name: str, start: PolicyStart) -> Policy:
    """Return the policy with this name for one run."""
    factory = POLICIES.load(name, "policy")
    policy: Policy = call_extension("policy", name, factory, start)
    if not (hasattr(policy, "decide") and isinstance(getattr(policy, "state", None), dict)):
        raise InputError(f"policy: {name} must return an object with a method decide and a dictionary state; got "
                         f"{policy!r:.60}")
    return policy
