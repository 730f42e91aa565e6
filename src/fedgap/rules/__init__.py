"""Published rules that select the clients of each round, one per file; ``fedgap.registry.RULES`` lists them.

A rule decides only which clients take part. It needs nothing but numpy and scipy, so that it works wherever a run is
trained.
"""
