"""The policies that come with fedgap, one per file; ``fedgap.registry.POLICIES`` lists them.

A policy decides each round of a run in a changing world. The *nominal* fleet is the one that the scenario describes;
the *present* fleet is what the world makes of it in a round.
"""
