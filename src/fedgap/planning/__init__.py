"""Planning: problem P1, its solvers and the schemes. ``plan(scenario)`` returns a :class:`Plan`."""

from fedgap.planning.objective import Objective
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.rescore import rescore
from fedgap.planning.schemes import PAPER_SCHEMES, Scheme
from fedgap.planning.settings import SOLVERS
from fedgap.planning.solve import plan

__all__ = ["PAPER_SCHEMES", "SOLVERS", "Objective", "Plan", "Scheme", "Segment", "plan", "rescore"]
