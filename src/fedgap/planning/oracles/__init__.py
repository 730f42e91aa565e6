"""Oracles: given the prices of a joule and a second, which rounds are worth having?"""
