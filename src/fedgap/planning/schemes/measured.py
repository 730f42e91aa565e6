"""Measured: minimises a score that was found by experiments (:mod:`fedgap.planning.objectives.measured_guide`)."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="measured", title="Measured guide", objective="measured")
