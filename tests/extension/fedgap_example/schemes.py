"""Schemes: which decisions the planner may make."""

from fedgap import Scheme

LOUD = Scheme(name="loud", title="Full power, no pruning", power=False, prune=False)
"""Every selected client transmits at full power and prunes nothing. Who takes part and at which clock stays open."""

LOUD_AND_NEAR = Scheme(name="loud_and_near", title="Full power, nearest third", power=False, selection="nearest_third")
"""The nearest third takes part in every round, at full power."""
