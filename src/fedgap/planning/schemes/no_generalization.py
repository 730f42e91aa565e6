"""Without generalization statement: planned with γ₁ = 0, the conventional analysis, and scored with the full θ."""

from fedgap.planning.objectives.theta import without_generalization
from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="no_generalization", title="Without generalization statement", objective=without_generalization)
