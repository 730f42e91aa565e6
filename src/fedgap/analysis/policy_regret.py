"""Compare policies in one changing world by how far each is from the best that perfect foresight could reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgap.config import Scenario
from fedgap.errors import InfeasibleError
from fedgap.planning import Plan, Scheme, plan
from fedgap.planning.clairvoyant import Clairvoyant, clairvoyant
from fedgap.planning.policies.policy import PolicyStart, make_policy
from fedgap.planning.policy_simulation import ChangingWorld, SimulatedPolicy, simulate_policy
from fedgap.planning.solve import scheme_of
from fedgap.registry import POLICIES, RULES
from fedgap.report.number_format import share
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class PolicyRegret(Printable):
    """What each policy reached in one world, and a lower bound on the error of all policies."""

    bound: Clairvoyant
    reached: dict[str, SimulatedPolicy]
    energy_budget_j: float
    delay_budget_s: float

    def __getitem__(self, policy: str) -> float:
        """Return the regret of a policy: its forecast error minus the bound, as a share of the bound."""
        return self.bound.regret(self.reached[policy])

    def parts(self) -> list[RenderableType]:
        """Return the table of the policies, and the certificate of the bound."""
        table = Sheet("Policies in one world, without training", "policy", "rounds", "energy", "delay",
                      "forecast accuracy", "regret",
                      caption="regret: forecast error above the certified bound, as a share of the bound")
        for name, reached in self.reached.items():
            table.add_row(name, f"{reached.rounds:,}", share(reached.energy_j, self.energy_budget_j),
                          share(reached.delay_s, self.delay_budget_s), f"{100.0 * (1.0 - reached.error):.2f} %",
                          f"{100.0 * self[name]:.2f} %")
        return [table, *self.bound.parts()]

    def to_dict(self) -> dict[str, Any]:
        """Return the bound and each policy's result as plain values."""
        return {"least_error": self.bound.least_error,
                "policies": {name: {"rounds": reached.rounds, "energy_j": reached.energy_j, "delay_s": reached.delay_s,
                                    "error": reached.error, "regret": self[name], "ended": reached.ended}
                             for name, reached in self.reached.items()}}


def regret(
    scenario: Scenario, policies: Iterable[str] | None = None, *, scheme: str | Scheme = "forecast", seed: int = 0,
    known_plan: Plan | None = None,
) -> PolicyRegret:
    """Let policies decide in the scenario's world, without training, and compare them with perfect foresight.

    >>> world = ["world.fading.doppler_hz=10", "fleet.count=6", "rounds=30"]
    >>> report = fedgap.regret(fedgap.Scenario.load("city", world), ["static", "random"])
    >>> sorted(report.to_dict()["policies"])
    ['random', 'static']

    ``print(report)`` shows what each policy reached, and a bound on what perfect foresight could reach.

    :param policies: names of policies; by default all registered ones except the published rules.
    :param seed: of the world and of random policies.
    :param known_plan: the plan of this scenario and scheme, if it was made before.
    """
    chosen = scheme_of(scheme)
    first = known_plan or plan(scenario, scheme=chosen)
    if not first.feasible:
        raise InfeasibleError(first.reason or "no plan fits the budgets")
    start = PolicyStart.of(scenario, first, chosen, seed)
    world = ChangingWorld.of(start, scenario.trace(seed))
    names = [name for name in POLICIES.names() if name not in RULES] if policies is None else list(policies)
    reached = {name: simulate_policy(world, make_policy(name, start), name) for name in names}
    return PolicyRegret(clairvoyant(world), reached, scenario.budget.energy_j, scenario.budget.delay_s)
