"""Published rules for who takes part in each round, one per file; ``fedgap.registry.RULES`` lists them.

A rule says only who takes part. It needs numpy and scipy alone, so that it can decide wherever a run is trained.
"""
