"""Oracles: they find the cheapest rounds (columns) at given prices of a joule and a second.

:mod:`~fedgap.planning.oracles.enumerate` lists all selections of a small fleet. For a large fleet
:mod:`~fedgap.planning.oracles.bounded_search` is used if the objective is additive, and otherwise
:mod:`~fedgap.planning.oracles.local_search`.
"""
