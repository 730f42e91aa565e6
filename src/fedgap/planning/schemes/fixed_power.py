"""Fixed power: each client transmits at its maximum power, p = p^max, all else as in P1."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="fixed_power", title="Fixed power", power=False)
