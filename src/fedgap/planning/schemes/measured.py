"""Measured: the plan that scores best on the measured guide (:mod:`fedgap.planning.objectives.measured_guide`)."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="measured", title="Measured guide", objective="measured")
