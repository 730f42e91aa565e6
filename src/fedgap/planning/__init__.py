"""What to do: problem P1, its solvers and the schemes. ``plan(scenario)`` answers with a :class:`Plan`."""

from fedgap.planning.plan import Plan, Segment
from fedgap.planning.schemes import PAPER_SCHEMES, SCHEMES, Scheme
from fedgap.planning.solve import SOLVERS, plan

__all__ = ["PAPER_SCHEMES", "SCHEMES", "SOLVERS", "Plan", "Scheme", "Segment", "plan"]
