"""Fixed power: each client transmits at its highest power, p = p^max. All else is decided as in P1."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="fixed_power", title="Fixed power", power=False)
