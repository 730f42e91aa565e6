"""What to do: problem P1, its solvers and the schemes. ``plan(scenario)`` answers with a :class:`Plan`."""

from fedgap.planning.plan import Plan, Segment
from fedgap.planning.schemes import SCHEMES, Scheme
from fedgap.planning.solve import SOLVERS, compare, frontier, plan

__all__ = ["SCHEMES", "SOLVERS", "Plan", "Scheme", "Segment", "compare", "frontier", "plan"]
