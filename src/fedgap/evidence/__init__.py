"""The evidence: the paper's figures, tables and claims, planned, trained, measured and written down.

``training`` and ``bundle`` need torch and numpy only, so that plans made here are trained wherever a GPU is.
"""
