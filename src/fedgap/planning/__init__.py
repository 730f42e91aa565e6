"""Planning: problem P1, its solvers and the schemes. ``plan(scenario)`` returns a :class:`Plan`.

Some words have a fixed meaning in the solvers:

- a *selection* A is the set of clients that take part in a round, a boolean array (N,);
- a *kind* of round is the unpruned first round, if there must be one, or all other rounds (``Task.kinds``);
- *prices* (μ, ν) are what a joule and a second cost, in units of the objective;
- a *column* is a round that a plan could have: a selection with its deadline, its energy and its cost;
- the *program* is the linear program that decides in how many rounds each column is used, in fractions of rounds;
- an *oracle* finds the columns that are cheapest at given prices;
- a *composition* says which selections a plan has in how many whole rounds; each of them is a *part* of it;
- the *incumbent* is the best plan found so far.
"""

from fedgap.planning.objective import Objective
from fedgap.planning.plan import Plan, Segment
from fedgap.planning.rescore import rescore
from fedgap.planning.schemes import PAPER_SCHEMES, Scheme
from fedgap.planning.settings import SOLVERS
from fedgap.planning.solve import plan

__all__ = ["PAPER_SCHEMES", "SOLVERS", "Objective", "Plan", "Scheme", "Segment", "plan", "rescore"]
