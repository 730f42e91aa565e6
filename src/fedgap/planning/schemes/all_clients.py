"""Fixed selection: every client takes part in every round, a = 1. All else is decided as in P1."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="all_clients", title="Fixed selection", select=False)
