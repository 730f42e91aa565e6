"""Static selection rules, one per file; ``fedgap.registry.SELECTION`` lists them.

A rule is a function from a scenario to the clients that take part in every round.
"""
