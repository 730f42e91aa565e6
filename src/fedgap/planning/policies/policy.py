"""A policy decides one round at a time from what is known before it.

A policy is a small object with one method, :meth:`Policy.decide`. Everything that changes while it runs must be in its
``state``, plain numbers that a checkpoint holds, so that a run that was killed decides as it would have.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from fedgap.arrays import Bools, Floats
from fedgap.config import Scenario
from fedgap.errors import InputError
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.problem import Problem
from fedgap.planning.round_order import interleave
from fedgap.planning.schemes import Scheme
from fedgap.planning.task import Task
from fedgap.registry import POLICIES, call_extension
from fedgap.system import Fleet


@dataclass(frozen=True, eq=False)
class PolicyStart:
    """What a policy is made of before the first round.

    >>> from fedgap.planning.policies.policy import PolicyStart
    >>> from fedgap.planning.solve import scheme_of
    >>> scenario = fedgap.Scenario.load("paper-mnist")
    >>> plan = fedgap.plan(scenario)
    >>> start = PolicyStart.of(scenario, plan, scheme_of("proposed"))
    >>> len(start.order) == plan.rounds
    True
    """

    problem: Problem
    """With the nominal fleet and the whole budgets."""
    scheme: Scheme
    plan: Plan
    """The plan for the nominal fleet: it decides local steps and upload bits for good."""
    order: tuple[int, ...]
    """The plan's segment of each round."""
    seed: int
    """Of the run, for policies that draw."""
    step_s: float = 1.0
    """Seconds that an idle round takes."""
    selected: Bools | None = None
    """Who takes part in every round, (N,), where the scheme fixes that."""

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan, scheme: Scheme, seed: int = 0, order: str = "even") -> "PolicyStart":
        """What a scenario, its plan and the scheme that made it give; ``order``: of the plan's segments."""
        problem = Problem.of(scenario).with_learner(plan.local_steps, plan.upload_bits)
        return cls(
            problem=problem, scheme=scheme, plan=plan, seed=seed,
            order=tuple(interleave([segment.rounds for segment in plan.segments],
                                   first=0 if problem.dense_first else None, order=order).tolist()),
            step_s=1.0 if scenario.world is None else scenario.world.step_s,
            selected=Task.of(problem, scheme).selected,
        )

    def affords_a_round(self, energy_j: float, delay_s: float) -> bool:
        """Whether the plan's cheapest round fits into what is left with the nominal fleet: waiting may help then."""
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
    """Rounds done so far."""
    fleet: Fleet
    """The clients with their present channels and clocks."""
    available: Bools
    """Who can take part, (N,)."""
    energy_j: float
    """What is left of the energy budget."""
    delay_s: float
    """What is left of the time."""
    battery_j: Floats
    """What is left in each client's battery, (N,); infinite without one."""
    label_counts: Floats | None
    """The clients' present label histograms, (N, classes)."""
    target_counts: Floats | None
    """The present target's, (classes,)."""
    done: tuple[Segment, ...]
    """The rounds so far, in order, each as a segment of one round."""
    losses: Floats
    """Each client's training loss when it last took part or was asked; NaN before, (N,)."""
    last_round: Floats
    """When each client last took part; −1 before, (N,)."""
    validation_accuracy: float | None = None
    """The latest one, where there are validation samples."""


@dataclass(frozen=True, eq=False)
class Decision:
    """The next round.

    >>> from fedgap.planning.policies.policy import Decision
    >>> Decision(None, ends=True, reason="the battery of client 3 is empty").ends
    True
    """

    segment: Segment | None
    """Of one round; None where nobody takes part, so that the world moves on without training."""
    ends: bool = False
    """Whether the training ends here, with this round left out."""
    reason: str = ""
    """Why the plan changed, where it did: one sentence for ledger and studio."""
    forecast_error: float | None = None
    """The error that is now expected at the end, where the policy knows."""
    probed: Bools | None = None
    """Clients that were asked for their loss before the round, (N,); whoever asked them fills this in."""
    notes: dict[str, float] = field(default_factory=dict)
    """Numbers worth showing beside the round, such as virtual queues."""


class Policy(Protocol):
    """Decides the rounds of one run.

    A policy is made by a call with a :class:`PolicyStart`. This one follows the plan and leaves out who is away:

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
    """All that changes from round to round, as plain values (JSON)."""

    def decide(self, view: RoundView) -> Decision:
        """The next round."""


def asked_clients(policy: Policy, view: RoundView) -> Bools | None:
    """The clients that a policy wants to know the present loss of before it decides, (N,); None for nobody.

    A policy says so by a method ``asks``, which takes the view as ``decide`` does; most have none. The answers are in
    the ``losses`` of the view that ``decide`` then gets, and question and answer are charged.
    """
    asked: Bools | None = getattr(policy, "asks", lambda view: None)(view)
    return None if asked is None or not asked.any() else asked


def make_policy(name: str, start: PolicyStart) -> Policy:
    """The policy of this name for one run."""
    factory = POLICIES.load(name, "policy")
    policy: Policy = call_extension("policy", name, factory, start)
    if not (hasattr(policy, "decide") and isinstance(getattr(policy, "state", None), dict)):
        raise InputError(f"policy: {name} must give an object with the method decide and a dictionary state; got "
                         f"{policy!r:.60}")
    return policy
