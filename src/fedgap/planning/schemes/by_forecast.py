"""Forecast: the plan whose model will be most accurate by the forecast (:mod:`fedgap.theory.forecast`)."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="forecast", title="Forecast", objective="forecast")
