"""Without generalization statement: minimises θ with γ₁ = 0, as conventional analyses do; scored with the full θ."""

from fedgap.planning.objectives.theta import without_generalization
from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="no_generalization", title="Without generalization statement", objective=without_generalization)
