"""Measured: the plan that scores best on the measured guide (:mod:`fedgap.planning.objectives.measured`)."""

from fedgap.planning.schemes.base import Scheme

SCHEME = Scheme(name="measured", title="Measured guide", objective="measured")
