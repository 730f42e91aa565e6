"""Oracles: find the cheapest rounds at given prices of a joule and a second."""
