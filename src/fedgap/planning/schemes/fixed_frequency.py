"""Fixed clock frequency: each client computes at its highest frequency, f = f^max. All else is decided as in P1."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="fixed_frequency", title="Fixed clock frequency", frequency=False)
