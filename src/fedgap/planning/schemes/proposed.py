"""The paper's design: selection, pruning, power and frequency are decided jointly (problem P1)."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="proposed", title="Proposed")
