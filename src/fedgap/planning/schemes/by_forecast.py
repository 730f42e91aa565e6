"""Forecast: the plan with the least forecast test error (:mod:`fedgap.theory.forecast`)."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="forecast", title="Forecast", objective="forecast")
