"""The experiments behind ``fedgap reproduce``: plan, train and measure the paper's figures, tables and claims.

``training`` and ``bundle`` need only torch and numpy, so that plans can be trained on any machine with a GPU.
"""
