"""Fixed pruning: the model is trained without pruning, λ = 0. All else is decided as in P1."""

from fedgap.planning.schemes.scheme import Scheme

SCHEME = Scheme(name="no_pruning", title="Fixed pruning", prune=False)
