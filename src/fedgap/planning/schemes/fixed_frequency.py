"""Fixed clock frequency: each client computes at its maximum frequency, f = f^max, all else as in P1."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="fixed_frequency", title="Fixed clock frequency", frequency=False)
